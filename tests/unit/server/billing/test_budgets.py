"""Budgets: what each counts, in which month, what it says of itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from nodus.core.money import MAX_NANOS, NANO
from nodus.server.billing.budgets import CREATED_BY, month_of, percent_of, reached, rule_of, status_of
from nodus.server.store.limits import Counted, Limit

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ADA = {CREATED_BY: "usr_ada", "team": "nlp"}


def rule(scope: dict[str, Any] | None = None, **spec: Any) -> Any:
    return rule_of("b-1", "research", {"limitUSD": "20.00", **({"scope": scope} if scope else {}), **spec})


@pytest.mark.parametrize(
    ("scope", "counts"),
    [
        (None, True),
        ({"project": "default"}, True),
        ({"project": "other"}, False),
        ({"member": "ada"}, True),
        ({"member": "bob"}, False),
        ({"selector": {"matchLabels": {"team": "nlp"}}}, True),
        ({"selector": {"matchLabels": {"team": "nlp", "stage": "x"}}}, False),
        ({"selector": {"matchLabels": {CREATED_BY: "usr_ada"}}}, True),
        ({"project": "default", "member": "ada", "selector": {"matchLabels": {"team": "nlp"}}}, True),
        ({"project": "other", "member": "ada"}, False),
        ({"project": "default", "member": "bob"}, False),
        ({"member": "ada", "selector": {"matchLabels": {"team": "cv"}}}, False),
    ],
)
def test_a_budget_counts_what_fits_all_of_its_scope(scope: dict[str, Any] | None, counts: bool) -> None:
    assert rule(scope).counts("default", ADA) is counts


def test_a_member_and_a_selector_of_another_one_fit_nobody() -> None:
    both = rule({"member": "ada", "selector": {"matchLabels": {CREATED_BY: "usr_bob"}}})
    assert not both.counts("default", ADA)
    assert not both.counts("default", {CREATED_BY: "usr_bob"})


NLP, CV = ({"selector": {"matchLabels": {"team": team}}} for team in ("nlp", "cv"))


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (None, {"project": "a"}, True),
        ({"project": "a"}, {"project": "a"}, True),
        ({"project": "a"}, {"project": "b"}, False),
        ({"project": "a"}, {"member": "ada"}, True),
        ({"member": "ada"}, {"member": "bob"}, False),
        (NLP, {"member": "ada"}, True),
        (NLP, CV, False),
        ({"project": "a", **NLP}, {"project": "a", "member": "ada", **NLP}, True),
    ],
)
def test_budgets_overlap_where_one_thing_could_fit_both(
    one: dict[str, Any] | None, other: dict[str, Any] | None, overlap: bool
) -> None:
    assert rule(one).overlaps(rule(other)) is rule(other).overlaps(rule(one)) is overlap


@pytest.mark.parametrize(
    ("moment", "month"),
    [
        (datetime(2026, 11, 30, 23, 59, 59, 999_999, tzinfo=UTC), "2026-11"),
        (datetime(2026, 12, 1, tzinfo=UTC), "2026-12"),
        (datetime(2026, 12, 31, 23, 59, tzinfo=UTC), "2026-12"),
        (datetime(2027, 1, 1, tzinfo=UTC), "2027-01"),
        (datetime(2028, 2, 29, 23, tzinfo=UTC), "2028-02"),
        # Midnight of a place is not the month's end.
        (datetime(2026, 12, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2026-11"),
        (datetime(2026, 11, 30, 23, tzinfo=timezone(timedelta(hours=-5))), "2026-12"),
    ],
)
def test_months_end_at_midnight_utc(moment: datetime, month: str) -> None:
    assert month_of(moment) == month
    assert rule().limit(moment).period == month
    assert rule(period="Total").limit(moment).period == ""


def test_what_blocks_has_a_cap_and_what_notifies_has_none() -> None:
    thresholds = (10 * NANO, 16 * NANO, 20 * NANO)
    assert rule().limit(NOW) == Limit("Budget", "b-1", "research", 20 * NANO, "2026-11", thresholds)
    assert rule(action="Notify").limit(NOW).cap is None
    assert rule(action="Notify").limit(NOW).thresholds == thresholds


def test_thresholds_are_rounded_up_and_can_be_counted() -> None:
    assert rule(limitUSD="0.000000001", thresholds=[50]).thresholds == (1,)
    assert rule(limitUSD="0.00").thresholds == ()
    most = rule(limitUSD="9000000000.00", thresholds=[100, 200])
    assert most.thresholds == (MAX_NANOS,)


def counted(spent: int, held: int = 0) -> Counted:
    return Counted("Budget", "b-1", "2026-11", "research", 20 * NANO, held, spent, 0)


def test_a_status_is_exact_and_never_below_zero() -> None:
    assert status_of(rule(), None, NOW) == {
        "phase": "Active", "period": "2026-11", "spentUSD": "0.00", "heldUSD": "0.00", "remainingUSD": "20.00",
        "percentUsed": 0,
    }  # fmt: skip
    almost = status_of(rule(), counted(20 * NANO - 1), NOW)
    assert (almost["remainingUSD"], almost["percentUsed"], almost["phase"]) == ("0.000000001", 99, "Active")
    over = status_of(rule(period="Total"), counted(15 * NANO, 10 * NANO), NOW)
    assert (over["remainingUSD"], over["percentUsed"], over["phase"]) == ("0.00", 75, "Exhausted")
    assert "period" not in over
    assert status_of(rule(limitUSD="0.00"), None, NOW)["phase"] == "Exhausted"


def test_percentages_are_rounded_down_and_told_once_they_are_full() -> None:
    assert [percent_of(spent, 3) for spent in (0, 1, 2, 3, 4)] == [0, 33, 66, 100, 133]
    assert reached(rule(), 0) == []
    assert reached(rule(), 10 * NANO - 1) == []
    assert reached(rule(), 10 * NANO) == [50]
    assert reached(rule(), 25 * NANO) == [50, 80, 100]
