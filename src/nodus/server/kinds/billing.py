"""Admission of Budget; the other kinds of money are read from the books."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from nodus.core.errors import Forbidden, QuotaExceeded
from nodus.core.kinds import BUDGET, MEMBER, PROJECT
from nodus.core.kinds.billing import DEFAULT_THRESHOLDS, BudgetSpec
from nodus.core.labels import label_problem
from nodus.core.money import MAX_NANOS, format_usd, parse_usd
from nodus.server.billing import budgets
from nodus.server.kinds.base import Admission, Draft
from nodus.server.store import events, limits, objects
from nodus.server.store.codec import from_us
from nodus.server.store.context import now_us

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.api.principal import Principal
    from nodus.server.services import Services
    from nodus.server.store.objects import Object


class BudgetAdmission(Admission[BudgetSpec]):
    """A Budget's limit holds from the moment it is stored: its counter's cap changes in the same transaction."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "period": "Monthly", "action": "Block", "thresholds": list(DEFAULT_THRESHOLDS)
    }  # fmt: skip

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: BudgetSpec) -> None:
        """Check that what it counts can be there, and that whoever asks reaches it."""
        if parse_usd(spec.limit_usd) > MAX_NANOS:
            draft.reject("spec.limitUSD", f"at most {format_usd(MAX_NANOS)} can be counted")
        scope = spec.scope
        if draft.creating and scope is not None:
            if scope.project is not None and not objects.exists(conn, PROJECT, None, scope.project):
                draft.reject("spec.scope.project", f"there is no project {scope.project!r}")
            if scope.member is not None and objects.find(conn, MEMBER, None, scope.member) is None:
                draft.reject(
                    "spec.scope.member", f"there is no member {scope.member!r}; `nodus get members` lists them"
                )
            for key, value in (scope.selector.match_labels if scope.selector is not None else {}).items():
                problem = label_problem(key, value)
                if problem is not None:
                    draft.reject("spec.scope.selector.matchLabels", problem)
        if draft.creating and draft.actor is not None:
            _require_reach(draft.actor, scope.project if scope is not None else None)
        if draft.creating:
            draft.status = {"phase": "Active"}
            if spec.period == "Monthly":
                draft.status["period"] = budgets.month_of(from_us(now_us(conn)))

    def preview(self, conn: Connection, services: Services, draft: Draft, spec: BudgetSpec) -> dict[str, Any]:
        """What it has counted, of an update; nothing yet, of a new one."""
        uid = "" if draft.old is None else draft.old.uid
        return _status(conn, uid, str(draft.name), draft.spec)

    def stored(self, conn: Connection, services: Services, draft: Draft, obj: Object) -> None:
        """Give its counter of this period the limit it has now; what was reached of the one before is told first."""
        rule = budgets.rule_of(obj.uid, obj.name, obj.spec)
        if draft.old is not None:
            _tell(conn, obj, draft.old.spec)
        else:
            _check_overlap(conn, rule)
        limits.set_cap(conn, rule.limit(from_us(now_us(conn))))

    def authorize(self, conn: Connection, actor: Principal, obj: Object) -> None:
        """Leave Budgets beyond a key's projects alone."""
        _require_reach(actor, (obj.spec.get("scope") or {}).get("project"))


def _check_overlap(conn: Connection, rule: budgets.Rule) -> None:
    """Refuse what would be one Budget too many for something: its holds could not stand under all of them."""
    names = [other.name for other in budgets.rules(conn) if other.uid != rule.uid and other.overlaps(rule)]
    if len(names) >= budgets.MOST_OVERLAPPING:
        raise QuotaExceeded(
            f"{len(names)} Budgets count some of what this one would, and {budgets.MOST_OVERLAPPING} may: "
            f"{', '.join(names[:3])}, ...",
            fix="Delete some that are not needed, or give it a narrower scope.",
            details={"quota": "budgets"},
        )


def _tell(conn: Connection, obj: Object, spec: dict[str, Any]) -> None:
    """Record the Events of thresholds that a Budget reached with a limit that it is about to lose."""
    rule = budgets.rule_of(obj.uid, obj.name, spec)
    period = rule.period(from_us(now_us(conn)))
    fresh = budgets.untold(rule, obj.status, limits.read(conn, BUDGET.name, obj.uid, period))
    if not fresh:
        return
    for percent in fresh:
        events.record(conn, obj, "Warning", budgets.THRESHOLD, budgets.told_of(rule, percent, period))
    known = sorted({*budgets.told(obj.status, period), *fresh})
    shown = {"period": period} if period else {}
    objects.update_status(conn, obj.uid, {**obj.status, **shown, "thresholdsReached": known})


def _require_reach(actor: Principal, project: str | None) -> None:
    if actor.projects and not actor.within([project] if project else []):
        raise Forbidden(
            f"the key {actor.name} reaches only {', '.join(actor.projects)}, and the Budget counts more",
            fix="Give it a project of the key's as scope.project, or use a key that reaches all projects.",
        )


def present_budget(conn: Connection, obj: Object, wire: dict[str, Any]) -> dict[str, Any]:
    """A Budget with what it has counted up to now."""
    now = _status(conn, obj.uid, obj.name, obj.spec)
    stored = dict(wire["status"])
    if not budgets.told(stored, now.get("period", "")):
        stored.pop("thresholdsReached", None)
    return {**wire, "status": {**stored, **now}}


def _status(conn: Connection, uid: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    rule, now = budgets.rule_of(uid, name, spec), from_us(now_us(conn))
    return budgets.status_of(rule, limits.read(conn, BUDGET.name, uid, rule.period(now)), now)


ADMISSIONS = (BudgetAdmission(BUDGET),)
