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
    """A Budget and what it has counted."""

    obj: Object
    counted: Counted | None
    """In the period that runs."""
    before: Counted | None = None
    """In the period that the status is about, where that has ended."""
    result: ActionResult | None = None


class BudgetController(BaseController):
    """Keeps the status of Budgets and tells of their thresholds."""

    kind = BUDGET

    def load(self, conn: Connection, obj: Object) -> Context:
        """Read what it has counted."""
        period = budgets.rule_of(obj.uid, obj.name, obj.spec).period(from_us(now_us(conn)))
        shown = str(obj.status.get("period", ""))
        before = limits.read(conn, BUDGET.name, obj.uid, shown) if shown not in ("", period) else None
        return Context(obj, limits.read(conn, BUDGET.name, obj.uid, period), before)

    def decide(self, ctx: Context, now: datetime) -> Outcome:
        """Bring the status up to date and tell what was not told yet, of a month that ended too."""
        obj = ctx.obj
        if obj.deleted_at is not None:
            return NOTHING
        rule = budgets.rule_of(obj.uid, obj.name, obj.spec)
        period = rule.period(now)
        # A month may have begun since it was read.
        counted = ctx.counted if ctx.counted is not None and ctx.counted.period == period else None
        fresh = budgets.untold(rule, obj.status, counted)
        status = budgets.status_of(rule, counted, now)
        if known := sorted({*budgets.told(obj.status, period), *fresh}):
            status["thresholdsReached"] = known
        ended = ctx.before or (ctx.counted if counted is None else None)
        late = budgets.untold(rule, obj.status, ended)
        texts = [budgets.told_of(rule, percent, ended.period) for percent in late if ended is not None]
        texts += [budgets.told_of(rule, percent, period) for percent in fresh]
        events = [EventNote("Warning", budgets.THRESHOLD, text) for text in texts]
        return Outcome(status=status if status != obj.status else None, events=events, requeue_after_s=LOOK_S)
