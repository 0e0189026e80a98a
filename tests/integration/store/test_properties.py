"""The store under whatever hypothesis comes up with: watchers and lists against what was written, on both databases.

`test_watchers_and_lists_agree` is stateful: transactions run in groups, watchers come, go, resume (also on another
server) and are told to start over, lists are read page by page in between. `test_writers_at_the_same_time` has threads
and watchers that really run at the same time. A short run of each is always done, a long one with `scripts/test --all`.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nodus.core.errors import Expired
from nodus.core.selectors import matches_fields, matches_labels, parse_selector
from nodus.server.store import Object, Store, changes, feed, objects
from nodus.server.store.changes import Change, Selection
from nodus.server.store.context import rv_now

from .operations import ATTEMPT, JOB, NAMES, Operation, attempt, attempt_sync, operations

OpenStore = Callable[[], Store]
_PROJECTS = itertools.count()
# Labels and fields that an index holds and that none does; transitions between matching and not are what matters.
SELECTORS = (
    ("", ""),
    ("app=web", ""),
    ("app!=web", ""),
    ("app in (web,db)", ""),
    ("!app", ""),
    ("", "status.phase=Running"),
    ("app!=web", "status.phase!=Failed"),
    ("", "status.step=3"),
    ("", "metadata.name=a"),
)


def _settings(examples: int, steps: int = 25) -> settings:
    # Shrinking replays on a database that has grown since; what failed is printed as it is.
    phases = [phase for phase in Phase if phase is not Phase.shrink]
    return settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None, phases=phases,
        suppress_health_check=list(HealthCheck), derandomize=False,
    )  # fmt: skip


class Watcher:
    """A client: it keeps what it was shown, notes every event, and checks each against what it knew before."""

    def __init__(self, project: str, labels: str, fields: str) -> None:
        self.project = project
        self.labels, self.fields = parse_selector(labels), parse_selector(fields)
        self.selection = self._select()
        self.seen: dict[str, tuple[int, int]] = {}
        """Version and generation of what it has, by uid."""
        self.gone: set[str] = set()
        self.events: list[tuple[int, str, str]] = []
        self.since = self.position = self.listed = 0

    def _select(self) -> Selection:
        return Selection(JOB, self.labels, self.fields)

    async def start(self, store: Store, between: Sequence[Operation] = ()) -> None:
        """List in pages, as a client does, and watch from the list's version; others write ``between`` the pages."""
        writes = list(between)
        self.selection = self._select()
        listed: dict[str, tuple[int, int]] = {}
        token: str | None = None
        version: int | None = None
        while version is None or token is not None:
            page = await store.read(
                objects.list_, JOB, self.project, labels=self.labels, fields=self.fields, limit=2, continue_=token
            )
            version = page.resource_version if version is None else version
            assert page.resource_version == version, "all pages carry the version of the first"
            token, self.listed = page.continue_, page.snapshot
            if writes:
                await attempt(store, writes.pop(), self.project)
            for obj in page.items:
                listed[obj.uid] = (obj.resource_version, obj.generation)
                self.selection.show(obj.uid)
        if not self.labels and not self.fields:
            # What a selector no longer shows may match it again; without one it was deleted.
            self.gone |= self.seen.keys() - listed.keys()
        self.seen, self.events = listed, []
        self.since = self.position = version

    def disconnect(self) -> None:
        """Forget what a connection holds; the position and what was shown stay with the client."""
        self.selection = self._select()

    async def catch_up(self, store: Store, most: int | None = None) -> None:
        """Follow the feed to the newest version, or for so many changes; start over where that is refused."""
        newest = await store.read(rv_now)
        async with asyncio.timeout(30):
            while self.position < newest:
                try:
                    found, reached = await store.feed.after(self.position, frozenset({JOB.name}))
                except Expired:
                    await self.start(store)
                    return
                for change in found[:most]:
                    if change.project == self.project:
                        await self._take(store, change)
                    self.position = change.rv
                if most is not None and len(found) >= most:
                    return
                self.position = reached
                if not found and reached < newest:
                    await store.feed.wait(reached, 5)

    async def _take(self, store: Store, change: Change) -> None:
        assert change.rv > self.position, "never the same change twice"
        assert not self.events or change.rv > self.events[-1][0], "in the order of their versions"
        if self.selection.unsure(change):
            self.selection.tell(change, await store.read(changes.object_before, change))
        event = self.selection.classify(change)
        if event is None:
            return
        self.events.append((change.rv, event, change.uid))
        version = (change.rv, change.object.generation)
        if change.rv <= self.seen.get(change.uid, (0, 0))[0]:
            return  # a page after the first had it already
        known = self.seen.pop(change.uid, None)
        # What happened while the list was read may be about what is on no page any more. And whether an object matched
        # a field that nothing keeps, before the changes that are kept, can't be told.
        if change.rv > self.listed and not any(term.key == "status.step" for term in self.fields):
            assert (event != "ADDED") == (known is not None), f"{event} of what was{'' if known else ' not'} shown"
        assert known is None or known[1] <= version[1], "generations don't fall"
        if event != "DELETED":
            self.seen[change.uid] = version

    def expects(self, obj: Object) -> bool:
        return matches_labels(self.labels, obj.labels) and matches_fields(self.fields, obj.to_wire())


