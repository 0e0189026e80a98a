"""Budgets' controller: thresholds are told once a period, whatever dies in between."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from nodus.core.kinds import BUDGET, EVENT
from nodus.core.money import NANO
from nodus.server.billing.budgets import rule_of
from nodus.server.controllers.budget import LOOK_S, BudgetController
from nodus.server.store import Object, leases, ledger, limits, objects
from nodus.server.store.ledger import Charge, HoldRequest, Owner

from .conftest import World


def make(world: World, **spec: Any) -> Object:
    world.store.write_sync(ledger.grant, 1000 * NANO, "start")
    return world.store.write_sync(objects.create, BUDGET, None, "research", {"limitUSD": "10.00", **spec})


def spend(world: World, budget: Object, amount: int, reference: str) -> None:
    def write(conn: Any) -> None:
        limit = rule_of(budget.uid, budget.name, world.get(budget).spec).limit(world.clock.now())
        ledger.hold(conn, HoldRequest(reference, amount, Owner("Attempt", "a", "a"), "o", [limit]))
        ledger.settle(conn, reference, [Charge("compute/local-cpu", amount)])

    world.store.write_sync(write)


def told(world: World) -> list[tuple[str, int]]:
    events = [event.spec for event in world.list(EVENT)]
    assert all((e["reason"], e["type"]) == ("BudgetThreshold", "Warning") for e in events)
    return sorted((event["message"], event["count"]) for event in events)


async def passes(world: World, count: int = 3) -> None:
    manager = world.manager(BudgetController())
    for _ in range(count):
        world.clock.advance(LOOK_S)
        await manager.resync()
        await manager.drain()


async def test_a_threshold_is_told_once_a_period(world: World) -> None:
    budget = make(world)
    await passes(world)
    assert told(world) == []
    spend(world, budget, 8 * NANO, "r1")
    await passes(world)
    assert told(world) == [("50% of $10.00 is spent in 2026-01", 1), ("80% of $10.00 is spent in 2026-01", 1)]
    assert world.get(budget).status == {
        "phase": "Active", "period": "2026-01", "spentUSD": "8.00", "heldUSD": "0.00", "remainingUSD": "2.00",
        "percentUsed": 80, "thresholdsReached": [50, 80],
    }  # fmt: skip
    world.clock.advance(31 * 86_400)  # February
    await passes(world)
    assert "thresholdsReached" not in world.get(budget).status
    spend(world, budget, 5 * NANO, "r2")
    await passes(world)
    assert told(world)[1] == ("50% of $10.00 is spent in 2026-02", 1)
    assert world.get(budget).status["thresholdsReached"] == [50]


async def test_what_a_month_reached_at_its_end_is_told_after_it(world: World) -> None:
    budget = make(world)
    await passes(world)
    spend(world, budget, 5 * NANO, "r1")
    world.clock.advance(31 * 86_400)
    await passes(world)
    assert told(world) == [("50% of $10.00 is spent in 2026-01", 1)]
    assert (world.get(budget).status["period"], "thresholdsReached" in world.get(budget).status) == ("2026-02", False)


async def test_another_limit_tells_none_again(world: World) -> None:
    budget = make(world, period="Total")
    spend(world, budget, 5 * NANO, "r1")
    await passes(world)
    world.store.write_sync(objects.update, world.get(budget), spec={**budget.spec, "limitUSD": "100.00"})
    await passes(world)
    world.store.write_sync(objects.update, world.get(budget), spec={**budget.spec, "limitUSD": "10.00"})
    await passes(world)
    assert told(world) == [("50% of $10.00 is spent", 1)]


async def test_nothing_new_writes_nothing(world: World) -> None:
    budget = make(world)
    await passes(world)
    before = world.get(budget).resource_version
    await passes(world)
    assert world.get(budget).resource_version == before


async def test_a_stale_owner_tells_nothing(world: World) -> None:
    """Another server holds the lease: what this one decided is dropped."""
    budget = make(world)
    spend(world, budget, 8 * NANO, "r1")
    world.store.write_sync(leases.acquire, f"{BUDGET.name}/{budget.uid}", "elsewhere", 3600.0)
    await passes(world)
    assert told(world) == []


def test_what_was_read_before_the_month_ended_counts_for_it_alone(world: World) -> None:
    budget = make(world)
    spend(world, budget, 10 * NANO, "r1")
    controller = BudgetController()
    context = world.store.read_sync(controller.load, world.get(budget))
    outcome = controller.decide(context, datetime(2026, 2, 1, tzinfo=UTC))
    assert [event.message for event in outcome.events] == [f"{p}% of $10.00 is spent in 2026-01" for p in (50, 80, 100)]
    assert (outcome.status or {})["spentUSD"] == "0.00"
    assert world.store.read_sync(limits.read, "Budget", budget.uid, "2026-02") is None


async def test_a_change_underneath_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = make(world)
    spend(world, budget, 5 * NANO, "r1")
    controller, changed = BudgetController(), []
    load = controller.load

    def change_once(conn: Any, obj: Object) -> Any:
        found = load(conn, obj)
        if not changed:
            changed.append(obj)
            world.store.write_sync(objects.update, world.get(budget), labels={"a": "b"})
        return found

    monkeypatch.setattr(controller, "load", change_once)
    manager = world.manager(controller)
    for _ in range(3):
        world.clock.advance(LOOK_S)
        await manager.resync()
        await manager.drain()
    assert told(world) == [("50% of $10.00 is spent in 2026-01", 1)]
    assert world.get(budget).labels == {"a": "b"}
