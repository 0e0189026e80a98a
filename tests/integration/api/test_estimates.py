"""Dry runs of Jobs with prices: what they cost, what is held, and what a create with If-Match is bound to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import OFFERING
from nodus.core.money import format_usd
from nodus.server.billing.pricebook import PriceBook
from nodus.server.controllers import funding
from nodus.server.controllers.service import node_id
from nodus.server.services import Services
from nodus.server.store import ledger, objects
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, V1, job

CENT_A_SECOND = 36_000_000_000
CORES = 4


@pytest.fixture
def priced(services: Services) -> Callable[..., None]:
    """Makes the machine one of four cores, at a price a core's hour in nano-dollars."""

    def price(core: int, cores: int = CORES, version: str = "2026.11+test") -> None:
        services.prices = PriceBook(version, {"CPU": core, "default": core}, 0)
        offering = services.store.read_sync(objects.get, OFFERING, None, "local-cpu")
        spec = {**offering.spec, "cpu": cores, "memory": "16Gi", "priceUSDPerHour": format_usd(cores * core)}
        services.store.write_sync(objects.update, offering, spec=spec)

    return price


@pytest.fixture
def rich(services: Services) -> None:
    services.store.write_sync(ledger.grant, 1000 * 10**9, "start")


def leave(services: Services, amount: int) -> None:
    """Leave this much of the credits, in nano-dollars: somebody else holds the rest."""
    available = services.store.read_sync(ledger.balance).available
    if available > amount:
        owner = ledger.Owner("Job", "uid", "other", "default")
        request = ledger.HoldRequest(f"other/{available}", available - amount, owner, "uid")
        services.store.write_sync(ledger.hold, request)


async def plan(api: Api, **spec: Any) -> tuple[dict[str, Any], str]:
    """The estimate and the ETag of a dry run."""
    answer = await api.call("POST", f"{JOBS}?dryRun=All", json=job(**spec))
    assert answer.status_code == 201, answer.text
    return answer.json()["status"]["estimate"], answer.headers["ETag"]


async def test_share_of_the_machine_times_the_expected_duration(api: Api, priced: Any, rich: None) -> None:
    priced(CENT_A_SECOND)
    found, _ = await plan(api, resources={"cpu": "1500m"}, expectedDuration="10s")
    assert found["rateUSDPerHour"] == "54.00"
    assert found["costUSD"] == {"p50": "0.15", "p90": "0.15"}
    assert found["holdUSD"] == "9.00"
    assert (found["pricebookVersion"], found["validUntil"]) == ("2026.11+test", "2026-01-01T00:15:00Z")
    assert found["warnings"] == found["blockingReasons"] == []
    assert "concurrentHoldUSD" not in found and "gangHoldUSD" not in found


@pytest.mark.parametrize("cpu", [None, "500m", 0.3, "0.7", 3, 4])
async def test_attempt_is_charged_by_the_rate_of_the_estimate(
    api: Api, priced: Any, services: Services, put: Callable[..., Any], cpu: Any
) -> None:
    priced(7_000_000_003)
    spec = {"command": ["true"], "resources": {"cpu": cpu} if cpu else {}}
    found, _ = await plan(api, **spec)
    owner, attempt = put("Job", "run", spec), put("Attempt", "run-1", {"job": "run", "epoch": 1})
    node = node_id(services.settings.data_dir)
    place, _ = services.store.read_sync(funding.load, attempt, owner, node, funding.FREE_TERMS)
    assert place is not None
    assert (place.offering, format_usd(place.rate)) == (found["placementPreview"]["offering"], found["rateUSDPerHour"])


async def test_unknown_duration_of_what_costs_has_no_cost_and_a_fix(api: Api, priced: Any, rich: None) -> None:
    priced(CENT_A_SECOND)
    found, _ = await plan(api)
    (notice,) = found["warnings"]
    assert (notice["code"], notice["fix"]) == ("DurationUnknown", "set spec.expectedDuration")
    assert "costUSD" not in found and "$36.00 an hour" in notice["message"]
    priced(0)
    free, _ = await plan(api)
    assert (free["costUSD"], free["holdUSD"], free["warnings"]) == ({"p50": "0.00", "p90": "0.00"}, "0.00", [])


async def test_indexes_cost_each_and_hold_as_many_as_run_at_once(api: Api, priced: Any, rich: None) -> None:
    priced(CENT_A_SECOND)
    found, _ = await plan(api, completions=10, parallelism=3, expectedDuration="10s")
    assert (found["costUSD"]["p50"], found["holdUSD"], found["concurrentHoldUSD"]) == ("1.00", "6.00", "18.00")
    assert found["duration"]["p50"] == "40s"
    wide, _ = await plan(api, completions=10, resources={"cpu": 2})
    assert wide["concurrentHoldUSD"] == "24.00"  # two of two cores fit
    capped, _ = await plan(api, completions=10, parallelism=3, maxCostUSD="7.00")
    assert (capped["holdUSD"], capped["concurrentHoldUSD"]) == ("6.00", "7.00")


