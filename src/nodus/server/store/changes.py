"""Changes of objects in the order of their resourceVersions, as rows and as watchers see them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

from sqlalchemy import Connection, delete, func, select, text

from nodus.core.errors import Expired
from nodus.core.selectors import Requirement, matches_fields, matches_labels
from nodus.server.store.codec import loads
from nodus.server.store.context import now_us, org_of, rv_now
from nodus.server.store.object import Object, from_image
from nodus.server.store.schema import changes

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]

RETAIN_S = 24 * 3600
RETAIN_ROWS = 20_000


@dataclass(frozen=True)
class Change:
    """One change of one object."""

    rv: int
    type: ChangeType
    kind: str
    project: str | None
    name: str
    uid: str
    before: str | None
    image: str

    @cached_property
    def object(self) -> Object:
        """The object after the change; for DELETED its last state. Its resourceVersion is the change's."""
        return from_image(self.kind, self.project, self.name, self.uid, self.rv, self.image)

    @cached_property
    def wire(self) -> dict[str, Any]:
        """The object's wire form, shared by all watchers: read-only."""
        return self.object.to_wire()

    @cached_property
    def seen_before(self) -> dict[str, Any]:
        """``labels`` and declared ``fields`` before the change; empty for ADDED."""
        return cast(dict[str, Any], loads(self.before)) if self.before else {}


class Selection:
    """What one watcher sees through its selectors.

    An object that begins to match is ADDED, one that stops is DELETED, whatever happened to it in the database. Whether
    it matched before is known from what the watcher was shown and from the image kept with the change.
    """

    def __init__(self, labels: tuple[Requirement, ...] = (), fields: tuple[Requirement, ...] = ()) -> None:
        self._labels = labels
        self._fields = fields
        self._shown: set[str] = set()

    def show(self, uid: str) -> None:
        """Note that the watcher has the object, from a list or as a first event."""
        self._shown.add(uid)

    def classify(self, change: Change) -> ChangeType | None:
        """Return the event that the watcher gets for a change, or None for no event."""
        if not self._labels and not self._fields:
            return change.type
        before = change.type != "ADDED" and (change.uid in self._shown or self._matched_before(change))
        after = change.type != "DELETED" and self._matches(change)
        if after:
            self._shown.add(change.uid)
            return "MODIFIED" if before else "ADDED"
        self._shown.discard(change.uid)
        return "DELETED" if before else None

    def _matches(self, change: Change) -> bool:
        if not matches_labels(self._labels, change.object.labels):
            return False
        return not self._fields or matches_fields(self._fields, change.wire)

    def _matched_before(self, change: Change) -> bool:
        if not matches_labels(self._labels, change.seen_before.get("labels", {})):
            return False
        fields: dict[str, str] = change.seen_before.get("fields", {})
        names = {"metadata.name": change.name, "metadata.namespace": change.project}
        return all(term.matches(names.get(term.key, fields.get(term.key))) for term in self._fields)


def read_after(
    conn: Connection, rv: int, *, kinds: Collection[str] | None = None, limit: int = 500
) -> tuple[list[Change], int]:
    """Return up to ``limit`` changes beyond ``rv``, and the number up to which they are complete.

    Raises:
        Expired: changes beyond ``rv`` were dropped already, or ``rv`` was never given out.
    """
    newest = rv_now(conn)
    if rv < horizon(conn) or rv > newest:
        raise expired(rv)
    query = select(changes).where(changes.c.org == org_of(conn), changes.c.rv > rv).order_by(changes.c.rv).limit(limit)
    if kinds is not None:
        query = query.where(changes.c.kind.in_(sorted(kinds)))
    found = [_from_row(row) for row in conn.execute(query)]
    return found, found[-1].rv if len(found) == limit else newest


def expired(rv: int) -> Expired:
    """Return the error for a resourceVersion outside of what is retained."""
    return Expired(f"resourceVersion {rv} is too old or unknown", fix="List again and watch from the list's version.")


def horizon(conn: Connection) -> int:
    """Return the newest resourceVersion whose change was dropped; resuming works from it on."""
    return int(conn.execute(text("SELECT value FROM sequences WHERE name = 'pruned'")).scalar_one())


def prune(conn: Connection, *, keep_s: float = RETAIN_S, keep_rows: int = RETAIN_ROWS, batch: int = 500) -> int:
    """Drop up to ``batch`` of the oldest changes beyond the retained window; return how many went."""
    newest_dropped = conn.execute(
        select(func.max(changes.c.rv)).where(changes.c.at_us < now_us(conn) - int(keep_s * 1e6))
    ).scalar()
    by_rows = conn.execute(select(changes.c.rv).order_by(changes.c.rv.desc()).offset(keep_rows).limit(1)).scalar()
    limit = max(newest_dropped or 0, by_rows or 0)
    doomed = select(changes.c.rv).where(changes.c.rv <= limit).order_by(changes.c.rv).limit(batch)
    numbers = list(conn.execute(doomed).scalars())
    if not numbers:
        return 0
    conn.execute(delete(changes).where(changes.c.rv <= numbers[-1]))
    # Another server may have pruned further meanwhile: the horizon never goes back, or a watch would miss changes.
    raise_horizon = text("UPDATE sequences SET value = :rv WHERE name = 'pruned' AND value < :rv")
    conn.execute(raise_horizon, {"rv": numbers[-1]})
    return len(numbers)


def _from_row(row: Any) -> Change:
    return Change(row.rv, row.type, row.kind, row.project or None, row.name, row.uid, row.before, row.image)
