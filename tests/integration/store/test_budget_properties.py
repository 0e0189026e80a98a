"""Budgets against a simple model, whatever hypothesis comes up with: what is refused, what is counted, in which month.

Budgets of all scopes come, go, rise and fall between holds of objects that overlap in project, maker and labels, while
months pass. A second test has writers of holds and of limits that really run at the same time.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from nodus.core.clock import FakeClock
from nodus.core.errors import BudgetExceeded
from nodus.core.kinds import BUDGET, JOB
from nodus.core.money import format_usd
from nodus.server.billing.budgets import CREATED_BY, month_of, rule_of
from nodus.server.billing.limits import limits_for
from nodus.server.kinds.billing import BudgetAdmission
from nodus.server.store import Object, Store, ledger, limits, objects
from nodus.server.store.ledger import Charge, HoldRequest, Owner

_NUMBERS = itertools.count()
SCOPES: tuple[dict[str, Any], ...] = (
    {},
    {"project": "a"},
    {"member": "ada"},
    {"selector": {"matchLabels": {"team": "nlp"}}},
    {"project": "a", "selector": {"matchLabels": {"team": "nlp"}}},
    {"project": "b", "member": "ada"},
)
JOBS: tuple[tuple[str, dict[str, str]], ...] = (
    ("a", {CREATED_BY: "usr_ada", "team": "nlp"}),
    ("a", {CREATED_BY: "usr_bob"}),
    ("b", {CREATED_BY: "usr_ada", "team": "cv"}),
)
amounts = st.integers(1, 12)
steps = st.one_of(
    st.tuples(st.just("make"), st.integers(0, 5), amounts, st.booleans(), st.booleans()),
    st.tuples(st.just("limit"), st.integers(0, 5), amounts, st.booleans()),
    st.tuples(st.just("drop"), st.integers(0, 5)),
    st.tuples(st.just("hold"), st.integers(0, 2), amounts),
    st.tuples(st.just("hold"), st.integers(0, 2), amounts),
    st.tuples(st.just("settle"), st.integers(0, 20), st.integers(0, 12)),
    st.tuples(st.just("wait"), st.integers(1, 20)),
)


@dataclass
class Counter:
    held: int = 0
    spent: int = 0


@dataclass
class Budget:
    """What a Budget should be: the model."""

    obj: Object
    scope: dict[str, Any]
    limit: int
    monthly: bool
    blocks: bool
    periods: dict[str, Counter] = field(default_factory=dict)

    def counts(self, project: str, labels: dict[str, str]) -> bool:
        wanted = dict(self.scope.get("selector", {}).get("matchLabels", {}))
        if "member" in self.scope:
            wanted[CREATED_BY] = f"usr_{self.scope['member']}"
        return self.scope.get("project", project) == project and wanted.items() <= labels.items()

    def counter(self, month: str) -> Counter:
        return self.periods.setdefault(month if self.monthly else "", Counter())


@dataclass
class World:
    """The store and the model side by side."""

    store: Store
    clock: FakeClock
    jobs: list[Object]
    budgets: dict[int, Budget] = field(default_factory=dict)
    open: list[tuple[str, int, list[Counter]]] = field(default_factory=list)

    def run(self, step: tuple[Any, ...]) -> None:
        getattr(self, step[0])(*step[1:])
        for budget in self.budgets.values():
            found = {
                c.period: (c.held, c.spent) for c in self.store.read_sync(limits.periods, "Budget", budget.obj.uid)
            }
            wanted = {period: (c.held, c.spent) for period, c in budget.periods.items()}
            assert {k: v for k, v in found.items() if v != (0, 0)} == {k: v for k, v in wanted.items() if v != (0, 0)}

    def make(self, number: int, limit: int, monthly: bool, blocks: bool) -> None:
        if number not in self.budgets:
            scope = SCOPES[number]
            spec = _spec(limit, monthly, blocks) | ({"scope": scope} if scope else {})
            obj = self.store.write_sync(_create, f"b{number}-{next(_NUMBERS)}", spec)
            self.budgets[number] = Budget(obj, scope, limit, monthly, blocks)

    def limit(self, number: int, limit: int, blocks: bool) -> None:
        budget = self.budgets.get(number)
        if budget is not None:
            budget.limit, budget.blocks = limit, blocks
            budget.obj = self.store.write_sync(_change, budget.obj.uid, _spec(limit, budget.monthly, blocks))

    def drop(self, number: int) -> None:
        budget = self.budgets.pop(number, None)
        if budget is not None:
            self.store.write_sync(objects.delete, budget.obj)

    def hold(self, number: int, amount: int) -> None:
        project, labels = JOBS[number]
        month = month_of(self.clock.now())
        counting = [budget for budget in self.budgets.values() if budget.counts(project, labels)]
        full = [
            budget.obj.name
            for budget in counting
            if budget.blocks and budget.counter(month).held + budget.counter(month).spent + amount > budget.limit
        ]
        reference = f"r{next(_NUMBERS)}"
        try:
            self.store.write_sync(_hold, self.jobs[number], reference, amount)
        except BudgetExceeded as error:
            assert error.details["budget"] in full
            return
        assert not full
        counters = [budget.counter(month) for budget in counting]
        for counter in counters:
            counter.held += amount
        self.open.append((reference, amount, counters))

    def settle(self, number: int, used: int) -> None:
        if self.open:
            reference, amount, counters = self.open.pop(number % len(self.open))
            self.store.write_sync(ledger.settle, reference, [Charge("compute/local-cpu", min(used, amount))])
            for counter in counters:
                counter.held -= amount
                counter.spent += min(used, amount)

    def wait(self, days: int) -> None:
        self.clock.advance(days * 86_400)


def _spec(limit: int, monthly: bool, blocks: bool) -> dict[str, Any]:
    return {
        "limitUSD": format_usd(limit), "period": "Monthly" if monthly else "Total", "thresholds": [],
        "action": "Block" if blocks else "Notify",
    }  # fmt: skip


def _stored(conn: Connection, obj: Object) -> Object:
    BudgetAdmission(BUDGET).stored(conn, None, SimpleNamespace(old=None), obj)  # type: ignore[arg-type]
    return obj


def _create(conn: Connection, name: str, spec: dict[str, Any]) -> Object:
    return _stored(conn, objects.create(conn, BUDGET, None, name, spec))


def _change(conn: Connection, uid: str, spec: dict[str, Any]) -> Object:
    obj = objects.get_by_uid(conn, uid)
    return _stored(conn, objects.update(conn, obj, spec={**obj.spec, **spec}))


def _hold(conn: Connection, job: Object, reference: str, amount: int) -> None:
    owner = Owner("Attempt", job.uid, job.name, job.project or "")
    ledger.hold(conn, HoldRequest(reference, amount, owner, job.uid, limits_for(conn, job)))


def _jobs(store: Store) -> list[Object]:
    return [
        store.write_sync(objects.create, JOB, project, f"j{next(_NUMBERS)}", {}, labels=labels)
        for project, labels in JOBS
    ]


def _check(store: Store, clock: FakeClock, plan: list[tuple[Any, ...]]) -> None:
    for left in store.read_sync(objects.list_, BUDGET, None).items:
        store.write_sync(objects.delete, left)
    store.write_sync(ledger.grant, 10**9, f"g{next(_NUMBERS)}")
    world = World(store, clock, _jobs(store))
    for step in plan:
        world.run(step)
    while world.open:
        world.settle(0, 1)


def _settings(examples: int) -> settings:
    phases = [phase for phase in Phase if phase is not Phase.shrink]
    return settings(
        max_examples=examples, deadline=None, database=None, phases=phases, suppress_health_check=list(HealthCheck)
    )


def test_budgets_count_and_refuse_as_the_model_does(store: Store, clock: FakeClock) -> None:
    @_settings(20)
    @given(st.lists(steps, min_size=10, max_size=40))
    def check(plan: list[tuple[Any, ...]]) -> None:
        _check(store, clock, plan)

    check()


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_budgets_count_and_refuse_as_the_model_does_for_long(store: Store, clock: FakeClock) -> None:
    @_settings(400)
    @given(st.lists(steps, min_size=20, max_size=80))
    def check(plan: list[tuple[Any, ...]]) -> None:
        _check(store, clock, plan)

    check()


def test_a_limit_that_moves_under_holds_is_never_exceeded(store: Store) -> None:
    """Writers raise and lower a Budget while others hold: none gets more than the highest limit there was."""
    most, count = 40, 120
    store.write_sync(ledger.grant, 10**9, "start")
    budget = store.write_sync(_create, "moving", _spec(10, False, True))
    job = _jobs(store)[0]
    done = threading.Event()

    def move() -> None:
        for limit in itertools.cycle((most, 5, 20, 0, 30)):
            if done.is_set():
                return
            store.write_sync(_change, budget.uid, _spec(limit, False, True))

    def spend(number: int) -> bool:
        try:
            store.write_sync(_hold, job, f"r{number}", 1)
        except BudgetExceeded:
            return False
        if number % 3:
            store.write_sync(ledger.settle, f"r{number}", [Charge("compute/local-cpu", 1)])
        return True

    with ThreadPoolExecutor(9) as pool:
        moving = pool.submit(move)
        taken = sum(pool.map(spend, range(count)))
        done.set()
        moving.result()
    assert 0 < taken <= most
    (counted,) = store.read_sync(limits.periods, "Budget", budget.uid)
    assert counted.held + counted.spent == taken
    rule = rule_of(budget.uid, budget.name, store.read_sync(objects.get_by_uid, budget.uid).spec)
    assert counted.cap == rule.amount