class Machine(RuleBasedStateMachine):
    """Servers on one database, clients, and lists that are being read."""

    stores: tuple[Store, ...]

    def __init__(self) -> None:
        super().__init__()
        self.project = f"p{next(_PROJECTS)}"
        self.loop = asyncio.new_event_loop()
        self.watchers: list[Watcher] = []
        self.listing: Listing | None = None
        self.written: list[Change] = []
        self.noted = self._wait(self.stores[0].read(rv_now))

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def teardown(self) -> None:
        try:
            self._wait(self._settled())
        finally:
            self.loop.close()

    @initialize(values=st.tuples(*[st.integers(0, 20)] * len(NAMES)))
    def fill(self, values: tuple[int, ...]) -> None:
        group = [(Operation("create", name, value), False) for name, value in zip(NAMES, values, strict=True)]
        self.write(group)

    @rule(group=st.lists(st.tuples(operations, st.booleans()), min_size=1, max_size=8))
    def write(self, group: list[tuple[Operation, bool]]) -> None:
        """Transactions that wait at the same time, spread over the servers."""

        async def together() -> None:
            await asyncio.gather(*(attempt(self.stores[-other], one, self.project) for one, other in group))

        self._wait(together())

    @precondition(lambda self: len(self.watchers) < 6)
    @rule(selector=st.sampled_from(SELECTORS), between=st.lists(operations, max_size=4))
    def watch(self, selector: tuple[str, str], between: list[Operation]) -> None:
        watcher = Watcher(self.project, *selector)
        self._wait(watcher.start(self.stores[0], between))
        self.watchers.append(watcher)

    @precondition(lambda self: self.watchers)
    @rule(which=st.integers(0, 5), other=st.booleans(), cut=st.booleans(), most=st.sampled_from([None, 1, 3]))
    def follow(self, which: int, other: bool, cut: bool, most: int | None) -> None:
        """A watcher reads what is new or a little of it, perhaps over a new connection, perhaps to another server."""
        watcher = self.watchers[which % len(self.watchers)]
        if cut:
            watcher.disconnect()
        self._wait(watcher.catch_up(self.stores[-other], most))

    @rule(keep=st.integers(0, 30))
    def prune(self, keep: int) -> None:
        """Old changes go; who was behind is told to list again."""
        self._wait(self._note_written())
        self._wait(self.stores[0].write(changes.prune, keep_rows=keep))

    # No preconditions here: whether a list goes on depends on who was first, and rules must not.
    @rule(limit=st.integers(1, 3))
    def begin_list(self, limit: int) -> None:
        if self.listing is not None:
            return
        listing = Listing(self.project, limit)
        if not self._wait(listing.read(self.stores[0])):
            self.listing = listing

    @rule(other=st.booleans())
    def next_page(self, other: bool) -> None:
        if self.listing is not None and self._wait(self.listing.read(self.stores[-other])):
            self.listing = None

    @invariant()
    def objects_outlive_lists_only_by_deletion(self) -> None:
        if self.listing is not None:
            self._wait(self.listing.note(self.stores[0]))

    async def _settled(self) -> None:
        """At the end every watcher has what a list has, and saw what is written down, once and in order."""
        there = (await self.stores[0].read(objects.list_, JOB, self.project)).items
        await self._note_written()
        written = self.written
        self._check_written(written)
        for watcher in self.watchers:
            await watcher.catch_up(self.stores[0])
            expected = {obj.uid: (obj.resource_version, obj.generation) for obj in there if watcher.expects(obj)}
            assert watcher.seen == expected
            assert not watcher.seen.keys() & watcher.gone, "a uid is never used again"
            if not watcher.labels and not watcher.fields:
                due = [(c.rv, c.type, c.uid) for c in written if c.rv > watcher.since and c.kind == JOB.name]
                assert watcher.events == due

    async def _note_written(self) -> None:
        """Read what is written down, before it is dropped."""
        while True:
            some, reached = await self.stores[0].read(changes.read_after, self.noted)
            self.written += [change for change in some if change.project == self.project]
            if reached == self.noted:
                return
            self.noted = reached

    def _check_written(self, written: list[Change]) -> None:
        """Each object's own history: made once, deleted once, its generation counts changes of its spec."""
        last: dict[str, Change] = {}
        for change in written:
            before = last.get(change.uid)
            if before is not None:
                assert before.type != "DELETED", "nothing comes after a deletion"
                assert change.type != "ADDED"
                counted = before.object.generation + (before.object.spec != change.object.spec)
                assert change.object.generation == counted
                assert change.seen_before["labels"] == before.object.labels
            last[change.uid] = change
        names = [(c.kind, c.name) for c in last.values() if c.type != "DELETED"]
        assert len(names) == len(set(names)), "one object of a name at a time"
        assert {change.kind for change in written} <= {JOB.name, ATTEMPT.name}


