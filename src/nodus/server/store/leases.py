"""Leases with fencing tokens, on the database's clock.

Whoever holds a lease may act on its object until it expires. Tokens only grow, also over releases and pruning: a write
that checks its token fails once somebody else had the lease, however late it comes.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select, text

from nodus.core.errors import StaleLease
from nodus.server.store.context import db_now_us, lock_objects, org_of
from nodus.server.store.schema import leases


class Fence(NamedTuple):
    """A lease that a write depends on."""

    key: str
    token: int


def acquire(conn: Connection, key: str, owner: str, ttl_s: float) -> int | None:
    """Take a lease that is free, expired or held by the same owner; return its new token, or None.

    Args:
        conn: a write transaction.
        key: what the lease is on, such as ``Job/<uid>``.
        owner: who takes it; the same name after a restart gets it back at once, and the token before is stale.
        ttl_s: seconds until it expires unless renewed.
    """
    lock_objects(conn)
    now = db_now_us(conn)
    # The time makes tokens grow even after a row was pruned.
    bigger = "GREATEST" if conn.dialect.name == "postgresql" else "MAX"
    statement = text(
        f"INSERT INTO leases (key, org, owner, token, expires_us) VALUES (:key, :org, :owner, {now}, {now} + :ttl) "
        "ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_us = excluded.expires_us, "
        f"token = {bigger}(leases.token + 1, excluded.token) "
        f"WHERE leases.expires_us <= {now} OR leases.owner = excluded.owner RETURNING token"
    )
    values = {"key": key, "org": org_of(conn), "owner": owner, "ttl": int(ttl_s * 1e6)}
    token = conn.execute(statement, values).scalar()
    return None if token is None else int(token)


def renew(conn: Connection, key: str, token: int, ttl_s: float) -> bool:
    """Let a lease last ``ttl_s`` from now; False when it was taken over. One that expired unnoticed is renewed."""
    lock_objects(conn)
    statement = text(f"UPDATE leases SET expires_us = {db_now_us(conn)} + :ttl WHERE key = :key AND token = :token")
    found = conn.execute(statement, {"key": key, "token": token, "ttl": int(ttl_s * 1e6)})
    return found.rowcount == 1


def check(conn: Connection, key: str, token: int) -> None:
    """Make sure, until the transaction ends, that nobody else took the lease.

    Raises:
        StaleLease: somebody did, or it was released.
    """
    lock_objects(conn)
    query = select(leases.c.token).where(leases.c.key == key).with_for_update(read=True)
    current = conn.execute(query).scalar()
    if current != token:
        raise StaleLease(f"the lease {key!r} with token {token} was taken over", details={"lease": key})


def release(conn: Connection, key: str, token: int) -> bool:
    """Give a lease back, so that others need not wait; its token is stale from then on. False when it was stale."""
    lock_objects(conn)
    statement = text(
        "UPDATE leases SET expires_us = 0, owner = '', token = token + 1 WHERE key = :key AND token = :token"
    )
    return conn.execute(statement, {"key": key, "token": token}).rowcount == 1


def release_owner(conn: Connection, owner: str) -> int:
    """Give back all leases of an owner that is known to be dead; return how many."""
    statement = text("UPDATE leases SET expires_us = 0, owner = '', token = token + 1 WHERE owner = :owner")
    return conn.execute(statement, {"owner": owner}).rowcount


def holder(conn: Connection, key: str) -> str | None:
    """Return who holds a lease now, or None when nobody does."""
    statement = text(f"SELECT owner FROM leases WHERE key = :key AND expires_us > {db_now_us(conn)}")
    owner = conn.execute(statement, {"key": key}).scalar()
    return None if owner is None else str(owner)


def prune(conn: Connection, *, keep_s: float = 24 * 3600, batch: int = 500) -> int:
    """Drop up to ``batch`` leases that expired more than ``keep_s`` ago; return how many went."""
    statement = text(
        "DELETE FROM leases WHERE key IN "
        f"(SELECT key FROM leases WHERE expires_us < {db_now_us(conn)} - :keep ORDER BY expires_us LIMIT :batch)"
    )
    return conn.execute(statement, {"keep": int(keep_s * 1e6), "batch": batch}).rowcount
