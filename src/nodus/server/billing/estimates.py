"""What a plan costs: the rate of its share of a machine, its time at that rate, the first hold, and what is in the way.

Pure. Money is integer nano-dollars and times are integer microseconds throughout; :meth:`Quote.to_wire` makes the part
of ``status.estimate`` that is about money.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from nodus.core.clock import rfc3339
from nodus.core.money import format_usd, parse_usd
from nodus.core.sizes import exact_quantity
from nodus.server.billing import funding
from nodus.server.billing.funding import PACE, Pace
from nodus.server.billing.metering import amount_of, rate_of
from nodus.server.billing.pricebook import DEFAULT, PriceBook
from nodus.server.training.resources import Notice, Shape

if TYPE_CHECKING:
    from nodus.server.store.limits import Counted

VALID_FOR = timedelta(minutes=15)
SECOND_US = 1_000_000
OF_MONEY = ("InsufficientCredits", "BudgetExceeded")
"""Blocking reasons that say what money is left now, which is no part of a plan."""
_BOUND = (
    "rateUSDPerHour", "holdUSD", "gangHoldUSD", "concurrentHoldUSD", "placementPreview", "topology", "pricebookVersion",
)  # fmt: skip


class Times(NamedTuple):
    """How long a run takes, in microseconds; or what that costs."""

    p50: int
    p90: int


NOTHING = Times(0, 0)


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a plan is priced."""

    prices: PriceBook
    now: datetime
    pace: Pace = PACE
    """How far ahead runs are funded."""
    limits: Callable[[], Iterable[Counted]] = tuple
    """Reads the credits and Budgets that its holds stand under, its own cap left out; not asked for what is free."""


@dataclass(frozen=True, slots=True)
class Quote:
    """The money of a plan.

    Attributes:
        rate: Nano-dollars an hour of one of its members.
        times: How long each member runs; None when nobody knows.
        cap: Its ``maxCostUSD`` in nano-dollars; None without one.
        members: How many are run in all.
        at_once: How many of them at the same time.
        gang: Whether they only run together.
        pace: How far ahead they are funded.
        startup_us: Time of each that is spent before its work begins, where it was measured; within ``times``.
        grading: Nano-dollars that its graders cost, on top of the rest.
    """

    rate: int
    times: Times | None
    cap: int | None = None
    members: int = 1
    at_once: int = 1
    gang: bool = False
    pace: Pace = PACE
    startup_us: int = 0
    grading: Times = NOTHING

    @property
    def cost(self) -> Times | None:
        """Nano-dollars to completion; None when the time is not known and something costs."""
        times = self.times if self.rate else NOTHING
        if times is None:
            return None
        compute = [amount_of(self.rate, time_us) * self.members for time_us in times]
        return Times(*map(sum, zip(compute, self.grading, strict=True)))

    def first_hold(self) -> funding.Wanted:
        """Return what is held before the first member begins, at most the cap."""
        opening = funding.opening(self.rate, self.pace) if self.rate else funding.Wanted(0, 0)
        return opening if self.cap is None else opening._replace(amount=min(opening.amount, self.cap))

    def to_wire(self) -> dict[str, Any]:
        """Return the parts of an estimate that are about money."""
        hold = self.first_hold()
        held = format_usd(hold.amount)
        wire: dict[str, Any] = {"rateUSDPerHour": format_usd(self.rate), "holdUSD": held}
        if self.gang:
            wire["gangHoldUSD"] = held
        if self.members > 1:
            together = hold.amount * self.at_once
            wire["concurrentHoldUSD"] = format_usd(together if self.cap is None else min(together, self.cap))
        if self.cost is not None:
            wire["costUSD"] = {name: format_usd(amount) for name, amount in self.cost._asdict().items()}
        overhead = {}
        if self.startup_us:
            overhead["startup"] = format_usd(amount_of(self.rate, self.startup_us) * self.members)
        if self.grading.p50:
            overhead["grading"] = format_usd(self.grading.p50)
        return wire | ({"overheadUSD": overhead} if overhead else {})

    def warnings(self) -> Iterator[Notice]:
        """Yield what is to be known of the cost."""
        if self.cost is None:
            rate = format_usd(self.rate)
            message = f"how long it runs is not known, so neither is its cost; it costs ${rate} an hour"
            yield Notice("DurationUnknown", message, "set spec.expectedDuration")
        elif self.cap is not None and self.cost.p50 > self.cap:
            cost, cap = format_usd(self.cost.p50), format_usd(self.cap)
            message = f"it costs about ${cost} and would be suspended at spec.maxCostUSD of ${cap}"
            yield Notice("MaxCostBelowEstimate", message, "raise spec.maxCostUSD; a suspended run can go on later, too")

    def blocking(self, limits: Callable[[], Iterable[Counted]]) -> Iterator[Notice]:
        """Yield what money is in the way of a start, under its own cap and under limits that others share."""
        if not self.rate:
            return
        hold = self.first_hold()
        least = format_usd(hold.least)
        if self.cap is not None and self.cap < hold.least:
            cap = format_usd(self.cap)
            message = f"spec.maxCostUSD of ${cap} is less than the ${least} that a run is started with"
            yield Notice("MaxCostTooLow", message, f"set spec.maxCostUSD to {least} or more")
        for limit in limits():
            if limit.left is not None and limit.left < hold.least:
                yield _lacking(limit, hold)


