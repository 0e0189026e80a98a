"""Logins under way: a browser's approval, a terminal that polls, a sign-in code. Rows live minutes and are used once.

Codes themselves are never stored, only their HMACs. A row is consumed by deleting it, so that two requests with one
code can't both win.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, update

from nodus.server.store.codec import dumps, loads
from nodus.server.store.context import now_us, org_of
from nodus.server.store.schema import logins

Kind = Literal["cli", "device", "code"]
State = Literal["Pending", "Approved", "Denied"]


class Login(NamedTuple):
    """A login under way."""

    digest: str
    kind: Kind
    state: State
    challenge: str | None
    client: str
    """What asks: a host's name, or a client's."""
    member: str | None
    """Uid of the member who approved it, or whom a sign-in code is for."""
    grant: Mapping[str, Any]
    """``scopes``, ``projects`` and ``approver`` (uid of an APIKey or None)."""
    over: bool
    """Its time has run out."""


def add(
    conn: Connection,
    kind: Kind,
    digest: str,
    *,
    client: str,
    lifetime_s: float,
    state: State = "Pending",
    user_digest: str | None = None,
    challenge: str | None = None,
    member: str | None = None,
    grant: Mapping[str, Any] | None = None,
) -> None:
    """Store a login under way.

    Args:
        conn: a write transaction.
        kind: what it is.
        digest: HMAC of the code that redeems it.
        client: what asks.
        lifetime_s: seconds until it is forgotten.
        state: Approved where the person is known already.
        user_digest: HMAC of the code a person types.
        challenge: PKCE challenge.
        member: uid of the member.
        grant: see :class:`Login`.
    """
    now = now_us(conn)
    conn.execute(
        insert(logins),
        {
            "digest": digest,
            "org": org_of(conn),
            "kind": kind,
            "state": state,
            "user_digest": user_digest,
            "challenge": challenge,
            "client": client[:253],
            "member": member,
            "grant": None if grant is None else dumps(dict(grant)),
            "created_us": now,
            "expires_us": now + int(lifetime_s * 1e6),
        },
    )


def find(conn: Connection, kind: Kind, digest: str) -> Login | None:
    """Return the login that a code redeems; it may be over."""
    return _one(conn, kind, logins.c.digest == digest)


def find_by_user_code(conn: Connection, digest: str) -> Login | None:
    """Return the device login that a person's code names; it may be over."""
    return _one(conn, "device", logins.c.user_digest == digest)


def _one(conn: Connection, kind: Kind, condition: Any) -> Login | None:
    query = select(logins).where(condition, logins.c.kind == kind, logins.c.org == org_of(conn))
    row = conn.execute(query).first()
    if row is None:
        return None
    grant, over = loads(row.grant) if row.grant else {}, row.expires_us <= now_us(conn)
    return Login(row.digest, row.kind, row.state, row.challenge, row.client, row.member, grant, over)


def decide(conn: Connection, digest: str, state: State, member: str | None, grant: Mapping[str, Any] | None) -> bool:
    """Approve or deny a pending device login; False when somebody was faster, or it is over."""
    values = {"state": state, "member": member, "grant": None if grant is None else dumps(dict(grant))}
    pending = (logins.c.digest == digest, logins.c.state == "Pending", logins.c.expires_us > now_us(conn))
    return conn.execute(update(logins).where(*pending).values(values)).rowcount == 1


def consume(conn: Connection, digest: str) -> bool:
    """Use a login up; False when it was used already."""
    return conn.execute(delete(logins).where(logins.c.digest == digest)).rowcount == 1


def pending(conn: Connection) -> int:
    """Return how many device logins wait for a person."""
    going = (logins.c.kind == "device", logins.c.expires_us > now_us(conn))
    query = select(func.count()).select_from(logins).where(*going)
    return int(conn.execute(query).scalar_one())


def prune(conn: Connection, *, batch: int = 500) -> int:
    """Forget up to ``batch`` logins that are over; return how many went."""
    due = conn.execute(select(logins.c.digest).where(logins.c.expires_us <= now_us(conn)).limit(batch)).scalars().all()
    if due:
        conn.execute(delete(logins).where(logins.c.digest.in_(due)))
    return len(due)
