"""API keys as the database knows them: the HMAC of each, never the key. Hashing is :mod:`nodus.server.signing`'s.

The APIKey object carries scopes and projects; its row here goes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, insert, select, update

from nodus.server.store.codec import from_us, to_us
from nodus.server.store.context import now_us, org_of
from nodus.server.store.schema import api_keys


class KeyRecord(NamedTuple):
    """A stored key."""

    uid: str
    """Of its APIKey object."""
    key_version: int
    """Version of the master key that hashed it."""
    expires_at: datetime | None
    used_at: datetime | None

    def expired(self, now: datetime) -> bool:
        """Tell whether the key is refused at ``now``."""
        return self.expires_at is not None and self.expires_at <= now


def add(conn: Connection, uid: str, digest: str, key_version: int, expires_at: datetime | None = None) -> None:
    """Store the hash of an APIKey object's key.

    Args:
        conn: the write transaction that creates the object.
        uid: of the APIKey object.
        digest: HMAC as hex.
        key_version: of the master key.
        expires_at: when the key stops working.
    """
    expires_us = None if expires_at is None else to_us(expires_at)
    values = {"uid": uid, "org": org_of(conn), "digest": digest, "key_version": key_version, "expires_us": expires_us}
    conn.execute(insert(api_keys), values)


def find(conn: Connection, digests: Sequence[str]) -> KeyRecord | None:
    """Return the key with one of these hashes (one for each master key), or None when it is unknown."""
    row = conn.execute(select(api_keys).where(api_keys.c.digest.in_(list(digests)))).first()
    if row is None:
        return None
    expires_at = None if row.expires_us is None else from_us(row.expires_us)
    return KeyRecord(row.uid, row.key_version, expires_at, None if row.used_us is None else from_us(row.used_us))


def rehash(conn: Connection, uid: str, digest: str, key_version: int) -> None:
    """Store a key's hash under a newer master key, when its owner showed it."""
    conn.execute(update(api_keys).where(api_keys.c.uid == uid).values(digest=digest, key_version=key_version))


def expire(conn: Connection, uid: str, at: datetime | None = None) -> None:
    """Make a key stop working, at once or at a time."""
    when = now_us(conn) if at is None else to_us(at)
    conn.execute(update(api_keys).where(api_keys.c.uid == uid).values(expires_us=when))


def used(conn: Connection, uid: str) -> None:
    """Note that a key was used; callers do so at most once a minute."""
    conn.execute(update(api_keys).where(api_keys.c.uid == uid).values(used_us=now_us(conn)))


def last_use(conn: Connection, uid: str) -> datetime | None:
    """Return when a key was last used (within a minute), or None when it never was."""
    used_us = conn.execute(select(api_keys.c.used_us).where(api_keys.c.uid == uid)).scalar()
    return None if used_us is None else from_us(used_us)