def _lacking(limit: Counted, hold: funding.Wanted) -> Notice:
    left, least = format_usd(limit.left or 0), format_usd(hold.least)
    if limit.kind == "Credits":
        message = f"${left} of credits is left and ${least} is needed to start"
        fix = f"add credits: nodus admin grant --amount {format_usd(max(hold.amount - (limit.left or 0), 0))} (or more)"
        return Notice("InsufficientCredits", message, fix)
    cap = format_usd(limit.cap or 0)
    message = f"the Budget {limit.name!r} has ${left} of ${cap} left and ${least} is needed to start"
    return Notice("BudgetExceeded", message, f"raise its spec.limitUSD: nodus edit budget/{limit.name}")


@lru_cache(maxsize=1024)
def share_of(shape: Shape, cpu: Any, gpus: int) -> Fraction:
    """Return which part of a machine is paid for: its accelerators where a run has some, its cores otherwise.

    Args:
        shape: The machine.
        cpu: Cores as a quantity, such as ``2`` or ``500m``.
        gpus: Accelerators, 0 for none.
    """
    if gpus and shape.accelerators:
        share = Fraction(gpus, shape.accelerators)
    else:
        share = exact_quantity(cpu) / Fraction(shape.cpu)
    return min(share, Fraction(1))


@lru_cache(maxsize=1024)
def rate_for(shape: Shape, cpu: Any, gpus: int) -> int:
    """Return nano-dollars an hour of a run's share of a machine; see :func:`share_of`."""
    return rate_of(shape.price, share_of(shape, cpu, gpus))


def rate_by_book(prices: PriceBook, families: Iterable[str], cpu: Any, gpus: int) -> int:
    """Return nano-dollars an hour of what no machine here has, by the dearest accelerator that would do.

    Args:
        prices: The price book.
        families: The accelerators that would do; none means any.
        cpu: Cores as a quantity.
        gpus: Accelerators, 0 for none.
    """
    if not gpus:
        return rate_of(prices.hour_of(None), exact_quantity(cpu))
    return gpus * max((prices.hour_of(family) for family in families), default=prices.compute[DEFAULT])


def cap_of(spec: Mapping[str, Any]) -> int | None:
    """Return ``spec.maxCostUSD`` in nano-dollars."""
    cap = spec.get("maxCostUSD")
    return None if cap is None else parse_usd(cap)


def validity(terms: Terms) -> dict[str, str]:
    """Return on what prices an estimate rests, and how long it is a promise."""
    return {"pricebookVersion": terms.prices.version, "validUntil": rfc3339(terms.now + VALID_FOR)}


def binding(estimate: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of an estimate an ETag stands for: price, capacity and what is held, but neither the time nor money.

    What is measured, spent or granted between a dry run and the create does not change what was agreed to.
    """
    blocking = [reason["code"] for reason in estimate.get("blockingReasons") or () if reason["code"] not in OF_MONEY]
    return {**{name: estimate[name] for name in _BOUND if name in estimate}, "blocking": sorted(blocking)}
