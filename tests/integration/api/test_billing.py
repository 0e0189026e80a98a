"""Credits, usage and transactions as clients read them: exact, from the books, within the reach of whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import BUDGET, MEMBER, SANDBOX
from nodus.core.money import NANO
from nodus.server import bootstrap
from nodus.server.api import billing
from nodus.server.billing.limits import limits_for
from nodus.server.billing.pricebook import PriceBook, Tokens
from nodus.server.services import Services
from nodus.server.settings import Settings
from nodus.server.store import Object, ledger, objects
from nodus.server.store.ledger import Charge, HoldRequest, Owner
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import TABLE, V1

USAGE, TRANSACTIONS = f"{V1}/usagerecords", f"{V1}/transactions"
ACCOUNT = f"{V1}/billingaccounts/default"
Spend = Callable[..., None]
CENT = NANO // 100


@pytest.fixture
def spend(services: Services) -> Spend:
    """Holds and settles as a controller does: ``spend(job, 3 * CENT, item="grading")``."""
    count = iter(range(1000))

    def do(obj: Object, amount: int, *, held: int | None = None, **charge: Any) -> None:
        reference = f"r-{next(count)}"
        charged = Charge(
            **{"item": "compute/local-cpu", "amount": amount, "unit": "us", "segment": "running", **charge}
        )

        def write(conn: Any) -> None:
            owner = Owner("Attempt", f"{obj.uid[:30]}-a", f"{obj.name}-1", obj.project or "")
            ledger.hold(
                conn, HoldRequest(reference, held or amount, owner, obj.uid, limits_for(conn, obj), "slice", "v1")
            )
            ledger.settle(conn, reference, [charged])

        services.store.write_sync(write)

    return do


async def listed(api: Api, path: str, **query: str) -> list[dict[str, Any]]:
    return list((await api.ok("GET", path, params=query))["items"])


async def summed(api: Api, by: str, **query: str) -> list[tuple[Any, ...]]:
    found = await api.ok("GET", USAGE, params={"groupBy": by, **query})
    assert found["kind"] == "UsageSummary"
    return [(*row["group"].values(), row["amountUSD"]) for row in found["rows"]]


# Credits --------------------------------------------------------------------------------------------------------------


async def test_a_fresh_installation_has_its_starting_grant_once(
    api: Api, services: Services, settings: Settings, clock: FakeClock
) -> None:
    first = await api.ok("GET", ACCOUNT)
    assert first["status"]["availableUSD"] == "25.00"
    (line,) = await listed(api, TRANSACTIONS)
    assert (line["type"], line["amountUSD"], line["balanceAfterUSD"]) == ("Grant", "25.00", "25.00")
    assert (line["cause"], line["description"]) == ("starting-grant", "Starting grant")
    services.store.close()
    for amount in ("25.00", "100.00", "0"):
        again, _ = bootstrap.open_services(settings.model_copy(update={"starting_grant_usd": amount}), clock)
        assert again.store.read_sync(ledger.balance).granted == 25 * NANO
        again.store.close()


def test_no_starting_grant_where_the_operator_wants_none(settings: Settings, clock: FakeClock) -> None:
    settings.data_dir.mkdir(mode=0o700)
    services, _ = bootstrap.open_services(settings.model_copy(update={"starting_grant_usd": "0.00"}), clock)
    assert services.store.read_sync(ledger.balance) == (0, 0, 0, 0)
    services.store.close()


async def test_the_account_says_what_is_left_and_what_the_month_cost(
    api: Api, put: Callable[..., Object], spend: Spend, clock: FakeClock, services: Services
) -> None:
    job = put("Job", "train")
    spend(job, 150 * CENT)
    clock.advance(31 * 86_400)  # 2026-02-01
    spend(job, 25 * CENT, held=3 * NANO, covered=7)

    def hold(conn: Any) -> None:
        ledger.hold(conn, HoldRequest("open", 4 * NANO, Owner("Attempt", "a", "a", "default"), job.uid))

    services.store.write_sync(hold)
    found = await api.ok("GET", ACCOUNT)
    assert found["status"] == {
        "phase": "Active", "availableUSD": "19.25", "pendingUSD": "4.00", "spentUSD": "1.75", "grantsUSD": "23.25",
        "grantedUSD": "25.00", "purchasedUSD": "0.00",
        "monthToDate": {"month": "2026-02", "spentUSD": "0.25", "coveredUSD": "0.000000007"},
    }  # fmt: skip
    assert (await listed(api, f"{V1}/billingaccounts")) == [found]
    assert (await api.ok("GET", "/auth/whoami"))["availableUSD"] == "19.25"
    await api.fails(404, "NotFound", "GET", f"{V1}/billingaccounts/other")


async def test_prices_are_told_with_the_version_of_the_book(api: Api, services: Services) -> None:
    services.prices = PriceBook("2026.11+x", {"CPU": 40_000_000, "default": 0}, 1, {"m": Tokens(1, 2, 3 * NANO)})
    found = await api.ok("GET", f"{ACCOUNT}/prices")
    assert found["version"] == "2026.11+x"
    assert [(row["item"], row["priceUSD"], row["per"]) for row in found["prices"]] == [
        ("compute/CPU", "0.04", "hour"),
        ("compute/default", "0.00", "hour"),
        ("grading", "0.000000001", "hour"),
        ("tokens/m/input", "0.000000001", "million tokens"),
        ("tokens/m/cached-input", "0.000000002", "million tokens"),
        ("tokens/m/output", "3.00", "million tokens"),
        ("audio", "0.00", "hour"),
        ("speech", "0.00", "million characters"),
        ("routing", "0.00", "request"),
        ("storage", "0.00", "GiB and month"),
    ]
    await api.fails(404, "NotFound", "GET", f"{V1}/billingaccounts/other/prices")


async def test_an_owner_grants_once_by_reference(api: Api) -> None:
    body = {"amountUSD": "10.5", "note": "for the workshop", "reference": "workshop"}
    made = await api.ok("POST", f"{ACCOUNT}/grants", json=body)
    assert made["status"]["availableUSD"] == "35.50"
    assert made["grant"] == {"amountUSD": "10.50", "reference": "workshop", "added": True}
    again = await api.ok("POST", f"{ACCOUNT}/grants", json=body)
    assert (again["status"]["availableUSD"], again["grant"]["added"]) == ("35.50", False)
    refused = await api.fails(409, "Conflict", "POST", f"{ACCOUNT}/grants", json=body | {"amountUSD": "11"})
    assert refused["message"] == "the grant 'workshop' was $10.50, not $11.00"
    trail = await listed(api, f"{V1}/auditevents", fieldSelector="spec.object.kind=BillingAccount")
    assert [(item["spec"]["verb"], item["spec"]["object"]["subresource"]) for item in trail] == [("grant", "grants")]
    newest = (await listed(api, TRANSACTIONS))[0]
    assert (newest["description"], newest["balanceAfterUSD"]) == ("for the workshop", "35.50")


async def test_the_header_is_a_reference_too(api: Api) -> None:
    for _ in range(2):
        await api.ok("POST", f"{ACCOUNT}/grants", json={"amountUSD": "1"}, headers={"Idempotency-Key": "k"})
    assert (await api.ok("GET", ACCOUNT))["status"]["availableUSD"] == "26.00"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "amountUSD"),
        ({"amountUSD": 10}, "amountUSD"),
        ({"amountUSD": "-1"}, "amountUSD"),
        ({"amountUSD": "0.00"}, "amountUSD"),
        ({"amountUSD": "0.0000000001"}, "amountUSD"),
        ({"amountUSD": "999999999999"}, "amountUSD"),
        ({"amountUSD": "1", "note": 7}, "note"),
        ({"amountUSD": "1", "reference": "x" * 300}, "reference"),
        ({"amountUSD": "1", "reference": "a\0b"}, "reference"),
        ({"amountUSD": "1", "amount": "1"}, "amount"),
    ],
)
async def test_a_grant_that_is_none_is_refused(api: Api, body: dict[str, Any], field: str) -> None:
    refused = await api.fails(422, "Invalid", "POST", f"{ACCOUNT}/grants", json=body)
    assert field in [cause["field"] for cause in refused["details"]["causes"]]
    assert (await api.ok("GET", ACCOUNT))["status"]["availableUSD"] == "25.00"


async def test_only_an_owner_of_everything_grants(api: Api, put: Callable[..., Object], with_key: Any) -> None:
    for role in ("Admin", "Developer", "Viewer"):
        put(MEMBER.name, f"m-{role.lower()}", {"role": role})
        key = with_key("*", name=f"k-{role.lower()}", member=f"m-{role.lower()}")
        await key.fails(403, "Forbidden", "POST", f"{ACCOUNT}/grants", json={"amountUSD": "1"})
    narrow = with_key("*", name="narrow", projects=["default"])
    await narrow.fails(403, "Forbidden", "POST", f"{ACCOUNT}/grants", json={"amountUSD": "1"})
    unscoped = with_key("jobs:write", "*:read", name="unscoped")
    refused = await unscoped.fails(403, "Forbidden", "POST", f"{ACCOUNT}/grants", json={"amountUSD": "1"})
    assert refused["details"]["missingScope"] == "billingaccounts:write"
    assert (await api.ok("GET", ACCOUNT))["status"]["availableUSD"] == "25.00"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{ACCOUNT}/redemptions"), ("POST", f"{ACCOUNT}/sessions"), ("GET", f"{ACCOUNT}/deals"),
        ("POST", f"{V1}/topups"), ("GET", f"{V1}/topups"), ("PATCH", ACCOUNT),
    ],
)  # fmt: skip
async def test_what_needs_a_payment_provider_says_so(api: Api, method: str, path: str) -> None:
    headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
    refused = await api.fails(
        422, "Unsupported", method, path, headers=headers, **({} if method == "GET" else {"json": {}})
    )
    assert "no payment provider" in refused["message"]
    assert "nodus admin grant --amount" in refused["fix"]


# Usage ----------------------------------------------------------------------------------------------------------------


async def test_a_usage_record_is_a_charge(api: Api, put: Callable[..., Object], spend: Spend, clock: FakeClock) -> None:
    job = put("Job", "train")
    clock.advance(600)
    spend(job, 2 * CENT + 1, quantity=90_500_000)
    (found,) = await listed(api, USAGE)
    name = found["metadata"]["name"]
    assert found == {
        "apiVersion": "nodus.dev/v1", "kind": "UsageRecord",
        "metadata": {
            "name": name, "creationTimestamp": "2026-01-01T00:10:00Z",
            "resourceVersion": found["metadata"]["resourceVersion"],
        },
        "project": "default", "object": {"kind": "Job", "name": "train", "project": "default", "uid": job.uid},
        "meter": "ComputeSeconds", "segment": "Running", "offering": "local-cpu", "quantity": "90.5", "unit": "seconds",
        "amountUSD": "0.020000001", "periodStartTime": "2026-01-01T00:08:29Z", "periodEndTime": "2026-01-01T00:10:00Z",
        "pricebookVersion": "v1", "transaction": name.replace("usage", "transaction"),
    }  # fmt: skip
    assert await api.ok("GET", f"{USAGE}/{name}") == found
    capture = await api.ok("GET", f"{TRANSACTIONS}/{found['transaction']}")
    assert (capture["type"], capture["amountUSD"], capture["balanceAfterUSD"]) == (
        "Capture", "-0.020000001", "24.979999999"
    )  # fmt: skip
    table = await api.ok("GET", USAGE, headers=TABLE)
    assert table["rows"][0]["cells"][1:6] == ["job/train", "ComputeSeconds", "Running", "90.5", "$0.020000001"]
    for other in ("usage-999", "usage-1", "usage-x", "train", "usage-99999999999999999999"):
        await api.fails(404, "NotFound", "GET", f"{USAGE}/{other}")


async def test_what_nodus_covers_is_shown_and_not_charged(api: Api, put: Callable[..., Object], spend: Spend) -> None:
    spend(put("Job", "train"), 0, held=CENT, covered=3 * CENT, covered_quantity=2_000_000)
    (found,) = await listed(api, USAGE)
    assert (found["amountUSD"], found["coveredUSD"], found["quantity"]) == ("0.00", "0.03", "2")
    assert (await api.ok("GET", USAGE, params={"groupBy": "project"}))["coveredUSD"] == "0.03"
    assert (await api.ok("GET", ACCOUNT))["status"]["availableUSD"] == "25.00"


@pytest.fixture
async def spent(api: Api, put: Callable[..., Object], spend: Spend, clock: FakeClock) -> dict[str, Object]:
    """Two days of usage in two projects, by two members, on three meters."""
    put("Project", "other", {})
    ada, bob = {"nodus.dev/created-by": "usr_ada"}, {"nodus.dev/created-by": "usr_bob"}
    made = {
        "one": put("Job", "one", labels={**ada, "team": "nlp"}),
        "two": put("Job", "two", project="other", labels={**bob, "team": "cv"}),
        "box": put(SANDBOX.name, "box", labels=ada),
    }
    spend(made["one"], 1, quantity=1_000_000)
    spend(made["one"], 2, item="grading", quantity=250_000)
    spend(made["two"], 4, quantity=2_000_000, segment="boot")
    clock.advance(86_400)
    spend(made["box"], 8, quantity=4_000_000)
    spend(made["two"], 16, item="tokens/gpt/cached-input", unit="tokens", segment="", quantity=9)
    return made


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("project", [("default", "0.000000011"), ("other", "0.00000002")]),
        ("kind", [("Job", "0.000000023"), ("Sandbox", "0.000000008")]),
        ("object", [("job/one", "0.000000003"), ("job/two", "0.00000002"), ("sandbox/box", "0.000000008")]),
        (
            "meter",
            [
                ("CachedInputTokens", "0.000000016"), ("ComputeSeconds", "0.000000013"),
                ("GradingSeconds", "0.000000002"),
            ],
        ),
        ("day", [("2026-01-01", "0.000000007"), ("2026-01-02", "0.000000024")]),
        ("segment", [("", "0.000000016"), ("Boot", "0.000000004"), ("Running", "0.000000011")]),
        ("offering", [("", "0.000000002"), ("gpt", "0.000000016"), ("local-cpu", "0.000000013")]),
        ("member", [("usr_ada", "0.000000011"), ("usr_bob", "0.00000002")]),
        ("label:nodus.dev/created-by", [("usr_ada", "0.000000011"), ("usr_bob", "0.00000002")]),
        ("label:team", [("", "0.000000008"), ("cv", "0.00000002"), ("nlp", "0.000000003")]),
        ("rank", [("", "0.000000031")]),
        (
            "day,project",
            [
                ("2026-01-01", "default", "0.000000003"), ("2026-01-01", "other", "0.000000004"),
                ("2026-01-02", "default", "0.000000008"), ("2026-01-02", "other", "0.000000016"),
            ],
        ),
    ],
)  # fmt: skip
async def test_sums_are_exact(api: Api, spent: dict[str, Object], by: str, rows: list[tuple[Any, ...]]) -> None:
    assert await summed(api, by) == rows
    assert (await api.ok("GET", USAGE, params={"groupBy": by}))["totalUSD"] == "0.000000031"


async def test_a_quantity_is_of_one_unit(api: Api, spent: dict[str, Object]) -> None:
    rows = (await api.ok("GET", USAGE, params={"groupBy": "project"}))["rows"]
    assert [(row.get("quantity"), row.get("unit")) for row in rows] == [("5.25", "seconds"), (None, None)]
    rows = (await api.ok("GET", USAGE, params={"groupBy": "meter"}))["rows"]
    assert [(row["quantity"], row["unit"]) for row in rows] == [("9", "tokens"), ("7", "seconds"), ("0.25", "seconds")]


@pytest.mark.parametrize(
    ("query", "amounts"),
    [
        ({"since": "2026-01-02"}, [16, 8]),
        ({"until": "2026-01-02T00:00:00Z"}, [4, 2, 1]),
        ({"since": "23h"}, [16, 8]),
        ({"since": "1d", "until": "2026-01-01T12:00:00Z"}, [4, 2, 1]),
        ({"fieldSelector": "object.kind=Job,object.name=two"}, [16, 4]),
        ({"fieldSelector": "object.name=one"}, [2, 1]),
        ({"fieldSelector": "object.kind=Sandbox"}, [8]),
        ({"fieldSelector": "object.kind=Job,object.name=none"}, []),
        ({"fieldSelector": "meter=ComputeSeconds,project=default"}, [8, 1]),
        ({"fieldSelector": "segment!=Running"}, [16, 4]),
        ({"fieldSelector": "project in (other)"}, [16, 4]),
    ],
)
async def test_usage_is_selected(api: Api, spent: dict[str, Object], query: dict[str, str], amounts: list[int]) -> None:
    found = await listed(api, USAGE, **query)
    assert [round(float(item["amountUSD"]) * NANO) for item in found] == amounts
    if "fieldSelector" not in query or "segment" not in query["fieldSelector"]:
        total = (await api.ok("GET", USAGE, params={"groupBy": "meter", **query}))["totalUSD"]
        assert round(float(total) * NANO) == sum(amounts)


async def test_labels_and_names_outlive_their_object(
    api: Api, services: Services, spent: dict[str, Object], put: Callable[..., Object], spend: Spend
) -> None:
    services.store.write_sync(objects.delete, spent["one"])
    assert await summed(api, "object,label:team", fieldSelector="object.name=one") == [
        ("job/one", "nlp", "0.000000003")
    ]
    later = put("Job", "one", labels={"team": "new"})
    spend(later, 32)
    assert await summed(api, "label:team", fieldSelector="object.name=one") == [
        ("new", "0.000000032"), ("nlp", "0.000000003"),
    ]  # fmt: skip
    assert await summed(api, "object", fieldSelector=f"object.uid={later.uid}") == [("job/one", "0.000000032")]


async def test_very_many_objects_are_selected_after_reading(
    api: Api, spent: dict[str, Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(billing, "_MOST_OBJECTS", 0)
    uid = spent["two"].uid
    for selector in ("object.kind=Job,object.name=two", f"object.uid={uid}", f"object.uid in ({uid},x)"):
        assert await summed(api, "project", fieldSelector=selector) == [("other", "0.00000002")]
        assert [item["project"] for item in await listed(api, USAGE, fieldSelector=selector)] == ["other", "other"]


@pytest.mark.parametrize(
    "query",
    [
        {"groupBy": "colour"}, {"groupBy": "label:"}, {"groupBy": "project,project"}, {"since": "yesterday"},
        {"since": "9999999999d"}, {"until": "2026-13-01"}, {"fieldSelector": "metre=x"}, {"continue": "x"},
        {"groupBy": "project", "fieldSelector": "transaction=x"}, {"limit": "0"},
    ],
)  # fmt: skip
async def test_what_cannot_be_asked_is_refused(api: Api, query: dict[str, str]) -> None:
    await api.fails(400, "BadRequest", "GET", USAGE, params=query)


async def test_nothing_writes_or_watches_the_books(api: Api) -> None:
    for path in (USAGE, TRANSACTIONS, f"{V1}/billingaccounts"):
        await api.fails(405, "MethodNotAllowed", "POST", path, json={"metadata": {"name": "x"}})
        await api.fails(405, "MethodNotAllowed", "DELETE", f"{path}/default")
        await api.fails(405, "MethodNotAllowed", "GET", path, params={"watch": "true"})


# Transactions ---------------------------------------------------------------------------------------------------------


async def test_transactions_have_the_balance_after_each(api: Api, put: Callable[..., Object], spend: Spend) -> None:
    job = put("Job", "train")
    spend(job, 5 * NANO, held=8 * NANO)
    await api.ok("POST", f"{ACCOUNT}/grants", json={"amountUSD": "10"})
    spend(job, 1)
    lines = await listed(api, TRANSACTIONS)
    assert [(line["type"], line["amountUSD"], line["balanceAfterUSD"]) for line in lines] == [
        ("Capture", "-0.000000001", "29.999999999"), ("Grant", "10.00", "30.00"), ("Capture", "-5.00", "20.00"),
        ("Grant", "25.00", "25.00"),
    ]  # fmt: skip
    assert lines[0]["reference"] == {"kind": "Job", "name": "train", "project": "default", "uid": job.uid}
    grants = await listed(api, TRANSACTIONS, fieldSelector="type=Grant")
    assert [line["balanceAfterUSD"] for line in grants] == ["30.00", "25.00"]
    held = await listed(api, TRANSACTIONS, fieldSelector="type in (Hold,Release)")
    assert [(line["type"], line["amountUSD"], line["balanceAfterUSD"]) for line in held] == [
        ("Hold", "0.000000001", "30.00"), ("Release", "3.00", "20.00"), ("Hold", "8.00", "25.00"),
    ]  # fmt: skip
    assert await listed(api, TRANSACTIONS, fieldSelector="reference.name=other") == []


async def test_pages_neither_repeat_nor_miss(api: Api, put: Callable[..., Object], spend: Spend) -> None:
    job = put("Job", "train")
    for amount in range(1, 8):
        spend(job, amount)
    for path in (USAGE, TRANSACTIONS):
        whole = await listed(api, path)
        found: list[dict[str, Any]] = []
        query: dict[str, str] = {"limit": "3"}
        while True:
            page = await api.ok("GET", path, params=query)
            found += page["items"]
            if "continue" not in page["metadata"]:
                break
            query["continue"] = page["metadata"]["continue"]
            spend(job, 100)  # what is new shows on no later page
        assert found == whole


# Whoever may see what -------------------------------------------------------------------------------------------------


async def test_a_key_of_one_project_sees_its_lines_and_no_balance(
    api: Api, spent: dict[str, Object], with_key: Any
) -> None:
    key = with_key("*", name="narrow", projects=["other"])
    assert [item["object"]["name"] for item in await listed(key, USAGE)] == ["two", "two"]
    assert await summed(key, "project") == [("other", "0.00000002")]
    assert await summed(key, "project", fieldSelector="project=default") == []
    lines = await listed(key, TRANSACTIONS)
    assert [line["type"] for line in lines] == ["Capture", "Capture"]
    assert not any("balanceAfterUSD" in line for line in lines)
    assert (await key.ok("GET", ACCOUNT))["status"] == {"phase": "Active", "availableUSD": "24.999999969"}
    theirs = next(item for item in await listed(api, USAGE) if item["project"] == "default")
    await key.fails(404, "NotFound", "GET", f"{USAGE}/{theirs['metadata']['name']}")
    await key.fails(404, "NotFound", "GET", f"{TRANSACTIONS}/{theirs['transaction']}")
    await key.fails(404, "NotFound", "GET", f"{TRANSACTIONS}/transaction-1")


async def test_every_role_reads_and_an_attempt_does_not(
    put: Callable[..., Object], spent: dict[str, Object], with_key: Any, attempt: Api
) -> None:
    for role in ("Owner", "Admin", "Developer", "Viewer"):
        put(MEMBER.name, f"m-{role.lower()}", {"role": role})
        key = with_key("*", name=f"k-{role.lower()}", member=f"m-{role.lower()}")
        assert len(await listed(key, USAGE)) == 5
        assert len(await listed(key, TRANSACTIONS)) == 6
        assert (await key.ok("GET", ACCOUNT))["status"]["grantedUSD"] == "25.00"
    for path in (USAGE, TRANSACTIONS, ACCOUNT, f"{V1}/budgets"):
        await attempt.fails(403, "Forbidden", "GET", path)
    scoped = with_key("jobs:read", name="scoped")
    refused = await scoped.fails(403, "Forbidden", "GET", USAGE)
    assert refused["details"]["missingScope"] == "usagerecords:read"
    assert BUDGET.scope == "Org"
