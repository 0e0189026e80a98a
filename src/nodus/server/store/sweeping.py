"""What no longer belongs to anything: revisions of Volumes beyond those that are kept, and blobs that nothing names.

What an object names is found by looking, not by counting: every text that may name a blob is searched for digests. So a
field that is added later counts at once, and a count can't be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, select, update

from nodus.core.kinds import VOLUME
from nodus.server.store import changes as change_log
from nodus.server.store.codec import loads, unpack
from nodus.server.store.context import lock_objects, now_us, org_of, rv_now
from nodus.server.store.portions import read_in_portions
from nodus.server.store.schema import blobs, changes, objects, versions, volume_revisions

DIGEST = re.compile(r"[0-9a-f]{64}")
_SKEW_US = 60_000_000
_BATCH = 500


class Begun(NamedTuple):
    """The moment from which on changes are looked at once more before anything is removed."""

    rv: int
    at_us: int


class Crowded(NamedTuple):
    """A Volume with more revisions than are kept."""

    uid: str
    project: str
    name: str


def begin(conn: Connection) -> Begun:
    """Return the present moment."""
    return Begun(rv_now(conn), now_us(conn) - _SKEW_US)


def crowded(conn: Connection, keep: int) -> list[Crowded]:
    """Return the Volumes with more than ``keep`` revisions."""
    many = (
        select(volume_revisions.c.volume)
        .where(volume_revisions.c.org == org_of(conn))
        .group_by(volume_revisions.c.volume)
        .having(func.count() > keep)
    )
    query = select(objects.c.uid, objects.c.project, objects.c.name).where(objects.c.uid.in_(many))
    return [Crowded(*row) for row in conn.execute(query)]


def pinned(conn: Connection) -> dict[tuple[str, str], set[int]]:
    """Return the revisions that objects name, by project and name of the Volume."""
    found: dict[tuple[str, str], set[int]] = {}
    for row in _objects(conn):
        if row.kind != VOLUME.name and ('"volume' in row.spec or '"volume' in row.status):
            _note_pins(found, row.project, loads(row.spec), loads(row.status))
    return found


def prune_revisions(
    conn: Connection, volume: Crowded, keep: int, kept: Mapping[tuple[str, str], Collection[int]], begun: Begun
) -> list[int]:
    """Drop a Volume's oldest revisions beyond the newest ``keep``, but for those that objects name; return them.

    Args:
        conn: a write transaction.
        volume: whose.
        keep: how many of the newest stay.
        kept: from :func:`pinned`.
        begun: from before that.
    """
    lock_objects(conn)
    fresh: dict[tuple[str, str], set[int]] = {}
    images = _changed_since(conn, begun)
    if images is None:
        return []
    for project, image in images:
        _note_pins(fresh, project, loads(image))
    mine = (volume.project, volume.name)
    stay = {*kept.get(mine, ()), *fresh.get(mine, ())}
    c = volume_revisions.c
    numbers = list(conn.execute(select(c.revision).where(c.volume == volume.uid).order_by(c.revision)).scalars())
    gone = [number for number in numbers[:-keep] if number not in stay]
    for start in range(0, len(gone), _BATCH):
        part = gone[start : start + _BATCH]
        conn.execute(delete(volume_revisions).where(c.volume == volume.uid, c.revision.in_(part)))
    return gone


def unused(conn: Connection, keep_s: float, most: int) -> list[str]:
    """Return the digests of up to ``most`` blobs that no project used, and nothing named, for ``keep_s``."""
    newest = func.max(blobs.c.used_us)
    query = (
        select(blobs.c.sha256)
        .where(blobs.c.org == org_of(conn))
        .group_by(blobs.c.sha256)
        .having(newest < now_us(conn) - int(keep_s * 1e6))
        .order_by(newest)
        .limit(most)
    )
    return list(conn.execute(query).scalars())


def note_named(conn: Connection, digests: Sequence[str]) -> None:
    """Count blobs that something names as used, so that the next look at them comes after ``keep_s``."""
    c = blobs.c
    for start in range(0, len(digests), _BATCH):
        part = digests[start : start + _BATCH]
        conn.execute(update(blobs).where(c.org == org_of(conn), c.sha256.in_(part)).values(used_us=now_us(conn)))


def named(conn: Connection, candidates: Collection[str]) -> tuple[set[str], set[str]]:
    """Return which of these digests something names, and the digests of lists of outputs, which name more."""
    found: set[str] = set()
    lists: set[str] = set()
    for row in _objects(conn):
        for text in (row.spec, row.status, row.annotations):
            found.update(DIGEST.findall(text))
        if '"outputsTotal"' in row.status:
            lists.update(DIGEST.findall(str((loads(row.status).get("outputsTotal") or {}).get("digest"))))
        found.intersection_update(candidates)
    for spec in conn.execute(select(versions.c.spec).where(versions.c.org == org_of(conn))).scalars():
        found.update(DIGEST.findall(spec))
    for packed in _trees(conn, 0):
        found.update(entry[1] for entry in unpack(packed))
        found.intersection_update(candidates)
    return found.intersection(candidates), lists


def forget(conn: Connection, digests: Sequence[str], keep_s: float, begun: Begun) -> list[str]:
    """Drop the rows of blobs that still nothing names and nobody used meanwhile; return their digests.

    Args:
        conn: a write transaction.
        digests: what nothing named.
        keep_s: how long a blob is kept after its last use.
        begun: from before it was looked for.
    """
    lock_objects(conn)
    images = _changed_since(conn, begun)
    if images is None:
        return []
    again = {digest for _, image in images for digest in DIGEST.findall(image)}
    for packed in _trees(conn, begun.at_us):
        again.update(entry[1] for entry in unpack(packed))
    c = blobs.c
    gone: list[str] = []
    cut = now_us(conn) - int(keep_s * 1e6)
    for start in range(0, len(digests), _BATCH):
        part = [digest for digest in digests[start : start + _BATCH] if digest not in again]
        query = select(c.sha256).where(c.org == org_of(conn), c.sha256.in_(part)).group_by(c.sha256)
        old = list(conn.execute(query.having(func.max(c.used_us) < cut)).scalars())
        conn.execute(delete(blobs).where(c.org == org_of(conn), c.sha256.in_(old)))
        gone += old
    return gone


def without_rows(conn: Connection, digests: Sequence[str]) -> list[str]:
    """Return those digests that no project has a blob of. In a write transaction nobody adds one until it ends."""
    lock_objects(conn)
    known: set[str] = set()
    for start in range(0, len(digests), _BATCH):
        part = digests[start : start + _BATCH]
        known.update(conn.execute(select(blobs.c.sha256).where(blobs.c.sha256.in_(part))).scalars())
    return [digest for digest in digests if digest not in known]


def blob_bytes(conn: Connection) -> int:
    """Return how many bytes the blobs of all projects take together, each counted once."""
    each = (
        select(func.max(blobs.c.size_bytes).label("size"))
        .where(blobs.c.org == org_of(conn))
        .group_by(blobs.c.sha256)
        .subquery()
    )
    return int(conn.execute(select(func.coalesce(func.sum(each.c.size), 0))).scalar_one())


def _changed_since(conn: Connection, begun: Begun) -> list[tuple[str, str]] | None:
    """Project and image of what changed since; None when that is not kept any more."""
    if change_log.horizon(conn) > begun.rv:
        return None
    query = select(changes.c.project, changes.c.image).where(changes.c.org == org_of(conn), changes.c.rv > begun.rv)
    return [(row.project, row.image) for row in conn.execute(query)]


def _objects(conn: Connection) -> Iterator[Any]:
    c = objects.c
    columns = select(c.uid, c.kind, c.project, c.spec, c.status, c.annotations).where(c.org == org_of(conn))

    def read(last: Any, count: int) -> Sequence[Any]:
        query = columns if last is None else columns.where(c.uid > last.uid)
        return conn.execute(query.order_by(c.uid).limit(count)).all()

    return read_in_portions(read, lambda row: len(row.spec) + len(row.status) + len(row.annotations))


def _trees(conn: Connection, since_us: int) -> Iterator[bytes]:
    c = volume_revisions.c
    keys = select(c.volume, c.revision).where(c.org == org_of(conn), c.created_us >= since_us)
    for volume, revision in conn.execute(keys).all():
        packed = conn.execute(select(c.tree).where(c.volume == volume, c.revision == revision)).scalar()
        if packed is not None:
            yield packed


def _note_pins(found: dict[tuple[str, str], set[int]], project: str, *values: Any) -> None:
    """Note ``{"volume": NAME, "revision": N}`` and ``"volumes": {NAME: N}`` at any depth."""
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        if not isinstance(value, Mapping):
            continue
        name = value.get("volume")
        for key in ("revision", "volumeRevision"):
            if isinstance(name, str) and isinstance(value.get(key), int):
                found.setdefault((project, name), set()).add(value[key])
        by_name = value.get("volumes")
        if isinstance(by_name, Mapping):
            for name, number in by_name.items():
                if isinstance(number, int):
                    found.setdefault((project, name), set()).add(number)
        waiting += value.values()
