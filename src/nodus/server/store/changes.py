"""Changes of objects in the order of their resourceVersions, as rows and as watchers see them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast

from sqlalchemy import Connection, bindparam, delete, func, select, text

from nodus.core.errors import Expired
from nodus.core.kinds import Kind
from nodus.core.selectors import Requirement, matches_fields, matches_labels
from nodus.server.store.codec import loads
from nodus.server.store.context import now_us, org_of, rv_now
from nodus.server.store.object import Object, from_image
from nodus.server.store.portions import read_in_portions
from nodus.server.store.prepared import Prepared
from nodus.server.store.schema import changes

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]

RETAIN_S = 24 * 3600
RETAIN_ROWS = 20_000
_KNOWN_LIMIT = 10_000


_AFTER = Prepared(
    select(changes)
    .where(changes.c.org == bindparam("org"), changes.c.rv > bindparam("after"))
    .order_by(changes.c.rv)
    .limit(bindparam("most"))
)
_HORIZON = Prepared(text("SELECT value FROM sequences WHERE name = 'pruned'"))


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
    encoded: dict[Any, bytes] = field(default_factory=dict, compare=False, repr=False)
    """What watchers are sent for it, by form; made by the first that needs it, for all of them."""

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory, before anybody looks into it."""
        return len(self.image) + len(self.before or "") + 500

    @cached_property
    def object(self) -> Object:
        """The object after the change; for DELETED its last state. Its resourceVersion is the change's."""
        return from_image(self.kind, self.project, self.name, self.uid, self.rv, self.image)

    @property
    def wire(self) -> dict[str, Any]:
        """The object's wire form: read-only."""
        return self.object.to_wire()

    @cached_property
    def seen_before(self) -> dict[str, Any]:
        """``labels`` and declared ``fields`` before the change; empty for ADDED."""
        return cast(dict[str, Any], loads(self.before)) if self.before else {}


class Selection:
    """What one watcher sees through its selectors.

    An object that begins to match is ADDED, one that stops is DELETED, whatever happened to it in the database. Whether
    it matched before is known from the image kept with the change; for fields that its kind does not declare as
    selectable, from what the watcher was shown, else from the change before (:meth:`unsure`, :func:`object_before`).
    """

    def __init__(
        self, kind: Kind | None = None, labels: tuple[Requirement, ...] = (), fields: tuple[Requirement, ...] = ()
    ) -> None:
        self._labels = labels
        self._fields = fields
        declared = {"metadata.name", "metadata.namespace", *(kind.selectable_fields if kind is not None else ())}
        self._remembers = any(term.key not in declared for term in fields)
        self._known: dict[str, bool] = {}

    def show(self, uid: str) -> None:
        """Note that the watcher has the object, from a list or as a first event."""
        self._know(uid, True)

    def unsure(self, change: Change) -> bool:
        """Whether :meth:`classify` needs to be told what the object was before the change."""
        return self._remembers and change.type != "ADDED" and change.uid not in self._known

    def tell(self, change: Change, before: Object | None) -> None:
        """Say what the object was before a change; ``None`` when that is not kept any more."""
        self._know(change.uid, before is None or self._fits(before))

    def classify(self, change: Change) -> ChangeType | None:
        """Return the event that the watcher gets for a change, or None for no event."""
        if not self._labels and not self._fields:
            return change.type
        before = change.type != "ADDED" and self._matched_before(change)
        after = change.type != "DELETED" and self._fits(change.object)
        self._know(change.uid, after)
        if after:
            return "MODIFIED" if before else "ADDED"
        return "DELETED" if before else None

    def _know(self, uid: str, shown: bool) -> None:
        if not self._remembers:
            return
        self._known.pop(uid, None)
        self._known[uid] = shown
        if len(self._known) > _KNOWN_LIMIT:
            del self._known[next(iter(self._known))]

    def _fits(self, obj: Object) -> bool:
        if not matches_labels(self._labels, obj.labels):
            return False
        return not self._fields or matches_fields(self._fields, obj.to_wire())

    def _matched_before(self, change: Change) -> bool:
        if self._remembers:
            return self._known.get(change.uid, True)
        if not matches_labels(self._labels, change.seen_before.get("labels", {})):
            return False
        fields: dict[str, str] = change.seen_before.get("fields", {})
        names = {"metadata.name": change.name, "metadata.namespace": change.project}
        return all(term.matches(names.get(term.key, fields.get(term.key))) for term in self._fields)


def read_after(
    conn: Connection, rv: int, *, kinds: Collection[str] | None = None, limit: int = 500, most_bytes: int = 1024 * 1024
) -> tuple[list[Change], int]:
    """Return the changes beyond ``rv``, and the number up to which they are complete.

    Args:
        conn: a transaction.
        rv: the last one that the caller knows.
        kinds: names of the kinds wanted; None means all.
        limit: most changes.
        most_bytes: stop once the changes are so large together; one is returned in any case.

    Raises:
        Expired: changes beyond ``rv`` were dropped already, or ``rv`` was never given out.
    """
    newest = rv_now(conn)
    if rv < horizon(conn) or rv > newest:
        raise expired(rv)
    org = org_of(conn)
    found: list[Change] = []
    size = 0

    def read(last: Any, count: int) -> Sequence[Any]:
        after = rv if last is None else last.rv
        if kinds is None:
            return _AFTER.all(conn, {"org": org, "after": after, "most": count})
        query = select(changes).where(changes.c.org == org, changes.c.rv > after, changes.c.kind.in_(sorted(kinds)))
        return conn.execute(query.order_by(changes.c.rv).limit(count)).all()

    # A change can be a megabyte, and a reader that is far behind shall not load hundreds of them.
    for row in read_in_portions(read, lambda row: len(row.image), most=limit):
        found.append(_from_row(row))
        size += found[-1].size
        if size >= most_bytes:
            break
    complete = len(found) < limit and size < most_bytes
    return found, newest if complete else found[-1].rv


def object_before(conn: Connection, change: Change) -> Object | None:
    """Return the object as it was before a change, or None when the change before that is not kept."""
    query = (
        select(changes)
        .where(
            changes.c.rv < change.rv,
            changes.c.org == org_of(conn),
            changes.c.kind == change.kind,
            changes.c.uid == change.uid,
        )
        .order_by(changes.c.rv.desc())
        .limit(1)
    )
    row = conn.execute(query).first()
    return None if row is None else _from_row(row).object


def expired(rv: int) -> Expired:
    """Return the error for a resourceVersion outside of what is retained."""
    return Expired(f"resourceVersion {rv} is too old or unknown", fix="List again and watch from the list's version.")


def horizon(conn: Connection) -> int:
    """Return the newest resourceVersion whose change was dropped; resuming works from it on."""
    return int(_HORIZON.scalar(conn, {}))


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
