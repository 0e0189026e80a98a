"""Which attempts a run's log is made of: read once, then kept up with the changes of that run alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodus.core.errors import Expired
from nodus.core.kinds import ATTEMPT, JOB, Kind
from nodus.server.store import objects
from nodus.server.store.context import rv_now

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store import Store
    from nodus.server.store.changes import Change
    from nodus.server.store.objects import Object

JOB_LABEL = "nodus.dev/job"
LONGEST_WAIT_S = 30.0
"""How long one waits for changes at a time."""


@dataclass(frozen=True, slots=True)
class Source:
    """An attempt that may have output."""

    uid: str
    index: int
    epoch: int
    ended: bool
    """Whether it had, when it was last heard of."""


@dataclass(slots=True)
class _Known:
    """What was read of a run."""

    job: str | None
    """The Job's uid."""
    completions: int | None
    owner_over: bool
    found: dict[str, Source]
    rv: int


class RunAttempts:
    """The attempts of one run, or some of them. :meth:`read` first.

    Args:
        store: Where they are.
        kind: Attempt, Job, or a kind whose Job has its name.
        project: Where the run is.
        name: The run's name.
        attempt: Only the attempt of this name or number.
        index: Only attempts of this index.
    """

    def __init__(
        self, store: Store, kind: Kind, project: str, name: str, *, attempt: str | None = None, index: int | None = None
    ) -> None:
        self._store = store
        self._kind, self._project, self._name = kind, project, name
        self._attempt, self._index = attempt, index
        self._kinds = frozenset({ATTEMPT.name, JOB.name, kind.name})
        self._known = _Known(None, None, True, {}, 0)
        self._told: set[str] = set()

    @property
    def completions(self) -> int | None:
        """How many indexes the run has, if it has any."""
        return self._known.completions

    @property
    def over(self) -> bool:
        """Whether no further attempt will come."""
        if self._known.owner_over:
            return True
        found = self._known.found.values()
        return self._attempt is not None and bool(found) and all(source.ended for source in found)

    async def read(self) -> list[Source]:
        """Read the attempts there are; return those that were not returned before, oldest first."""
        self._known = await self._store.read(self._look)
        return self._new(self._known.found.values())

    async def news(self) -> list[Source]:
        """Wait for attempts that were not returned before, and return them; none once no further one will come."""
        feed = self._store.feed
        while True:
            try:
                changes, reached = await feed.after(self._known.rv, self._kinds)
            except Expired:  # far behind: what went by is in what is there now
                if new := await self.read():
                    return new
                continue
            new = self._new([source for change in changes if (source := self._take(change)) is not None])
            behind, self._known.rv = bool(changes), reached
            if new:
                return new
            if not behind:
                if self.over:
                    return []
                await feed.wait(reached, LONGEST_WAIT_S)

    def _new(self, sources: Iterable[Source]) -> list[Source]:
        new = {source.uid: source for source in sources if source.uid not in self._told}
        self._told |= new.keys()
        return sorted(new.values(), key=lambda source: (source.epoch, source.index))

    def _look(self, conn: Connection) -> _Known:
        rv = rv_now(conn)
        if self._kind is ATTEMPT:
            attempt = objects.find(conn, ATTEMPT, self._project, self._name)
            found = [_source(attempt)] if attempt is not None else []
            return _Known(None, None, True, {source.uid: source for source in found}, rv)
        owner = objects.find(conn, self._kind, self._project, self._name)
        job = owner if self._kind is JOB else objects.find(conn, JOB, self._project, self._name)
        known = _Known(None, None, owner is None or self._ended(owner), {}, rv)
        if job is not None:
            known.job, known.completions = job.uid, job.spec.get("completions")
            for attempt in objects.list_(conn, ATTEMPT, self._project, labels={JOB_LABEL: self._name}).items:
                if self._wants(attempt, job.uid):
                    known.found[attempt.uid] = _source(attempt)
        return known

    def _take(self, change: Change) -> Source | None:
        """Take over a change; return the attempt where it is about one of them."""
        known = self._known
        if change.project != self._project:
            return None
        if change.kind == ATTEMPT.name:
            if change.type == "DELETED" or known.job is None or not self._wants(change.object, known.job):
                return None
            known.found[change.uid] = _source(change.object)
            return known.found[change.uid]
        if change.name == self._name:
            if change.kind == JOB.name and change.type != "DELETED":
                known.job, known.completions = change.uid, change.object.spec.get("completions")
            if change.kind == self._kind.name:
                known.owner_over = change.type == "DELETED" or self._ended(change.object)
        return None

    def _ended(self, owner: Object) -> bool:
        return self._kind.is_terminal(owner.status.get("phase"))

    def _wants(self, attempt: Object, job_uid: str) -> bool:
        if not any(ref.get("uid") == job_uid for ref in attempt.owner_references):
            return False
        if self._index is not None and _index(attempt) != self._index:
            return False
        return self._attempt is None or self._attempt in (attempt.name, str(attempt.spec.get("epoch")))


def _source(attempt: Object) -> Source:
    epoch = int(attempt.spec.get("epoch", 0))
    return Source(attempt.uid, _index(attempt), epoch, ATTEMPT.is_terminal(attempt.status.get("phase")))


def _index(attempt: Object) -> int:
    return int(attempt.spec.get("slot") or 0)
