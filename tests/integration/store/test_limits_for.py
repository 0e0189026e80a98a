"""Under which limits objects spend, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection

from nodus.core.clock import FakeClock
from nodus.core.errors import BudgetExceeded
from nodus.core.kinds import BUDGET, JOB, TRAINING_JOB
from nodus.core.money import NANO
from nodus.server.billing.budgets import CREATED_BY, rule_of
from nodus.server.billing.limits import limits_for
from nodus.server.store import Object, Store, ledger, limits, objects
from nodus.server.store.codec import from_us
from nodus.server.store.context import now_us
from nodus.server.store.ledger import Charge, HoldRequest, Limit, Owner

MakeJob = Callable[..., Object]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2026, 11, 30, 23, 59, 50, tzinfo=UTC))


@pytest.fixture
def budget(store: Store) -> Callable[..., Object]:
    """Creates a Budget of $20."""

    def make(name: str, scope: dict[str, Any] | None = None, **spec: Any) -> Object:
        spec = {"limitUSD": "20.00", **spec} | ({"scope": scope} if scope else {})
        return store.write_sync(objects.create, BUDGET, None, name, spec)

    return make


def training(store: Store, name: str = "tune", **options: Any) -> Object:
    spec = {"runtime": "grpo-lora", "maxCostUSD": "3.00"}
    return store.write_sync(objects.create, TRAINING_JOB, "default", name, spec, **options)


def names(store: Store, obj: Object) -> list[str]:
    return [limit.name for limit in store.read_sync(limits_for, obj)]


def test_an_object_has_its_own_limit_and_the_budgets_that_count_it(
    store: Store, make_job: MakeJob, budget: Callable[..., Object]
) -> None:
    everybody = budget("everybody")
    budget("of-default", {"project": "default"}, period="Total", action="Notify")
    budget("of-other", {"project": "other"})
    budget("nlp", {"selector": {"matchLabels": {"team": "nlp"}}})
    budget("ada", {"member": "ada"})
    job = make_job("train", labels={"team": "nlp", CREATED_BY: "usr_bob"}, spec={"maxCostUSD": "0.50"})
    found = store.read_sync(limits_for, job)
    assert found[0] == Limit("Object", job.uid, "job/train", NANO // 2)
    assert [(limit.name, limit.period, limit.cap) for limit in found[1:]] == [
        ("everybody", "2026-11", 20 * NANO), ("nlp", "2026-11", 20 * NANO), ("of-default", "", None),
    ]  # fmt: skip
    assert found[1].subject == everybody.uid


def test_an_object_without_a_cap_counts_without_one(store: Store, make_job: MakeJob) -> None:
    job = make_job("train")
    assert store.read_sync(limits_for, job) == [Limit("Object", job.uid, "job/train")]


def test_a_job_counts_under_its_trainingjob_and_by_its_labels(
    store: Store, make_job: MakeJob, budget: Callable[..., Object]
) -> None:
    budget("nlp", {"selector": {"matchLabels": {"team": "nlp"}}})
    budget("cv", {"selector": {"matchLabels": {"team": "cv"}}})
    owner = training(store, labels={"team": "nlp", CREATED_BY: "usr_ada"})
    job = make_job("tune", owner=owner, labels={"team": "cv"})
    assert names(store, job) == ["job/tune", "trainingjob/tune", "nlp"]
    assert store.read_sync(limits_for, job)[1] == Limit("Object", owner.uid, "trainingjob/tune", 3 * NANO)
    budget("ada", {"member": "ada"})
    assert names(store, job) == ["job/tune", "trainingjob/tune", "ada", "nlp"]


def test_owners_that_a_user_named_or_that_are_gone_do_not_count(store: Store, make_job: MakeJob) -> None:
    owner = training(store)
    named = {"apiVersion": "nodus.dev/v1beta1", "kind": "TrainingJob", "name": owner.name, "uid": owner.uid}
    assert names(store, make_job("mine", owner_references=[named])) == ["job/mine"]
    orphan = make_job("orphan", owner=owner)
    store.write_sync(objects.delete, owner, "Orphan")
    assert names(store, orphan) == ["job/orphan"]


def _spend(conn: Connection, job: Object, reference: str, amount: int) -> None:
    owner = Owner("Attempt", "a-1", "a-1", "default")
    ledger.hold(conn, HoldRequest(reference, amount, owner, job.uid, limits_for(conn, job)))
    ledger.settle(conn, reference, [Charge("compute/local-cpu", amount)])


def test_a_month_ends_what_the_month_counted(
    store: Store, clock: FakeClock, make_job: MakeJob, budget: Callable[..., Object]
) -> None:
    store.write_sync(ledger.grant, 1000 * NANO, "start")
    monthly, total, job = budget("monthly"), budget("total", period="Total", limitUSD="30.00"), make_job("train")
    store.write_sync(_spend, job, "r1", 20 * NANO)
    with pytest.raises(BudgetExceeded, match=r"'monthly' has \$0.00 of \$20.00 left"):
        store.write_sync(_spend, job, "r2", 1)
    clock.advance(9.999999)
    with pytest.raises(BudgetExceeded):
        store.write_sync(_spend, job, "r2", 1)
    clock.advance(0.000001)
    store.write_sync(_spend, job, "r2", 10 * NANO)
    with pytest.raises(BudgetExceeded, match="'total'"):
        store.write_sync(_spend, job, "r3", 1)
    months = store.read_sync(limits.periods, "Budget", monthly.uid)
    assert [(month.period, month.spent) for month in months] == [("2026-11", 20 * NANO), ("2026-12", 10 * NANO)]
    assert store.read_sync(limits.periods, "Budget", total.uid)[0].spent == 30 * NANO


def _lower(conn: Connection, budget: Object, limit: str) -> None:
    rule = rule_of(budget.uid, budget.name, {**budget.spec, "limitUSD": limit})
    objects.update(conn, objects.get_by_uid(conn, budget.uid), spec={**budget.spec, "limitUSD": limit})
    limits.set_cap(conn, rule.limit(from_us(now_us(conn))))


def test_a_month_that_begins_has_the_limit_of_its_beginning(
    store: Store, clock: FakeClock, make_job: MakeJob, budget: Callable[..., Object]
) -> None:
    """Only the month that ran was changed with the Budget; the next one's counter is made with the limit it has."""
    store.write_sync(ledger.grant, 1000 * NANO, "start")
    monthly, job = budget("monthly"), make_job("train")
    store.write_sync(_spend, job, "r1", 5 * NANO)
    store.write_sync(_lower, monthly, "6.00")
    with pytest.raises(BudgetExceeded):
        store.write_sync(_spend, job, "r2", 2 * NANO)
    clock.advance(20)
    with pytest.raises(BudgetExceeded):
        store.write_sync(_spend, job, "r2", 7 * NANO)
    store.write_sync(_spend, job, "r2", 6 * NANO)


def test_a_deleted_budget_stops_nothing(store: Store, make_job: MakeJob, budget: Callable[..., Object]) -> None:
    store.write_sync(ledger.grant, 1000 * NANO, "start")
    small, job = budget("small", limitUSD="1.00"), make_job("train")
    with pytest.raises(BudgetExceeded):
        store.write_sync(_spend, job, "r1", 2 * NANO)
    store.write_sync(objects.delete, small)
    store.write_sync(_spend, job, "r1", 2 * NANO)


def test_budgets_are_read_in_the_transaction_that_holds(
    store: Store, make_job: MakeJob, budget: Callable[..., Object]
) -> None:
    job = make_job("train")
    assert JOB.name == job.kind

    def both(conn: Connection) -> list[str]:
        before = limits_for(conn, job)
        objects.create(conn, BUDGET, None, "new", {"limitUSD": "1.00"})
        return [limit.name for limit in limits_for(conn, job) if limit not in before]

    assert store.write_sync(both) == ["new"]
