"""Random histories: whatever happens in which order, a watcher that leaves and comes back sees each change once.

A watcher here does what a client does: list, then take the changes after the list's version; it may stop at any point
and go on from the last version it saw, with nothing else remembered. What it has put together must be what a list
shows.
"""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from nodus.core.errors import AlreadyExists, Conflict, Expired, NotFound
from nodus.core.kinds import JOB
from nodus.core.selectors import parse_selector
from nodus.server.store import Store, changes, objects
from nodus.server.store.changes import Selection

NAMES = [f"n{number}" for number in range(6)]
PHASES = ["Queued", "Running", "Failed"]
SELECTORS = [
    ("", ""),
    ("app=web", ""),
    ("app!=web", ""),
    ("app in (web,db)", ""),
    ("!app", ""),
    ("", "status.phase=Running"),
    ("", "status.phase!=Failed"),
    ("app=web", "status.phase=Running"),
    ("", "status.step=1"),
    ("", "metadata.name=n1"),
]
_projects = itertools.count()


class Watcher:
    """A client's view of one selection of one project."""

    def __init__(self, store: Store, project: str, selector: tuple[str, str]) -> None:
        self._store, self._project, self._selector = store, project, selector
        self.view: dict[str, int] = {}
        self.seen: set[int] = set()
        self.relist()

    def relist(self) -> None:
        labels, fields = self._selector
        page = self._store.read_sync(objects.list_, JOB, self._project, labels=labels, fields=fields)
        self.view = {obj.uid: obj.resource_version for obj in page.items}
        self.position = page.resource_version
        self.reconnect()

    def reconnect(self) -> None:
        """Remember nothing but the version: another connection, maybe another server."""
        labels, fields = map(parse_selector, self._selector)
        self._selection = Selection(JOB, labels, fields)
        # What a field was that no index holds is not known once the change before is forgotten: then the watcher may
        # be told of an object it never had, which is harmless, and never too little.
        self._guesses = "status.step" in self._selector[1]

    def poll(self, limit: int = 500) -> None:
        """Take up to so many changes."""
        try:
            found, reached = self._store.read_sync(
                changes.read_after, self.position, kinds=["Job"], limit=limit, most_bytes=4000
            )
        except Expired:
            self.relist()
            return
        for change in found:
            assert change.rv > self.position, "changes come in order"
            assert change.rv not in self.seen, "no change comes twice"
            self.seen.add(change.rv)
            self.position = change.rv
            if change.project == self._project:
                self._apply(change)
        self.position = reached

    def _apply(self, change: Any) -> None:
        if self._selection.unsure(change):
            self._selection.tell(change, self._store.read_sync(changes.object_before, change))
        match self._selection.classify(change):
            case "ADDED":
                assert change.uid not in self.view
                self.view[change.uid] = change.rv
            case "MODIFIED":
                assert change.uid in self.view or self._guesses
                self.view[change.uid] = change.rv
            case "DELETED":
                assert change.uid in self.view or self._guesses
                self.view.pop(change.uid, None)

    def catch_up(self) -> None:
        newest = -1
        while self.position != newest:
            newest = self.position
            self.poll()

    def listed(self) -> dict[str, int]:
        labels, fields = self._selector
        page = self._store.read_sync(objects.list_, JOB, self._project, labels=labels, fields=fields)
        return {obj.uid: obj.resource_version for obj in page.items}


