"""What a plan costs: exactly its rate times its time, never less for more of it."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodus.core.money import parse_usd
from nodus.server.billing import funding
from nodus.server.billing.estimates import (
    Quote,
    Terms,
    Times,
    binding,
    rate_by_book,
    rate_for,
    share_of,
    validity,
)
from nodus.server.billing.metering import HOUR_US
from nodus.server.billing.pricebook import PriceBook
from nodus.server.store.limits import Counted
from nodus.server.training.resources import Shape

CPU = Shape("local-cpu", 3, 1 << 34, price=100)
L40S = Shape("local-l40s-x8", 64, 1 << 38, "L40S", 8, 8_000_000_000)
BOOK = PriceBook("2026.11", {"CPU": 7, "default": 5, "H100": 2_500_000_000}, 0)
RATES = st.integers(1, 100_000_000_000)
TIMES = st.integers(0, 400 * 24 * HOUR_US)


def credits(left: int) -> Counted:
    return Counted("Credits", "org", "", "credits", cap=left, held=0, spent=0, covered=0)


def budget(left: int) -> Counted:
    return Counted("Budget", "uid", "2026-11", "team", cap=left + 5, held=3, spent=2, covered=0)


# The share of a machine -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "cpu", "gpus", "share"),
    [
        (CPU, 1, 0, Fraction(1, 3)),
        (CPU, "500m", 0, Fraction(1, 6)),
        (CPU, "0.1", 0, Fraction(1, 30)),
        (CPU, 99, 0, Fraction(1)),
        (L40S, 1, 2, Fraction(1, 4)),
        (L40S, 16, 0, Fraction(1, 4)),
    ],
)
def test_a_run_pays_for_its_accelerators_or_its_cores(shape: Shape, cpu: Any, gpus: int, share: Fraction) -> None:
    assert share_of(shape, cpu, gpus) == share
    assert rate_for(shape, cpu, gpus) == -(-(shape.price * share).numerator // (shape.price * share).denominator)


def test_what_is_not_here_costs_what_the_book_says() -> None:
    assert rate_by_book(BOOK, ["L40S", "H100"], 1, 2) == 5_000_000_000
    assert rate_by_book(BOOK, [], 1, 2) == 10
    assert rate_by_book(BOOK, [], "1500m", 0) == 11


# Cost ---------------------------------------------------------------------------------------------------------------


@given(RATES, TIMES, st.integers(0, HOUR_US), st.integers(1, 50))
def test_more_time_or_more_members_never_cost_less(rate: int, time_us: int, more_us: int, members: int) -> None:
    def cost(time: int, count: int) -> int:
        found = Quote(rate, Times(time, time), members=count).cost
        assert found is not None
        return found.p50

    assert cost(time_us, members) <= cost(time_us + more_us, members) <= cost(time_us + more_us, members + 1)
    assert cost(time_us, members) == members * cost(time_us, 1)


@given(RATES, TIMES)
def test_the_cost_is_exact(rate: int, time_us: int) -> None:
    found = Quote(rate, Times(time_us, time_us)).to_wire()["costUSD"]["p50"]
    exact = Fraction(rate * time_us, HOUR_US)
    assert 0 <= parse_usd(found) - exact < 1


def test_the_first_slice_is_held_and_never_more_than_the_cap() -> None:
    rate = 6_000_000_000
    wire = Quote(rate, None, members=20, at_once=3).to_wire()
    assert wire["holdUSD"] == "1.00"
    assert wire["concurrentHoldUSD"] == "3.00"
    assert "costUSD" not in wire and "gangHoldUSD" not in wire
    capped = Quote(rate, None, cap=400_000_000, members=20, at_once=3, gang=True).to_wire()
    assert (capped["holdUSD"], capped["gangHoldUSD"], capped["concurrentHoldUSD"]) == ("0.40", "0.40", "0.40")


def test_what_is_free_costs_nothing_whatever_the_time() -> None:
    quote = Quote(0, None, cap=0)
    wire = quote.to_wire()
    assert wire["costUSD"] == {"p50": "0.00", "p90": "0.00"}
    assert (wire["holdUSD"], wire["rateUSDPerHour"]) == ("0.00", "0.00")
    assert [*quote.warnings(), *quote.blocking(lambda: [credits(0), budget(0)])] == []


def test_the_measured_start_is_a_part_of_the_cost() -> None:
    wire = Quote(HOUR_US, Times(10, 15), startup_us=4).to_wire()
    assert (wire["costUSD"]["p50"], wire["overheadUSD"]) == ("0.00000001", {"startup": "0.000000004"})


# What is in the way -----------------------------------------------------------------------------------------------


def test_unknown_time_of_what_costs_is_said_with_the_fix() -> None:
    (notice,) = Quote(2_500_000_000, None).warnings()
    assert (notice.code, notice.fix) == ("DurationUnknown", "set spec.expectedDuration")
    assert "$2.50 an hour" in notice.message


def test_cap_below_the_estimate_warns_and_below_a_start_blocks() -> None:
    rate = 6_000_000_000
    (notice,) = Quote(rate, Times(HOUR_US, HOUR_US), cap=3_000_000_000).warnings()
    assert notice.code == "MaxCostBelowEstimate" and "$6.00" in notice.message and "$3.00" in notice.message
    least = funding.opening(rate).least
    assert list(Quote(rate, None, cap=least).blocking(list)) == []
    (blocked,) = Quote(rate, None, cap=least - 1).blocking(list)
    assert blocked.code == "MaxCostTooLow"
    assert "$0.149999999 is less than the $0.15" in blocked.message and "0.15 or more" in blocked.fix


def test_credits_and_budgets_block_with_amounts() -> None:
    quote = Quote(6_000_000_000, None)
    least = funding.opening(quote.rate).least
    assert list(quote.blocking(lambda: [credits(least), budget(least)])) == []
    poor, spent = quote.blocking(lambda: [credits(10_000_000), budget(20_000_000)])
    assert (poor.code, spent.code) == ("InsufficientCredits", "BudgetExceeded")
    assert poor.message == "$0.01 of credits is left and $0.15 is needed to start"
    assert "nodus admin grant --amount 0.99" in poor.fix
    assert spent.message == "the Budget 'team' has $0.02 of $0.020000005 left and $0.15 is needed to start"


def test_notify_budgets_block_nothing() -> None:
    told = Counted("Budget", "uid", "", "team", cap=None, held=3, spent=2, covered=0)
    assert list(Quote(6_000_000_000, None).blocking(lambda: [told])) == []


# What an ETag stands for --------------------------------------------------------------------------------------------


def test_prices_and_machines_bind_and_time_and_money_do_not() -> None:
    terms = Terms(BOOK, datetime(2026, 11, 30, 12, tzinfo=UTC))
    assert validity(terms) == {"pricebookVersion": "2026.11", "validUntil": "2026-11-30T12:15:00Z"}
    estimate: dict[str, Any] = {
        "rateUSDPerHour": "1.00", "placementPreview": {"offering": "a"}, "blockingReasons": [], **validity(terms),
    }  # fmt: skip
    same: list[dict[str, Any]] = [
        {"validUntil": "2027-01-01T00:00:00Z"},
        {"costUSD": {"p50": "9.00", "p90": "9.00"}, "measured": {"runs": 3}},
        {"blockingReasons": [{"code": "InsufficientCredits", "message": "none"}]},
        {"warnings": [{"code": "MissesCompleteByTime", "message": "late"}]},
    ]
    other: list[dict[str, Any]] = [
        {"rateUSDPerHour": "2.00"},
        {"placementPreview": {"offering": "b"}},
        {"pricebookVersion": "2026.12"},
        {"blockingReasons": [{"code": "ResourcesUnavailable", "message": "none"}]},
    ]
    assert all(binding({**estimate, **change}) == binding(estimate) for change in same)
    assert all(binding({**estimate, **change}) != binding(estimate) for change in other)
