"""Budgets through the API: what may be asked for, and that a limit holds from the moment it is stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.errors import BudgetExceeded
from nodus.core.kinds import MEMBER
from nodus.core.money import NANO
from nodus.server.billing.budgets import MOST_OVERLAPPING
from nodus.server.billing.limits import limits_for
from nodus.server.services import Services
from nodus.server.store import Object, ledger, limits
from nodus.server.store.ledger import Charge, HoldRequest, Owner
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import TABLE, V1, causes

BUDGETS = f"{V1}/budgets"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2026, 11, 15, tzinfo=UTC))


@pytest.fixture
def spend(services: Services) -> Callable[..., None]:
    """Holds an amount for an object and spends it, all or some."""
    count = iter(range(1000))

    def do(obj: Object, amount: int, *, used: int | None = None) -> None:
        def write(conn: Any) -> None:
            reference = f"r-{next(count)}"
            owner = Owner("Attempt", "a-1", "a-1", obj.project or "")
            ledger.hold(conn, HoldRequest(reference, amount, owner, obj.uid, limits_for(conn, obj)))
            if used != 0:
                ledger.settle(conn, reference, [Charge("compute/local-cpu", amount if used is None else used)])

        services.store.write_sync(write)

    return do


def budget(name: str = "b", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"limitUSD": "10.00", **spec}}


async def test_a_budget_shows_what_it_counts(api: Api, put: Callable[..., Object], spend: Callable[..., None]) -> None:
    made = await api.ok("POST", BUDGETS, json=budget())
    defaults = {"period": "Monthly", "action": "Block", "thresholds": [50, 80, 100]}
    assert made["spec"] == {"limitUSD": "10.00", **defaults}
    assert made["status"] == {
        "phase": "Active", "period": "2026-11", "spentUSD": "0.00", "heldUSD": "0.00", "remainingUSD": "10.00",
        "percentUsed": 0,
    }  # fmt: skip
    job = put("Job", "train")
    spend(job, 4 * NANO, used=3 * NANO)
    spend(job, 2 * NANO, used=0)
    (found,) = (await api.ok("GET", BUDGETS))["items"]
    assert found["status"] == {
        "phase": "Active", "period": "2026-11", "spentUSD": "3.00", "heldUSD": "2.00", "remainingUSD": "5.00",
        "percentUsed": 30,
    }  # fmt: skip
    table = await api.ok("GET", BUDGETS, headers=TABLE)
    assert table["rows"][0]["cells"][:8] == ["b", "all", "Monthly", "$10.00", "$3.00", "$2.00", "30%", "Block"]


async def test_what_the_published_command_sends_is_taken(api: Api, put: Callable[..., Object]) -> None:
    put("Project", "research", {})
    put(MEMBER.name, "ada", {"role": "Developer", "email": "ada@example.com"})
    ada = next(m for m in (await api.ok("GET", f"{V1}/members"))["items"] if m["metadata"]["name"] == "ada")
    assert ada["status"]["user"] == {"id": "usr_ada", "email": "ada@example.com"}
    spec = {
        "limitUSD": "300", "period": "Monthly", "action": "Notify",
        "scope": {"project": "research", "selector": {"matchLabels": {"nodus.dev/created-by": "usr_ada"}}},
    }  # fmt: skip
    made = await api.ok("POST", BUDGETS, json={"metadata": {"name": "ada"}, "spec": spec})
    assert made["spec"] == {**spec, "thresholds": [50, 80, 100]}
    row = (await api.ok("GET", f"{BUDGETS}/ada", headers=TABLE))["rows"][0]["cells"]
    assert row[1] == "project=research,member=ada"
    again = await api.call("POST", BUDGETS, json={"metadata": {"name": "ada"}, "spec": spec})
    assert again.status_code == 200


async def test_a_raised_limit_frees_at_once_and_a_lowered_one_stops_at_once(
    api: Api, put: Callable[..., Object], spend: Callable[..., None]
) -> None:
    await api.ok("POST", BUDGETS, json=budget())
    job = put("Job", "train")
    spend(job, 10 * NANO)
    with pytest.raises(BudgetExceeded) as refused:
        spend(job, 1)
    assert refused.value.details == {"budget": "b", "neededUSD": "0.000000001", "remainingUSD": "0.00"}
    assert (await api.ok("GET", f"{BUDGETS}/b"))["status"]["phase"] == "Exhausted"
    assert (await api.patch(f"{BUDGETS}/b", {"spec": {"limitUSD": "12.00"}})).status_code == 200
    spend(job, NANO)
    lowered = await api.patch(f"{BUDGETS}/b", {"spec": {"limitUSD": "5.00"}})
    assert lowered.json()["status"]["remainingUSD"] == "0.00"
    assert lowered.json()["status"]["percentUsed"] == 220
    with pytest.raises(BudgetExceeded):
        spend(job, 1)
    await api.ok("DELETE", f"{BUDGETS}/b")
    spend(job, 1)


async def test_notify_counts_and_blocks_nothing(
    api: Api, put: Callable[..., Object], spend: Callable[..., None]
) -> None:
    await api.ok("POST", BUDGETS, json=budget(action="Notify"))
    job = put("Job", "train")
    spend(job, 15 * NANO)
    found = await api.ok("GET", f"{BUDGETS}/b")
    assert (found["status"]["spentUSD"], found["status"]["percentUsed"]) == ("15.00", 150)
    await api.patch(f"{BUDGETS}/b", {"spec": {"action": "Block"}})
    with pytest.raises(BudgetExceeded):
        spend(job, 1)
    await api.patch(f"{BUDGETS}/b", {"spec": {"action": "Notify"}})
    spend(job, 1)


async def test_what_was_reached_of_a_limit_is_told_before_it_changes(
    api: Api, put: Callable[..., Object], spend: Callable[..., None]
) -> None:
    await api.ok("POST", BUDGETS, json=budget())
    spend(put("Job", "train"), 8 * NANO)
    changed = await api.patch(f"{BUDGETS}/b", {"spec": {"limitUSD": "100.00"}})
    assert changed.json()["status"]["thresholdsReached"] == [50, 80]
    await api.patch(f"{BUDGETS}/b", {"spec": {"limitUSD": "10.00"}})
    events = (await api.ok("GET", f"{V1}/events", params={"fieldSelector": "involvedObject.kind=Budget"}))["items"]
    assert sorted((event["message"], event["reason"], event["count"]) for event in events) == [
        (f"{percent}% of $10.00 is spent in 2026-11", "BudgetThreshold", 1) for percent in (50, 80)
    ]


async def test_a_change_in_a_dry_run_changes_nothing(
    api: Api, put: Callable[..., Object], spend: Callable[..., None], services: Services
) -> None:
    made = await api.ok("POST", BUDGETS, json=budget())
    headers = {"Content-Type": "application/merge-patch+json"}
    await api.call("PATCH", f"{BUDGETS}/b?dryRun=All", content='{"spec": {"limitUSD": "1.00"}}', headers=headers)
    uid = made["metadata"]["uid"]
    assert [row.cap for row in services.store.read_sync(limits.periods, "Budget", uid)] == [10 * NANO]
    spend(put("Job", "train"), 10 * NANO)
    preview = await api.ok("POST", f"{BUDGETS}?dryRun=All", json=budget("other"))
    assert preview["status"]["remainingUSD"] == "10.00"


async def test_a_month_that_ended_shows_no_more(
    api: Api, put: Callable[..., Object], spend: Callable[..., None], clock: FakeClock
) -> None:
    await api.ok("POST", BUDGETS, json=budget())
    await api.ok("POST", BUDGETS, json=budget("total", period="Total"))
    spend(put("Job", "train"), 3 * NANO)
    clock.advance(16 * 86_400)  # 2026-12-01
    monthly, total = (await api.ok("GET", BUDGETS))["items"]
    assert (monthly["status"]["period"], monthly["status"]["spentUSD"]) == ("2026-12", "0.00")
    assert ("period" in total["status"], total["status"]["spentUSD"]) == (False, "3.00")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"limitUSD": None}, "spec.limitUSD"),
        ({"limitUSD": 10}, "spec.limitUSD"),
        ({"limitUSD": "-1"}, "spec.limitUSD"),
        ({"limitUSD": "999999999999"}, "spec.limitUSD"),
        ({"period": "Weekly"}, "spec.period"),
        ({"action": "block"}, "spec.action"),
        ({"scope": {"project": "nowhere"}}, "spec.scope.project"),
        ({"scope": {"member": "nobody"}}, "spec.scope.member"),
        ({"scope": {"team": "nlp"}}, "spec.scope.team"),
        ({"scope": {"selector": {"matchLabels": {}}}}, "spec.scope.selector.matchLabels"),
        ({"scope": {"selector": {"matchLabels": {"a b": "c"}}}}, "spec.scope.selector.matchLabels"),
        ({"scope": {"selector": {"matchLabels": {"a": "c d"}}}}, "spec.scope.selector.matchLabels"),
        ({"scope": {"selector": {"matchExpressions": []}}}, "spec.scope.selector.matchExpressions"),
        ({"thresholds": [80, 50]}, "spec.thresholds"),
        ({"thresholds": [50, 50]}, "spec.thresholds"),
        ({"thresholds": [0]}, "spec.thresholds[0]"),
        ({"thresholds": [True]}, "spec.thresholds[0]"),
        ({"thresholds": list(range(1, 12))}, "spec.thresholds"),
        ({"limit": "10.00"}, "spec.limit"),
    ],
)
async def test_what_is_no_budget_is_refused(api: Api, spec: dict[str, Any], field: str) -> None:
    given = {key: value for key, value in budget(**spec)["spec"].items() if value is not None}
    refused = await api.fails(422, "Invalid", "POST", BUDGETS, json={"metadata": {"name": "b"}, "spec": given})
    assert field in causes(refused)


@pytest.mark.parametrize("change", [{"period": "Total"}, {"scope": {"project": "default"}}])
async def test_what_it_counts_cannot_change(api: Api, change: dict[str, Any]) -> None:
    await api.ok("POST", BUDGETS, json=budget())
    answer = await api.patch(f"{BUDGETS}/b", {"spec": change})
    assert (answer.status_code, answer.json()["reason"]) == (409, "FieldImmutable")


async def test_no_more_budgets_count_one_thing_than_a_hold_can_stand_under(
    api: Api, put: Callable[..., Object], spend: Callable[..., None]
) -> None:
    put("Project", "other", {})
    for number in range(MOST_OVERLAPPING):
        scope = {"project": "default"} if number % 2 else {}
        await api.ok("POST", BUDGETS, json=budget(f"b{number}", **({"scope": scope} if scope else {})))
    refused = await api.fails(429, "QuotaExceeded", "POST", BUDGETS, json=budget("more", scope={"project": "default"}))
    assert "50 Budgets count" in refused["message"]
    await api.ok("POST", BUDGETS, json=budget("elsewhere", scope={"project": "other"}))
    spend(put("Job", "train"), NANO)
    assert (await api.call("POST", BUDGETS, json=budget("b0"))).status_code == 200


async def test_owners_and_admins_change_budgets(put: Callable[..., Object], with_key: Any) -> None:
    for role, status in (("Owner", 201), ("Admin", 201), ("Developer", 403), ("Viewer", 403)):
        put(MEMBER.name, f"m-{role.lower()}", {"role": role})
        key = with_key("*", name=f"k-{role.lower()}", member=f"m-{role.lower()}")
        answer = await key.call("POST", BUDGETS, json=budget(f"of-{role.lower()}"))
        assert answer.status_code == status, role
        await key.ok("GET", BUDGETS)


async def test_a_key_of_a_project_sees_and_makes_budgets_of_that_project_only(
    api: Api, put: Callable[..., Object], with_key: Any
) -> None:
    put("Project", "other", {})
    await api.ok("POST", BUDGETS, json=budget("everybody"))
    await api.ok("POST", BUDGETS, json=budget("others", scope={"project": "other"}))
    key = with_key("*", name="narrow", projects=["default"])
    await key.ok("POST", BUDGETS, json=budget("mine", scope={"project": "default", "member": "admin"}))
    assert [item["metadata"]["name"] for item in (await key.ok("GET", BUDGETS))["items"]] == ["mine"]
    for name, scope in (("all", {}), ("theirs", {"project": "other"}), ("member", {"member": "admin"})):
        await key.fails(403, "Forbidden", "POST", BUDGETS, json=budget(name, scope=scope))
    for name in ("everybody", "others"):
        await key.fails(404, "NotFound", "GET", f"{BUDGETS}/{name}")
        await key.fails(404, "NotFound", "DELETE", f"{BUDGETS}/{name}")
        assert (await key.patch(f"{BUDGETS}/{name}", {"spec": {"limitUSD": "99.00"}})).status_code == 404
