"""Why a run is stopped for want of money, in the words of its status. Pure."""

from __future__ import annotations

from nodus.core.errors import BudgetExceeded, NodusError

MAX_COST_REACHED, INSUFFICIENT_CREDITS, BUDGET_EXCEEDED = "MaxCostReached", "InsufficientCredits", "BudgetExceeded"
UNFUNDED = frozenset({MAX_COST_REACHED, INSUFFICIENT_CREDITS, BUDGET_EXCEEDED})
"""Reasons of a stop for want of money: the run's own cap, the credits, or a Budget."""


def reason_of(refusal: NodusError) -> str:
    """Return the reason under which a run is suspended: whether its own cap, a Budget or the credits lack room."""
    if not isinstance(refusal, BudgetExceeded):
        return INSUFFICIENT_CREDITS
    return MAX_COST_REACHED if refusal.details.get("reason") == MAX_COST_REACHED else BUDGET_EXCEEDED


def told(refusal: NodusError) -> dict[str, str]:
    """Return reason, message and fix of a run that stops for want of money."""
    found = {"reason": reason_of(refusal), "message": refusal.message}
    return found | ({"fix": refusal.fix} if refusal.fix else {})