class Listing:
    """A list that is read page by page while others write."""

    def __init__(self, project: str, limit: int) -> None:
        self.project, self.limit = project, limit
        self.token: str | None = None
        self.names: list[str] = []
        self.throughout: set[tuple[str, str]] | None = None
        """Names and uids of what has been there all the time."""
        self.uids: set[str] = set()

    async def note(self, store: Store) -> None:
        """Keep track of what is still there."""
        page = await store.read(objects.list_, JOB, self.project)
        there = {(obj.name, obj.uid) for obj in page.items}
        self.throughout = there if self.throughout is None else self.throughout & there

    async def read(self, store: Store) -> bool:
        """Read the next page; True when that was the last."""
        await self.note(store)
        try:
            page = await store.read(objects.list_, JOB, self.project, limit=self.limit, continue_=self.token)
        except Expired:
            assert self.token is not None
            return True
        assert len(page.items) <= self.limit
        assert page.continue_ is None or len(page.items) == self.limit, "pages are full but for the last"
        self.names += [obj.name for obj in page.items]
        self.uids |= {obj.uid for obj in page.items}
        self.token = page.continue_
        assert self.names == sorted(set(self.names)), "in order, and none twice"
        if self.token is not None:
            return False
        assert self.throughout is not None
        assert {uid for _, uid in self.throughout} <= self.uids, "what was there all the time is on a page"
        return True


@pytest.fixture(autouse=True)
def _small_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed keeps and reads little at a time, so that readers fall behind what it has."""
    monkeypatch.setattr(feed, "_KEEP", 6)
    monkeypatch.setattr(feed, "_CHUNK", 4)


def _agree(open_store: OpenStore, postgres: bool, examples: int, steps: int) -> None:
    # SQLite has one server a database; PostgreSQL's hear of each other.
    opened = tuple(open_store() for _ in range(2 if postgres else 1))
    machine = type("Machine", (Machine,), {"stores": opened})
    run_state_machine_as_test(machine, settings=_settings(examples, steps))  # type: ignore[no-untyped-call]


def test_watchers_and_lists_agree(open_store: OpenStore, store_url: str) -> None:
    _agree(open_store, store_url.startswith("postgresql"), examples=40, steps=25)


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_watchers_and_lists_agree_at_length(open_store: OpenStore, store_url: str) -> None:
    _agree(open_store, store_url.startswith("postgresql"), examples=200, steps=60)


# Really at the same time ------------------------------------------------------------------------------------------


def _race(stores: list[Store], programs: list[list[Operation]], cuts: list[int]) -> None:
    """Threads write; watchers read meanwhile, each resuming on another server after so many changes."""
    project = f"p{next(_PROJECTS)}"
    begun = stores[0].read_sync(rv_now)
    barrier = threading.Barrier(len(programs))
    ended = threading.Event()

    def write(number: int) -> None:
        barrier.wait(30)
        for operation in programs[number]:
            attempt_sync(stores[number % len(stores)], operation, project)

    async def watch(cut: int) -> list[tuple[int, str, str]]:
        seen: list[tuple[int, str, str]] = []
        position, turn = begun, 0
        while True:
            last = ended.is_set()
            newest = await stores[0].read(rv_now)
            while position < newest:
                # A fresh connection each time, to one server after the other, from the last version that came.
                stream = stores[turn % len(stores)].feed.subscribe(since=position)
                async for change in stream:
                    position = change.rv
                    if change.project == project:
                        seen.append((change.rv, change.type, change.uid))
                    if change.rv >= newest or len(seen) % cut == 0:
                        break
                await stream.aclose()  # type: ignore[attr-defined]
                turn += 1
            if last:
                return seen

    async def watch_all() -> list[list[tuple[int, str, str]]]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*(watch(cut) for cut in cuts))

    with ThreadPoolExecutor(len(programs) + 1) as threads:
        watching = threads.submit(asyncio.run, watch_all())
        writing = [threads.submit(write, number) for number in range(len(programs))]
        for done in writing:
            done.result(60)
        ended.set()
        seen = watching.result(60)
    written, reached = stores[0].read_sync(changes.read_after, begun, limit=10_000, most_bytes=2**30)
    due = [(change.rv, change.type, change.uid) for change in written if change.project == project]
    assert all(one == due for one in seen)
    assert [change.rv for change in written] == list(range(begun + 1, reached + 1)), "no number is left out"


_programs = st.lists(st.lists(operations, min_size=3, max_size=25), min_size=2, max_size=5)
_cuts = st.lists(st.integers(1, 9), min_size=1, max_size=4)


def _race_often(open_store: OpenStore, postgres: bool, examples: int) -> None:
    stores = [open_store() for _ in range(2 if postgres else 1)]

    @_settings(examples)
    @given(programs=_programs, cuts=_cuts)
    def race(programs: list[list[Operation]], cuts: list[int]) -> None:
        _race(stores, programs, cuts)

    race()


def test_writers_at_the_same_time(open_store: OpenStore, store_url: str) -> None:
    _race_often(open_store, store_url.startswith("postgresql"), examples=25)


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_writers_at_the_same_time_at_length(open_store: OpenStore, store_url: str) -> None:
    _race_often(open_store, store_url.startswith("postgresql"), examples=200)