async def test_as_much_is_held_as_is_funded_ahead(api: Api, priced: Any, rich: None, services: Services) -> None:
    priced(CENT_A_SECOND)
    services.settings = services.settings.model_copy(update={"funding_slice": "20s"})
    found, _ = await plan(api, maxCostUSD="0.02")
    assert (found["holdUSD"], found["blockingReasons"][0]["code"]) == ("0.02", "MaxCostTooLow")
    assert (await plan(api))[0]["holdUSD"] == "0.20"


async def test_gang_of_one_node_holds_as_a_gang(api: Api, priced: Any, rich: None) -> None:
    priced(CENT_A_SECOND)
    found, _ = await plan(api, distributed={"nodes": 1})
    assert found["gangHoldUSD"] == found["holdUSD"] == "6.00"


async def test_what_keeps_the_money_away_blocks_with_amounts(api: Api, priced: Any, services: Services) -> None:
    priced(CENT_A_SECOND)
    leave(services, 0)
    found, _ = await plan(api, maxCostUSD="0.50")
    low, poor = found["blockingReasons"]
    assert (low["code"], poor["code"]) == ("MaxCostTooLow", "InsufficientCredits")
    assert low["message"] == "spec.maxCostUSD of $0.50 is less than the $0.90 that a run is started with"
    assert poor["message"] == "$0.00 of credits is left and $0.90 is needed to start"
    services.store.write_sync(ledger.grant, 10**9, "some")
    assert (await plan(api))[0]["blockingReasons"] == []


async def test_budget_that_counts_it_blocks_with_amounts(api: Api, priced: Any, rich: None) -> None:
    priced(CENT_A_SECOND)
    for name, spec in {
        "narrow": {"limitUSD": "0.80", "scope": {"selector": {"matchLabels": {"team": "a"}}}},
        "told": {"limitUSD": "0.10", "action": "Notify"},
        "wide": {"limitUSD": "500"},
    }.items():
        budget = {"apiVersion": "nodus.dev/v1", "kind": "Budget", "metadata": {"name": name}, "spec": spec}
        await api.ok("POST", f"{V1}/budgets", json=budget)
    assert (await plan(api))[0]["blockingReasons"] == []
    labelled = {**job(), "metadata": {"name": "j1", "labels": {"team": "a"}}}
    found = await api.ok("POST", f"{JOBS}?dryRun=All", json=labelled)
    (reason,) = found["status"]["estimate"]["blockingReasons"]
    assert reason["code"] == "BudgetExceeded"
    assert reason["message"] == "the Budget 'narrow' has $0.80 of $0.80 left and $0.90 is needed to start"
    assert reason["fix"] == "raise its spec.limitUSD: nodus edit budget/narrow"


async def test_sandbox_costs_an_hour_and_nobody_knows_how_many(api: Api, priced: Any, rich: None) -> None:
    priced(CENT_A_SECOND)
    box = {"apiVersion": "nodus.dev/v1", "kind": "Sandbox", "metadata": {"name": "s"}, "spec": {}}
    path = f"{V1}/namespaces/default/sandboxes?dryRun=All"
    found = (await api.ok("POST", path, json=box))["status"]["estimate"]
    assert (found["rateUSDPerHour"], "costUSD" in found, found["warnings"]) == ("36.00", False, [])


# If-Match -------------------------------------------------------------------------------------------------------------


async def create(api: Api, etag: str, **spec: Any) -> int:
    answer = await api.call("POST", JOBS, json=job(**spec), headers={"If-Match": etag})
    if answer.status_code == 412:
        assert answer.json()["reason"] == "PreconditionFailed"
    return answer.status_code


async def test_plan_is_created_while_price_capacity_and_spec_are_the_same(
    api: Api, priced: Any, rich: None, services: Services, clock: FakeClock
) -> None:
    priced(CENT_A_SECOND)
    _, etag = await plan(api)
    clock.advance(3600)  # past validUntil
    services.store.write_sync(ledger.grant, 10**9, "meanwhile")
    assert await create(api, etag) == 201


async def test_money_spent_meanwhile_does_not_change_the_plan(
    api: Api, priced: Any, services: Services, rich: None
) -> None:
    priced(CENT_A_SECOND)
    _, etag = await plan(api)
    leave(services, 0)
    now, same = await plan(api)
    assert [reason["code"] for reason in now["blockingReasons"]] == ["InsufficientCredits"]
    assert same == etag


async def test_another_price_fails_the_create(api: Api, priced: Any, rich: None) -> None:
    priced(CENT_A_SECOND)
    _, etag = await plan(api)
    priced(CENT_A_SECOND + 1)
    assert await create(api, etag) == 412
    priced(CENT_A_SECOND, version="2026.12")
    assert await create(api, etag) == 412


async def test_another_machine_fails_the_create(api: Api, priced: Any, rich: None, services: Services) -> None:
    priced(0)
    _, etag = await plan(api, resources={"cpu": 3})
    priced(0, cores=2)
    assert await create(api, etag, resources={"cpu": 3}) == 412
    priced(0)
    assert await create(api, etag, resources={"cpu": 3}) == 201


async def test_another_spec_fails_the_create(api: Api, priced: Any, rich: None) -> None:
    priced(CENT_A_SECOND)
    _, etag = await plan(api, maxCostUSD="5.00")
    assert await create(api, etag, maxCostUSD="50.00") == 412
    assert await create(api, etag, maxCostUSD="5.00") == 201
