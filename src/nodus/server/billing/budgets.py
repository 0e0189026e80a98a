"""Which Budgets count what, in which period, and what a Budget says of itself. Pure, but for :func:`rules`.

A Budget counts in a row of the ledger's limits for each of its periods. Rows of periods to come are made by the first
hold in them, with the limit that the Budget has then; the row of the period that runs is changed together with the
Budget (:func:`nodus.server.kinds.billing.BudgetAdmission.stored`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nodus.core.kinds.billing import DEFAULT_THRESHOLDS
from nodus.core.money import MAX_NANOS, format_usd, parse_usd
from nodus.server.store import budgets
from nodus.server.store.codec import loads
from nodus.server.store.limits import Counted, Limit

if TYPE_CHECKING:
    from sqlalchemy import Connection

MOST_OVERLAPPING = 50
"""Budgets that may count the same thing; a hold stands under so many limits at most, and some are no Budgets."""
THRESHOLD = "BudgetThreshold"
"""Reason of the Event that tells of one."""
CREATED_BY = "nodus.dev/created-by"
"""Label of an object that says who made it; the server sets it and nobody changes it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a Budget counts, and to what."""

    uid: str
    name: str
    amount: int
    """``spec.limitUSD`` in nano-dollars."""
    monthly: bool
    blocks: bool
    percents: tuple[int, ...]
    """Of the amount; worth an Event when so much is spent."""
    project: str | None
    labels: tuple[tuple[str, str], ...]
    """All of these an object must have."""

    def counts(self, project: str | None, labels: Mapping[str, str]) -> bool:
        """Tell whether it counts what an object of a project with these labels spends."""
        if self.project is not None and self.project != project:
            return False
        return all(labels.get(key) == value for key, value in self.labels)

    def overlaps(self, other: Rule) -> bool:
        """Tell whether something could be counted by both."""
        if None not in (self.project, other.project) and self.project != other.project:
            return False
        mine, theirs = dict(self.labels), dict(other.labels)
        return all(theirs.get(key, value) == value for key, value in mine.items())

    def period(self, now: datetime) -> str:
        """Return the period that a moment is in: the month in UTC, or empty for all time."""
        return month_of(now) if self.monthly else ""

    @property
    def thresholds(self) -> tuple[int, ...]:
        """The percentages as nano-dollars, each rounded up; none of zero, nor of what can't be counted."""
        amounts = (-(-self.amount * percent // 100) for percent in self.percents)
        return tuple(amount for amount in amounts if 0 < amount <= MAX_NANOS)

    def limit(self, now: datetime) -> Limit:
        """Return the limit that stands for it at a moment."""
        cap = self.amount if self.blocks else None
        return Limit("Budget", self.uid, self.name, cap, self.period(now), self.thresholds)


def month_of(now: datetime) -> str:
    """Return the month that a moment is in, in UTC, such as ``2026-11``."""
    return now.astimezone(UTC).strftime("%Y-%m")


def rule_of(uid: str, name: str, spec: Mapping[str, Any]) -> Rule:
    """Return the rule of a Budget that was admitted."""
    scope = spec.get("scope") or {}
    labels = dict((scope.get("selector") or {}).get("matchLabels") or {})
    pairs = list(labels.items())
    if scope.get("member"):
        pairs.append((CREATED_BY, f"usr_{scope['member']}"))
    return Rule(
        uid=uid,
        name=name,
        amount=parse_usd(spec["limitUSD"]),
        monthly=spec.get("period", "Monthly") == "Monthly",
        blocks=spec.get("action", "Block") == "Block",
        percents=tuple(spec.get("thresholds", DEFAULT_THRESHOLDS)),
        project=scope.get("project"),
        labels=tuple(pairs),
    )


def rules(conn: Connection) -> list[Rule]:
    """Return the rules of all Budgets, by name."""
    return [_rule(*row) for row in budgets.every(conn)]


@lru_cache(maxsize=1024)
def _rule(uid: str, name: str, spec: str) -> Rule:
    return rule_of(uid, name, loads(spec))


def status_of(rule: Rule, counted: Counted | None, now: datetime) -> dict[str, Any]:
    """Return what a Budget's status says of its amounts; absent fields are left out.

    Args:
        rule: of the Budget.
        counted: what its limit of this period has counted; None where nothing ever did.
        now: the time.
    """
    spent, held = (0, 0) if counted is None else (counted.spent, counted.held)
    remaining = max(rule.amount - spent - held, 0)
    found: dict[str, Any] = {
        "phase": "Active" if remaining else "Exhausted",
        "spentUSD": format_usd(spent),
        "heldUSD": format_usd(held),
        "remainingUSD": format_usd(remaining),
        "percentUsed": percent_of(spent, rule.amount),
    }
    return {**found, "period": rule.period(now)} if rule.monthly else found


def percent_of(spent: int, amount: int) -> int:
    """Return what was spent in percent of an amount, rounded down; of nothing, everything."""
    return spent * 100 // amount if amount else 100


def reached(rule: Rule, spent: int) -> list[int]:
    """Return the percentages that were reached."""
    return [percent for percent in rule.percents if spent * 100 >= rule.amount * percent and spent]


def told(status: Mapping[str, Any], period: str) -> list[int]:
    """Return the percentages that a Budget's stored status says were told in a period."""
    return list(status.get("thresholdsReached") or []) if status.get("period", "") == period else []


def untold(rule: Rule, status: Mapping[str, Any], counted: Counted | None) -> list[int]:
    """Return the percentages that were reached in a period and are not told yet."""
    if counted is None:
        return []
    known = told(status, counted.period)
    return [percent for percent in reached(rule, counted.spent) if percent not in known]


def told_of(rule: Rule, percent: int, period: str) -> str:
    """Return what an Event says of a threshold that was reached."""
    return f"{percent}% of ${format_usd(rule.amount)} is spent{f' in {period}' if period else ''}"
