"""Idempotency keys: the same request gets the same answer for 24 hours, another request with its key is refused.

Best used in one transaction with the work itself:

    def create(conn):
        if (reply := idempotency.recall(conn, scope, key, request_hash)) is not None:
            return reply
        ...
        idempotency.keep(conn, scope, key, request_hash, Reply(201, {}, body))

Then a crash leaves neither the object nor the record. Work that takes several transactions runs ``begin`` alone first;
others get RequestInProgress until ``complete`` or ``abandon``, or until the record is taken for a dead server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, and_, bindparam, delete, insert, select, update

from nodus.core.errors import IdempotencyKeyReused, RequestInProgress
from nodus.server.store.codec import dumps, loads
from nodus.server.store.context import lock_objects, now_us, org_of
from nodus.server.store.prepared import Prepared
from nodus.server.store.schema import idempotency

RETAIN_S = 24 * 3600
ABANDONED_S = 300
"""After so long without an answer, whoever began is taken for dead and the request runs again."""
_RETRY_S = 1.0

_T = idempotency.c
_MINE = and_(_T.org == bindparam("the_org"), _T.scope == bindparam("the_scope"), _T.key == bindparam("the_key"))
_ANSWER = ("status", "headers", "body", "sealed")
_FIND = Prepared(select(idempotency).where(_MINE))
_DROP = Prepared(delete(idempotency).where(_MINE))
_ADD = Prepared(insert(idempotency), [column.key for column in idempotency.c])
_COMPLETE = Prepared(update(idempotency).where(_MINE).values({name: bindparam(f"new_{name}") for name in _ANSWER}))


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
    reply = recall(conn, scope, key, request_hash, sealer=sealer)
    if reply is None:
        _add(conn, scope, key, request_hash, dict.fromkeys(_ANSWER) | {"sealed": False})
    return reply


def recall(conn: Connection, scope: str, key: str, request_hash: str, *, sealer: Sealer | None = None) -> Reply | None:
    """Return the answer that a key's first request got, or None: then this is the first. Claims nothing.

    For work in one transaction, which ends with :func:`keep`; arguments and errors are those of :func:`begin`.
    """
    lock_objects(conn)  # what is missing now is missing until this transaction ends
    now, mine = now_us(conn), _names(conn, scope, key)
    row = _FIND.first(conn, mine)
    if row is None:
        return None
    if row.expires_us <= now or (row.status is None and row.created_us <= now - ABANDONED_S * 1_000_000):
        _DROP.run(conn, mine)
        return None
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
    answer = _answer(scope, key, reply, sealer)
    _COMPLETE.run(conn, {f"new_{name}": value for name, value in answer.items()} | _names(conn, scope, key))


def keep(
    conn: Connection, scope: str, key: str, request_hash: str, reply: Reply, *, sealer: Sealer | None = None
) -> None:
    """Keep the answer to a key that :func:`recall` knew nothing of in this transaction; see :func:`complete`."""
    _add(conn, scope, key, request_hash, _answer(scope, key, reply, sealer))


def _answer(scope: str, key: str, reply: Reply, sealer: Sealer | None) -> dict[str, Any]:
    body = reply.body if sealer is None else sealer.encrypt(reply.body, _context(scope, key)).encode()
    headers = dumps(dict(reply.headers))
    return {"status": reply.status, "headers": headers, "body": body, "sealed": sealer is not None}


def _add(conn: Connection, scope: str, key: str, request_hash: str, answer: Mapping[str, Any]) -> None:
    now = now_us(conn)
    times = {"created_us": now, "expires_us": now + RETAIN_S * 1_000_000}
    _ADD.run(conn, {"org": org_of(conn), "scope": scope, "key": key, "request_hash": request_hash, **times, **answer})


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
