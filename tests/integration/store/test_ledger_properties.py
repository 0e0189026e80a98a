"""The ledger against a model, with crashes between any two statements, on both databases.

`test_it_does_what_the_model_does` is stateful: calls one by one or several in one commit, some of them struck by a
crash at whatever statement, after which the store is opened anew. After each step every limit is what the model says,
no cap is exceeded, and the books balance; in the end every hold is ended. A short run is always done, a long one with
`scripts/test --all`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import Connection, event, insert

from nodus.core.ids import new_uid
from nodus.server.store import Store, appended, ledger, limits, prepared, reconcile
from nodus.server.store.context import context
from nodus.server.store.schema import orgs

from .ledger_model import OWNERS, SUBJECTS, Call, Count, Model, Outcome, calls, outcome_of

OpenStore = Callable[[], Store]


class Crash(BaseException):
    """The process is gone."""


class Crasher:
    """Counts the statements of transactions and stops at one; the commit counts as the last."""

    left: int | None = None

    def step(self, *_: Any) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash

    @contextlib.contextmanager
    def after(self, statements: int | None) -> Iterator[None]:
        self.left = statements
        try:
            yield
        finally:
            self.left = None

    def wrap(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*args: Any) -> Any:
            self.step()
            return run(*args)

        return stepping


CRASHER = Crasher()


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    run_sql = CRASHER.wrap(prepared.run_sql)
    for module in (prepared, appended):
        monkeypatch.setattr(module, "run_sql", run_sql)
    monkeypatch.setattr(appended, "run_many", CRASHER.wrap(prepared.run_many))


def _act_for(conn: Connection, org: str, new: bool) -> None:
    if new:
        conn.execute(insert(orgs), {"uid": org, "name": org, "created_us": 2**50})
    context(conn).shared.org = org


class Machine(RuleBasedStateMachine):
    """A ledger of its own, in a database that others use too."""

    open_store: OpenStore
    opened: list[Store]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.org = new_uid()
        self.loop = asyncio.new_event_loop()
        self._open(new=True)

    def _open(self, *, new: bool = False) -> None:
        """Start the server: a store of its own, as after a crash."""
        while self.opened:
            self.opened.pop().close()
        self.store = self.open_store()
        self.opened.append(self.store)
        self.store.write_sync(_act_for, self.org, new)
        for name in ("before_cursor_execute", "commit"):
            event.listen(self.store._write_engine, name, CRASHER.step)

    def teardown(self) -> None:
        """What a start repairs: each owner's holds are found and ended."""
        try:
            for owner in OWNERS:
                for one in self.store.read_sync(ledger.open_holds, owner=owner):
                    self._agree(Call("settle", one.reference, charges=((1, 0, "running"),)))
            assert self.store.read_sync(ledger.open_holds) == []
            assert {one.state for one in self.model.holds.values()} <= {"Settled", "Released"}
            self.agrees()
        finally:
            self.loop.close()

    def _agree(self, call: Call) -> None:
        got = outcome_of(lambda: self.store.write_sync(call))
        assert got == self.model.apply(call), call

    @rule(call=calls)
    def one(self, call: Call) -> None:
        self._agree(call)

    @rule(call=calls, statements=st.integers(0, 12))
    def crash(self, call: Call, statements: int) -> None:
        """Struck before its commit it never happened; whoever asked asks again."""
        try:
            with CRASHER.after(statements):
                got = outcome_of(lambda: self.store.write_sync(call))
        except Crash:
            self._open()
        else:
            assert got == self.model.apply(call), call
        self.agrees()
        self._agree(call)

    @rule(call=calls)
    def lost_answer(self, call: Call) -> None:
        """Struck after its commit it happened, and nobody was told."""
        outcome_of(lambda: self.store.write_sync(call))
        self.model.apply(call)
        self._open()
        self._agree(call)

    @rule(group=st.lists(calls, min_size=2, max_size=6), statements=st.none() | st.integers(0, 40))
    def together(self, group: list[Call], statements: int | None) -> None:
        """Calls that share a commit: those that were answered happened, one after the other."""
        if self.store.dialect != "sqlite":
            # PostgreSQL's writers are several, and nobody knows in which order.
            for call in group:
                self._agree(call)
            return

        async def all_() -> list[Any]:
            async def one(call: Call) -> Outcome | Crash:
                try:
                    answer = await self.store.write(call)
                except Crash as crash:
                    return crash
                except Exception as error:  # noqa: BLE001 - what is expected of it is sorted out below
                    failed = error

                    def again() -> Outcome:
                        raise failed

                    return outcome_of(again)
                return answer

            return await asyncio.gather(*map(one, group))

        with CRASHER.after(statements):
            got = self.loop.run_until_complete(asyncio.wait_for(all_(), 60))
        for call, outcome in zip(group, got, strict=True):
            if not isinstance(outcome, Crash):
                assert outcome == self.model.apply(call), call
        if any(isinstance(outcome, Crash) for outcome in got):
            self._open()

    @invariant()
    def agrees(self) -> None:
        self.store.read_sync(self._compare)

    def _compare(self, conn: Connection) -> None:
        for kind, name in SUBJECTS:
            found = limits.read(conn, kind, f"{kind}-{name}")
            count = None if found is None else Count(found.cap, found.held, found.spent, found.covered)
            assert count == self.model.counts.get((kind, name))
            # A Budget's cap may have been lowered since; the others' only rise.
            assert count is None or kind == "Budget" or count.cap is None or count.held + count.spent <= count.cap
        balance = ledger.balance(conn)
        assert balance.available >= 0
        assert balance.granted == sum(self.model.grants.values())
        assert balance.held + balance.spent == self.model.committed
        assert reconcile.verify(conn) == []
        open_ = {one.reference for one in ledger.open_holds(conn)}
        assert open_ == {name for name, one in self.model.holds.items() if one.state == "Held"}


def _agree(open_store: OpenStore, examples: int, steps: int) -> None:
    machine = type("Machine", (Machine,), {"open_store": staticmethod(open_store), "opened": []})
    # Shrinking replays on a database that has grown since; what failed is printed as it is.
    phases = [phase for phase in Phase if phase is not Phase.shrink]
    given = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None, phases=phases,
        suppress_health_check=list(HealthCheck), derandomize=False,
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=given)  # type: ignore[no-untyped-call]


def test_it_does_what_the_model_does(open_store: OpenStore, store_url: str, crashes: None) -> None:
    _agree(open_store, examples=15 if store_url.startswith("sqlite") else 5, steps=20)


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_it_does_what_the_model_does_at_length(open_store: OpenStore, store_url: str, crashes: None) -> None:
    _agree(open_store, examples=200 if store_url.startswith("sqlite") else 60, steps=50)
