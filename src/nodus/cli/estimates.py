"""What a plan costs, in one line."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

from nodus.client.resources import JsonObject

WAITING = (None, "Pending", "Queued")
"""Phases of what may still be in want of something."""


def estimate_line(obj: JsonObject, *, dry_run: bool) -> str:
    """Return topology, price range, time, hold, what it rests on, what blocks and what to know of an estimate."""
    metadata = obj.get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName") or ""
    label = f"{str(obj.get('kind')).lower()}/{name}{' (dry run)' if dry_run else ''}"
    estimate = (obj.get("status") or {}).get("estimate")
    if not estimate:
        return f"{label} · no estimate"
    parts = [label, _topology(estimate.get("topology") or {}), _cost(estimate.get("costUSD") or {})]
    if not estimate.get("blockingReasons"):  # what is blocked starts at no foreseeable time
        parts.append(_start(estimate))
    parts += [_takes(estimate.get("duration") or {}), _hold(estimate), _measured(estimate.get("measured") or {})]
    if dry_run or obj["status"].get("phase") in WAITING:  # later nothing is in its way any more
        blocking, warnings = (estimate.get(part) or [] for part in ("blockingReasons", "warnings"))
        parts += [f"blocked: {item.get('message') or item.get('code')}" for item in blocking]
        parts += [str(item.get("message") or item.get("code")) for item in warnings]
    return " · ".join(part for part in parts if part)


def _topology(topology: dict[str, Any]) -> str:
    nodes, gpus = topology.get("nodes"), topology.get("gpusPerNode")
    if not nodes:
        return ""
    machines = f"{nodes} node{'s' if nodes != 1 else ''}"
    # The wording of plans is fixed, typography included.
    return f"{machines} × {gpus} GPU{'s' if gpus != 1 else ''}" if gpus else f"{machines}, CPU"


def _cost(cost: dict[str, Any]) -> str:
    low, high = cost.get("p50"), cost.get("p90")
    if low is None:
        return ""
    shown, upper = _rounded(low), _rounded(high) if high is not None else None
    return f"est. ${shown}" if upper in (None, shown) else f"est. ${shown}–{upper}"


def _rounded(amount: str) -> str:
    """An amount to the cent, or to two digits where it is less: an estimate is no more exact than that."""
    try:
        value = Decimal(amount)
        if not value or value >= Decimal("0.1"):
            return str(value.quantize(Decimal("0.01")))
    except InvalidOperation:
        return amount
    whole, _, digits = f"{value:.{min(9, 1 - value.adjusted())}f}".partition(".")
    return f"{whole}.{digits.rstrip('0'):0<2}"


def _start(estimate: dict[str, Any]) -> str:
    cold = ((estimate.get("startup") or {}).get("cold")) or {}
    if not cold.get("p50"):
        return ""
    upper = f"–{cold['p90']}" if cold.get("p90") and cold["p90"] != cold["p50"] else ""
    return f"starts in ~{cold['p50']}{upper} (cold)"


def _takes(duration: dict[str, Any]) -> str:
    low, high = duration.get("p50"), duration.get("p90")
    if low is None:
        return ""
    return f"takes ~{low}" if high in (None, low) else f"takes ~{low}–{high}"


def _hold(estimate: dict[str, Any]) -> str:
    """The hold of what costs something; nothing is held for what is free."""
    for name, words in (("gangHoldUSD", "gang hold"), ("holdUSD", "hold")):
        amount = estimate.get(name)
        if amount:
            return f"{words} ${_rounded(amount)}" if str(amount).strip("0.") else ""
    return ""


def _measured(measured: dict[str, Any]) -> str:
    runs = measured.get("runs")
    if not runs:
        return ""
    return f"measured here on {str(measured.get('time'))[:10]}, {runs} run{'s' if runs != 1 else ''}"
