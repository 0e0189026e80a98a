"""API keys as the database knows them: the HMAC of each, never the key. Hashing is :mod:`nodus.server.signing`'s.

The APIKey object carries scopes and projects; its row here goes with it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, func, insert, or_, select, update

from nodus.server.store import objects as store_objects
from nodus.server.store.codec import from_us, to_us
from nodus.server.store.context import lock_objects, now_us, org_of
from nodus.server.store.object import Object, from_row
from nodus.server.store.prepared import Prepared
from nodus.server.store.schema import api_keys, object_fields, objects


class KeyRecord(NamedTuple):
    """A stored key."""

    digest: str
    """Its HMAC, as hex."""
    key_version: int
    """Version of the master key that hashed it."""
    owner: str
    """Uid of the Member or ServiceAccount it belongs to; empty for a key that nobody has adopted yet."""
    expires_at: datetime | None
    used_at: datetime | None

    def expired(self, now: datetime) -> bool:
        """Tell whether the key is refused at ``now``."""
        return self.expires_at is not None and self.expires_at <= now


@functools.cache
def _find(count: int) -> Prepared:
    """The statement that looks for one of ``count`` hashes; there are as many as master keys."""
    key = api_keys.c
    return Prepared(
        select(objects, key.digest, key.key_version, key.owner, key.expires_us, key.used_us)
        .join(api_keys, key.uid == objects.c.uid)
        .where(or_(*(key.digest == bindparam(f"digest_{number}") for number in range(count))))
    )


def add(
    conn: Connection, uid: str, digest: str, key_version: int, owner: str, expires_at: datetime | None = None
) -> None:
    """Store the hash of an APIKey object's key.

    Args:
        conn: the write transaction that creates the object.
        uid: of the APIKey object.
        digest: HMAC as hex.
        key_version: of the master key.
        owner: uid of the Member or ServiceAccount; the key ends with it.
        expires_at: when the key stops working.
    """
    conn.execute(
        insert(api_keys),
        {
            "uid": uid,
            "org": org_of(conn),
            "digest": digest,
            "key_version": key_version,
            "owner": owner,
            "expires_us": None if expires_at is None else to_us(expires_at),
        },
    )


def find(conn: Connection, digests: Sequence[str]) -> tuple[Object, KeyRecord] | None:
    """Return the APIKey with one of these hashes (one for each master key), or None when it is unknown."""
    row = _find(len(digests)).first(conn, {f"digest_{number}": digest for number, digest in enumerate(digests)})
    if row is None:
        return None
    expires_at = None if row.expires_us is None else from_us(row.expires_us)
    used_at = None if row.used_us is None else from_us(row.used_us)
    return from_row(row), KeyRecord(row.digest, row.key_version, row.owner or "", expires_at, used_at)


def rehash(conn: Connection, uid: str, digest: str, key_version: int) -> None:
    """Store a key's hash under a newer master key, when its owner showed it."""
    conn.execute(update(api_keys).where(api_keys.c.uid == uid).values(digest=digest, key_version=key_version))


def expire(conn: Connection, uid: str, at: datetime | None) -> None:
    """Make a key stop working at a time, or at none."""
    when = None if at is None else to_us(at)
    conn.execute(update(api_keys).where(api_keys.c.uid == uid).values(expires_us=when))


def used(conn: Connection, uid: str) -> None:
    """Note that a key was used; callers do so at most once a minute."""
    conn.execute(update(api_keys).where(api_keys.c.uid == uid).values(used_us=now_us(conn)))


def last_use(conn: Connection, uid: str) -> datetime | None:
    """Return when a key was last used (within a minute), or None when it never was."""
    used_us = conn.execute(select(api_keys.c.used_us).where(api_keys.c.uid == uid)).scalar()
    return None if used_us is None else from_us(used_us)


def adopt(conn: Connection, owner: str) -> list[str]:
    """Give the keys without an owner (of before there were members) to one; return their uids."""
    orphans = select(api_keys.c.uid).where(api_keys.c.owner.is_(None), api_keys.c.org == org_of(conn))
    found = [str(uid) for uid in conn.execute(orphans).scalars()]
    if found:
        conn.execute(update(api_keys).where(api_keys.c.uid.in_(found)).values(owner=owner))
    return found


def versions(conn: Connection) -> dict[int, int]:
    """Return how many keys each master key hashed, by its version."""
    query = select(api_keys.c.key_version, func.count()).group_by(api_keys.c.key_version)
    return {int(version): int(count) for version, count in conn.execute(query)}


def hashed_before(conn: Connection, version: int) -> list[str]:
    """Return the uids of the keys that an older master key than ``version`` hashed."""
    return [str(u) for u in conn.execute(select(api_keys.c.uid).where(api_keys.c.key_version < version)).scalars()]


def mark_expired(conn: Connection, *, batch: int = 200) -> int:
    """Show keys whose time is over as Expired; return how many there were. They are refused without this."""
    due = (
        select(api_keys.c.uid)
        .join(object_fields, object_fields.c.uid == api_keys.c.uid)
        .where(
            api_keys.c.expires_us <= now_us(conn),
            object_fields.c.path == "status.phase",
            object_fields.c.value == "Active",
        )
        .limit(batch)
    )
    found = list(conn.execute(due).scalars())
    if found:
        lock_objects(conn)
    for uid in found:
        obj = store_objects.find_by_uid(conn, uid)
        if obj is not None:
            store_objects.update_status(conn, uid, {**obj.status, "phase": "Expired"})
    return len(found)
