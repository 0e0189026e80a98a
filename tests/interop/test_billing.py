"""Credits, Budgets, usage and transactions with the published client."""

from __future__ import annotations

import json

import pytest

from tests.interop.conftest import Desk, cells

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]


def test_billing_sums_up_the_account(desk: Desk, ours: Desk) -> None:
    before = json.loads(ours.ok("nodus billing -o json"))["status"]["availableUSD"]
    shown = desk.ok("nodus billing")
    assert f"${before}" in shown.splitlines()[0]
    assert "$0.00" in shown.splitlines()[1]
    for _ in range(2):
        ours.ok("nodus admin grant --amount 10 --idempotency-key interop --note 'for the test'")
    after = json.loads(ours.ok("nodus billing -o json"))["status"]["availableUSD"]
    assert float(after) == float(before) + 10
    assert f"${after}" in desk.ok("nodus whoami")
    newest = cells(desk.ok("nodus get transactions --type Grant --since 1d -o wide"))[1]
    assert newest[1:4] == ["Grant", "$10.00", f"${after}"]
    assert newest[-1] == "for the test"


def test_budgets_of_projects_and_members(desk: Desk, ours: Desk) -> None:
    ours.ok("nodus create member ada --email ada@example.com")
    desk.ok("nodus create budget research --limit 2000 --period Monthly --scope-project default")
    desk.ok("nodus create budget ada --limit 300 --scope-member ada@example.com --action Notify")
    _, *rows = cells(desk.ok("nodus get budgets"))
    assert [row[:8] for row in rows] == [
        ["ada", "member=ada", "Monthly", "$300", "$0.00", "$0.00", "0%", "Notify"],
        ["research", "project=default", "Monthly", "$2000", "$0.00", "$0.00", "0%", "Block"],
    ]
    assert "budget " in desk.ok("nodus billing")
    desk.ok("""nodus patch budget/research --patch '{"spec":{"limitUSD":"1999"}}'""")
    assert desk.ok("nodus get budget/research -o jsonpath='{.status.remainingUSD}'") == "1999.00"
    assert "Invalid" in desk.fails("nodus create budget none --scope-project default")
    desk.ok("nodus delete budget/research budget/ada")
    ours.ok("nodus delete member/ada")


def test_usage_is_listed_and_summed(desk: Desk) -> None:
    assert desk.ok("nodus get usage --until 2020-01-01") == ""
    for keys in ("project", "member,label:team", "day,meter,segment,offering,rank,kind"):
        desk.ok(f"nodus get usage --group-by {keys} --since 30d")
    assert desk.ok("nodus billing usage --group-by project -o csv").splitlines()[0] == "PROJECT,QUANTITY,AMOUNT"
    assert "BadRequest" in desk.fails("nodus get usage --field-selector metre=x")


@pytest.mark.parametrize(
    "command",
    ["top-up 20 --no-open --no-wait", "redeem LAUNCH25", "receipts", "portal --print", "auto-recharge --off", "deal"],
)
def test_what_needs_a_payment_provider_says_how_credits_are_added(desk: Desk, command: str) -> None:
    said = desk.fails(f"nodus billing {command}")
    assert "Unsupported" in said
    assert "nodus admin grant --amount" in said