class Histories(RuleBasedStateMachine):
    """Writers and watchers of one project; ``store`` is set by the test."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.project = f"p{next(_projects)}"
        self.watchers: list[Watcher] = []

    def write(self, action: str, name: str, value: str) -> None:
        """One write; what another one made impossible is left out."""
        try:
            self.store.write_sync(_write, self.project, action, name, value)
        except (AlreadyExists, NotFound, Conflict):
            # Somebody was faster; that is what is tested.
            return

    @rule(
        action=st.sampled_from(["create", "phase", "label", "step", "delete", "hold", "release"]),
        name=st.sampled_from(NAMES),
        value=st.sampled_from(["web", "db", ""]),
        phase=st.sampled_from(PHASES),
    )
    def one_write(self, action: str, name: str, value: str, phase: str) -> None:
        self.write(action, name, phase if action == "phase" else value)

    @rule(seed=st.integers(0, 2**16))
    def writers_at_once(self, seed: int) -> None:
        def work(number: int) -> None:
            chosen = random.Random(seed * 10 + number)
            for _ in range(6):
                action = chosen.choice(["create", "create", "phase", "phase", "label", "step", "delete"])
                value = chosen.choice(PHASES) if action == "phase" else chosen.choice(["web", "db", ""])
                self.write(action, chosen.choice(NAMES), value)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for watcher in self.watchers:
            watcher.poll(limit=3)
        for thread in threads:
            thread.join()

    @precondition(lambda self: len(self.watchers) < 4)
    @rule(selector=st.sampled_from(SELECTORS))
    def begin_to_watch(self, selector: tuple[str, str]) -> None:
        self.watchers.append(Watcher(self.store, self.project, selector))

    @precondition(lambda self: self.watchers)
    @rule(data=st.data(), limit=st.integers(1, 5))
    def read_a_little(self, data: st.DataObject, limit: int) -> None:
        data.draw(st.sampled_from(self.watchers)).poll(limit)

    @precondition(lambda self: self.watchers)
    @rule(data=st.data())
    def leave_and_come_back(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.watchers)).reconnect()

    @rule(keep=st.integers(1, 30))
    def forget_old_changes(self, keep: int) -> None:
        self.store.write_sync(lambda conn: changes.prune(conn, keep_rows=keep))

    @rule(limit=st.integers(1, 3))
    def pages_are_the_whole(self, limit: int) -> None:
        """What is there from the first page to the last is in exactly one of them, whatever is written in between."""
        before = self.store.read_sync(objects.list_, JOB, self.project)
        found: list[str] = []
        token = None
        while True:
            page = self.store.read_sync(objects.list_, JOB, self.project, limit=limit, continue_=token)
            found += [obj.uid for obj in page.items]
            token = page.continue_
            if token is None:
                break
            self.write("create", NAMES[len(found) % len(NAMES)], "db")
            self.write("delete", NAMES[(len(found) * 3) % len(NAMES)], "")
        after = self.store.read_sync(objects.list_, JOB, self.project)
        assert len(found) == len(set(found))
        assert {obj.uid for obj in before.items} & {obj.uid for obj in after.items} <= set(found)

    @invariant()
    def a_watcher_that_caught_up_has_what_a_list_shows(self) -> None:
        for watcher in self.watchers:
            if random.random() < 0.3:
                watcher.catch_up()
                assert watcher.view == watcher.listed()


def _write(conn: Any, project: str, action: str, name: str, value: str) -> None:
    if action == "create":
        labels = {"app": value} if value else {}
        objects.create(conn, JOB, project, name, {"command": ["true"]}, labels=labels, status={"phase": "Queued"})
        return
    obj = objects.get(conn, JOB, project, name)
    if action == "phase":
        objects.update_status(conn, obj.uid, {**obj.status, "phase": value})
    elif action == "step":
        objects.update_status(conn, obj.uid, {**obj.status, "step": len(value)})
    elif action == "label":
        objects.update(conn, obj, labels={"app": value} if value else {})
    elif action == "hold":
        objects.update(conn, obj, finalizers=["x/hold"])
    elif action == "release":
        objects.update(conn, obj, finalizers=[])
    else:
        objects.delete(conn, obj)


def run(store: Store, examples: int, steps: int) -> None:
    """Play histories. A failing one is not shrunk: threads make it another one each time."""
    machine = type("HistoriesHere", (Histories,), {"store": store})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            phases=[Phase.generate],
        ),
    )


@pytest.mark.timeout(120)
def test_watchers_see_each_change_once_whatever_happens(store: Store) -> None:
    run(store, examples=12, steps=25)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_watchers_see_each_change_once_over_many_histories(store: Store) -> None:
    run(store, examples=100, steps=60)
