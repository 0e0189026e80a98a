"""Budgets: their status for those who watch, and an Event for each threshold that was reached, once a period.

::

    Active --nothing is left--> Exhausted
    Exhausted --the limit is raised, money comes back, a month begins--> Active

What a Budget refuses is decided where money is held; nothing here is needed for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from nodus.core.kinds import BUDGET
from nodus.core.money import format_usd
from nodus.server.billing import budgets
from nodus.server.controllers.runtime import NOTHING, ActionResult, BaseController, EventNote, Outcome
from nodus.server.store import limits
from nodus.server.store.codec import from_us
from nodus.server.store.context import now_us

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.limits import Counted
    from nodus.server.store.objects import Object

LOOK_S = 5.0
"""What is spent changes no Budget, so each is looked at this often."""


@dataclass(frozen=True, slots=True)
class Context:
    """A Budget and what it has counted in the period that runs."""

    obj: Object
    counted: Counted | None
    result: ActionResult | None = None


class BudgetController(BaseController):
    """Keeps the status of Budgets and tells of their thresholds."""

    kind = BUDGET

    def load(self, conn: Connection, obj: Object) -> Context:
        """Read what it has counted."""
        rule = budgets.rule_of(obj.uid, obj.name, obj.spec)
        return Context(obj, limits.read(conn, "Budget", obj.uid, rule.period(from_us(now_us(conn)))))

    def decide(self, ctx: Context, now: datetime) -> Outcome:
        """Bring the status up to date and tell what was not told yet."""
        obj, counted = ctx.obj, ctx.counted
        if obj.deleted_at is not None:
            return NOTHING
        rule = budgets.rule_of(obj.uid, obj.name, obj.spec)
        period = rule.period(now)
        if counted is not None and counted.period != period:
            counted = None  # a month began since it was read
        told = budgets.told(obj.status, period)
        fresh = [p for p in budgets.reached(rule, counted.spent if counted is not None else 0) if p not in told]
        status = {**budgets.status_of(rule, counted, now)}
        if told or fresh:
            status["thresholdsReached"] = sorted({*told, *fresh})
        when = f" in {period}" if period else ""
        amount = format_usd(rule.amount)
        events = [
            EventNote("Warning", "BudgetThreshold", f"{percent}% of ${amount} is spent{when}") for percent in fresh
        ]
        changed = status != obj.status
        return Outcome(status=status if changed else None, events=events, requeue_after_s=LOOK_S)
