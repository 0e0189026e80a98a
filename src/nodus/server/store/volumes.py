"""Revisions of Volumes: each is a whole tree of files, and never changes once it is committed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, func, insert, select

from nodus.core.digests import digest_of
from nodus.core.errors import NotFound
from nodus.server.store.codec import from_us, pack, unpack
from nodus.server.store.context import lock_objects, now_us, org_of
from nodus.server.store.schema import volume_revisions

_MOST_REVISIONS = 2**31 - 1
"""PostgreSQL compares its column with no larger number."""


class FileEntry(NamedTuple):
    """One file of a tree."""

    path: str
    """Relative, with ``/``; no ``..``."""
    sha256: str
    """Names the blob that holds its content."""
    size_bytes: int
    mode: int = 0o644


class Revision(NamedTuple):
    """A committed state of a Volume."""

    volume_uid: str
    revision: int
    """Counts from 1."""
    snapshot: str
    """Digest of the tree: equal trees have equal snapshots."""
    files: int
    size_bytes: int
    created_at: datetime


def commit(conn: Connection, volume_uid: str, tree: Sequence[FileEntry]) -> Revision:
    """Add a revision with exactly these files, in order of path; return it.

    Args:
        conn: a write transaction.
        volume_uid: of the Volume object.
        tree: all files; none makes an empty revision.
    """
    lock_objects(conn)
    newest = conn.execute(
        select(func.max(volume_revisions.c.revision)).where(volume_revisions.c.volume == volume_uid)
    ).scalar()
    entries = [list(entry) for entry in sorted(tree)]
    revision, snapshot, created_us = (newest or 0) + 1, digest_of(entries), now_us(conn)
    size_bytes = sum(entry.size_bytes for entry in tree)
    values = {
        "volume": volume_uid,
        "revision": revision,
        "org": org_of(conn),
        "snapshot": snapshot,
        "files": len(entries),
        "size_bytes": size_bytes,
        "tree": pack(entries),
        "created_us": created_us,
    }
    conn.execute(insert(volume_revisions), values)
    return Revision(volume_uid, revision, snapshot, len(entries), size_bytes, from_us(created_us))


def list_(conn: Connection, volume_uid: str) -> list[Revision]:
    """Return all revisions of a Volume, oldest first."""
    query = _revisions(volume_uid).order_by(volume_revisions.c.revision)
    return [_revision(row) for row in conn.execute(query)]


def latest(conn: Connection, volume_uid: str) -> Revision | None:
    """Return the newest revision, or None when nothing was committed yet."""
    query = _revisions(volume_uid).order_by(volume_revisions.c.revision.desc()).limit(1)
    row = conn.execute(query).first()
    return None if row is None else _revision(row)


def _revisions(volume_uid: str) -> Select[Any]:
    c = volume_revisions.c
    return select(c.volume, c.revision, c.snapshot, c.files, c.size_bytes, c.created_us).where(c.volume == volume_uid)


def _revision(row: Any) -> Revision:
    return Revision(row.volume, row.revision, row.snapshot, row.files, row.size_bytes, from_us(row.created_us))


def tree(conn: Connection, volume_uid: str, revision: int) -> list[FileEntry]:
    """Return the files of a revision, by path.

    Raises:
        NotFound: the Volume has no such revision.
    """
    query = select(volume_revisions.c.tree).where(
        volume_revisions.c.volume == volume_uid, volume_revisions.c.revision == revision
    )
    packed = conn.execute(query).scalar() if revision <= _MOST_REVISIONS else None
    if packed is None:
        raise NotFound(f"the volume has no revision {revision}", details={"revision": revision})
    return [FileEntry(*entry) for entry in unpack(packed)]
