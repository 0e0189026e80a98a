"""``status.cost``: what the books say of an object, in wire form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nodus.core.clock import parse_rfc3339, rfc3339
from nodus.core.money import format_usd, parse_usd

if TYPE_CHECKING:
    from nodus.server.store.ledger import Cost
    from nodus.server.store.objects import Object

_SECOND_US = 1_000_000


def to_wire(cost: Cost, cap: str | None, running: Iterable[Object] = (), *, final: bool = False) -> dict[str, Any]:
    """Return an object's cost.

    Args:
        cost: What the books say of it.
        cap: Its ``spec.maxCostUSD``.
        running: Its attempts that run now.
        final: Whether nothing more will be charged.
    """
    found: dict[str, Any] = {"totalUSD": format_usd(cost.total), "final": final}
    if cost.held:
        found["heldUSD"] = format_usd(cost.held)
    if cap is not None:
        found["limitUSD"] = cap
    attempts = [attempt for attempt in running if attempt.status.get("placement")]
    if attempts:
        rates = (parse_usd(attempt.status["placement"].get("rateUSDPerHour") or "0") for attempt in attempts)
        found["rateUSDPerHour"] = format_usd(sum(rates))
    until = [(attempt.status.get("funding") or {}).get("untilTime") for attempt in attempts]
    if known := [parse_rfc3339(moment) for moment in until if moment]:
        found["fundedUntilTime"] = rfc3339(min(known))
    if cost.segments:
        found["bySegment"] = _segments(cost)
    if cost.covered:
        found["coveredByNodus"] = [{"USD": format_usd(cost.covered)}]
    return found


def _segments(cost: Cost) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, part in cost.segments.items():
        found[f"{name}USD"] = format_usd(part.spent)
        found[f"{name}Seconds"] = part.time_us / _SECOND_US
        if part.covered_us:
            found[f"{name}CoveredSeconds"] = part.covered_us / _SECOND_US
    return found
