"""Idempotency keys: the same request gets the same answer for 24 hours, another request with its key is refused.

Best used in one transaction with the work itself:

    def create(conn):
        if (reply := idempotency.begin(conn, scope, key, request_hash)) is not None:
            return reply
        ...
        idempotency.complete(conn, scope, key, Reply(201, {}, body))

Then a crash leaves neither the object nor the record. Work that takes several transactions runs ``begin`` alone first;
others get RequestInProgress until ``complete`` or ``abandon``, or until the record is taken for a dead server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from sqlalchemy import Connection, and_, bindparam, delete, or_, select, update

from nodus.core.errors import IdempotencyKeyReused, RequestInProgress
from nodus.server.store.codec import dumps, loads
from nodus.server.store.context import insert_into, lock_objects, now_us, org_of
from nodus.server.store.schema import idempotency

RETAIN_S = 24 * 3600
ABANDONED_S = 300
"""After so long without an answer, whoever began is taken for dead and the request runs again."""
_RETRY_S = 1.0

_T = idempotency.c
_MINE = and_(_T.org == bindparam("the_org"), _T.scope == bindparam("the_scope"), _T.key == bindparam("the_key"))


class Reply(NamedTuple):
    """An answer that is kept."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Sealer(Protocol):
    """What encrypts replies that hold a secret; :class:`nodus.server.signing.Signer` does."""

    def encrypt(self, value: bytes, context: str) -> str:
        """Return ``value`` sealed."""
        ...

    def decrypt(self, sealed: str, context: str) -> bytes:
        """Return what was sealed."""
        ...


def begin(conn: Connection, scope: str, key: str, request_hash: str, *, sealer: Sealer | None = None) -> Reply | None:
    """Claim a key, or return the answer that its first request got.

    Args:
        conn: a write transaction.
        scope: whose keys these are, such as the API key's uid; keys of different scopes are different.
        key: the Idempotency-Key header, at most 255 characters.
        request_hash: digest of method, path and body.
        sealer: opens a reply that was kept sealed.

    Raises:
        IdempotencyKeyReused: the key belongs to another request.
        RequestInProgress: the first request with it still runs.
    """
    lock_objects(conn)
    now, mine = now_us(conn), _names(conn, scope, key)
    stale = and_(_T.status.is_(None), _T.created_us <= now - ABANDONED_S * 1_000_000)
    conn.execute(delete(idempotency).where(_MINE, or_(_T.expires_us <= now, stale)), mine)
    claimed = conn.execute(
        insert_into(conn, idempotency).on_conflict_do_nothing().returning(_T.key),
        {
            "org": org_of(conn),
            "scope": scope,
            "key": key,
            "request_hash": request_hash,
            "sealed": False,
            "created_us": now,
            "expires_us": now + RETAIN_S * 1_000_000,
        },
    )
    if claimed.first() is not None:
        return None
    row = conn.execute(select(idempotency).where(_MINE), mine).one()
    if row.request_hash != request_hash:
        message = f"Idempotency-Key {key!r} was used for another request in the last 24 hours"
        raise IdempotencyKeyReused(message, fix="Use a fresh key for each request.")
    if row.status is None:
        message = f"the first request with Idempotency-Key {key!r} is still running"
        raise RequestInProgress(message, fix="Repeat the request in a moment.", retry_after_s=_RETRY_S)
    body: bytes = row.body or b""
    if row.sealed:
        assert sealer is not None, "a sealed reply is opened with the sealer it was kept with"
        body = sealer.decrypt(body.decode(), _context(scope, key))
    return Reply(row.status, loads(row.headers), body)


def complete(conn: Connection, scope: str, key: str, reply: Reply, *, sealer: Sealer | None = None) -> None:
    """Keep the answer to a claimed key; with a ``sealer`` it is kept encrypted, as replies with secrets must be."""
    body = reply.body if sealer is None else sealer.encrypt(reply.body, _context(scope, key)).encode()
    values = {"status": reply.status, "headers": dumps(dict(reply.headers)), "body": body, "sealed": sealer is not None}
    conn.execute(update(idempotency).where(_MINE).values(values), _names(conn, scope, key))


def abandon(conn: Connection, scope: str, key: str) -> None:
    """Give up a claimed key, so that the request may be repeated; for failures and dry runs."""
    conn.execute(delete(idempotency).where(_MINE, _T.status.is_(None)), _names(conn, scope, key))


def forget_sealed(conn: Connection) -> None:
    """Drop the answers that were kept encrypted: the key that opens them is about to go."""
    conn.execute(delete(idempotency).where(_T.sealed.is_(True), _T.org == org_of(conn)))


def prune(conn: Connection, *, batch: int = 500) -> int:
    """Drop up to ``batch`` expired records; return how many went."""
    query = select(_T.org, _T.scope, _T.key).where(_T.expires_us <= now_us(conn)).order_by(_T.expires_us).limit(batch)
    doomed = [{"the_org": org, "the_scope": scope, "the_key": key} for org, scope, key in conn.execute(query)]
    if doomed:
        conn.execute(delete(idempotency).where(_MINE), doomed)
    return len(doomed)


def _names(conn: Connection, scope: str, key: str) -> dict[str, str]:
    return {"the_org": org_of(conn), "the_scope": scope, "the_key": key}


def _context(scope: str, key: str) -> str:
    return f"idempotency/{scope}/{key}"
