"""Lines of the books as clients see them: UsageRecords, Transactions and sums. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from nodus.core.clock import rfc3339
from nodus.core.money import format_usd
from nodus.server.billing.budgets import CREATED_BY
from nodus.server.store.codec import from_us

if TYPE_CHECKING:
    from nodus.server.store.billed import Billed
    from nodus.server.store.books import Transfer
    from nodus.server.store.statements import Sum

API_VERSION = "nodus.dev/v1"
TYPES = {"Grant": "Grant", "Capture": "Charge", "Hold": "Hold", "Release": "Release", "Cover": "Cover"}
"""What a type of Transaction is called in the books."""
LISTED = ("Grant", "Capture")
"""Types that a list has unless it is asked for others: those that change what is not spent."""
GROUPS = ("project", "kind", "object", "meter", "day", "segment", "offering", "rank", "member")
"""What usage is summed by, besides ``label:KEY``."""
LABEL = "label:"
_NAMES = {shown: stored for stored, shown in TYPES.items()}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_US = 1_000_000


class Meter(NamedTuple):
    """What was used."""

    name: str
    """Such as ``ComputeSeconds``."""
    offering: str
    """The capacity or model; empty where there is none."""
    unit: str


def meter_of(item: str, unit: str) -> Meter:
    """Return what an item of the books is called: ``compute/local-cpu`` in microseconds is ComputeSeconds."""
    head, *rest = item.split("/")
    offering = rest[0] if rest else ""
    if unit == "us":
        return Meter(f"{_camel(head)}Seconds", offering, "seconds")
    if head == unit and len(rest) > 1:  # tokens/MODEL/cached-input
        return Meter(f"{_camel(rest[-1])}{_camel(unit)}", offering, unit)
    return Meter(_camel(head) if head == unit else f"{_camel(head)}{_camel(unit)}", offering, unit)


def quantity_text(quantity: int, unit: str) -> str:
    """Return a quantity as a decimal; microseconds as seconds, all of their places."""
    if unit != "us":
        return str(quantity)
    whole, rest = divmod(quantity, _SECOND_US)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")


def usage_record(line: Transfer, of: Billed | None) -> dict[str, Any]:
    """Return a charge, or what Nodus covered, as a UsageRecord."""
    meter, covered = meter_of(line.item, line.unit), line.type == "Cover"
    found = {
        "project": line.project,
        "object": _object(line, of),
        "meter": meter.name,
        "segment": line.segment.capitalize(),
        "offering": meter.offering,
        "quantity": quantity_text(line.quantity, line.unit),
        "unit": meter.unit,
        "amountUSD": format_usd(0 if covered else line.amount),
        "coveredUSD": format_usd(line.amount) if covered else None,
        "periodStartTime": _moment(line.at_us - (line.quantity if line.unit == "us" else 0)),
        "periodEndTime": _moment(line.at_us),
        "pricebookVersion": line.pricebook,
        "transaction": f"transaction-{line.seq}",
    }
    return _wire("UsageRecord", f"usage-{line.seq}", line, found)


def transaction(line: Transfer, of: Billed | None, left: int | None) -> dict[str, Any]:
    """Return a line of the books as a Transaction; ``left`` is what was not spent after it, in nano-dollars."""
    found = {
        "time": _moment(line.at_us),
        "type": _NAMES[line.type],
        "amountUSD": format_usd(-line.amount if line.type == "Charge" else line.amount),
        "balanceAfterUSD": None if left is None else format_usd(left),
        "reference": None if line.hold is None else _object(line, of),
        "cause": line.reference if line.hold is None else line.item or line.reference,
        "description": line.reason,
        "project": line.project,
    }
    return _wire("Transaction", f"transaction-{line.seq}", line, found)


def _wire(kind: str, name: str, line: Transfer, fields: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": str(line.seq), "creationTimestamp": _moment(line.at_us)}
    shown = {key: value for key, value in fields.items() if value not in (None, "")}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, **shown}


def _object(line: Transfer, of: Billed | None) -> dict[str, str]:
    kind, name = (line.owner_kind, line.owner_name) if of is None else (of.kind, of.name)
    found = {"kind": kind, "name": name, "project": line.project, "uid": line.object}
    return {key: value for key, value in found.items() if value}


def _moment(us: int) -> str:
    return rfc3339(from_us(max(us, 0)))


def _camel(word: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in word.split("-"))


# Sums ---------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Row:
    paid: int = 0
    covered: int = 0
    quantities: dict[str, int] = field(default_factory=dict)
    """By the unit that they are stored in."""


def described(one: Sum, of: Billed | None) -> dict[str, Any]:
    """Return what a sum is of, as field selectors over UsageRecords compare it."""
    meter = meter_of(one.item, one.unit)
    found = {
        "project": one.project, "meter": meter.name, "segment": one.segment.capitalize(), "offering": meter.offering,
        "object": {} if of is None else {"kind": of.kind, "name": of.name, "uid": of.uid},
    }  # fmt: skip
    return {key: value for key, value in found.items() if value not in ("", {})}


def group_of(one: Sum, of: Billed | None, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the values of what a sum is grouped by; empty ones for what it does not have."""
    meter, labels = meter_of(one.item, one.unit), {} if of is None else of.labels

    def value(key: str) -> str:
        if key.startswith(LABEL):
            return labels.get(key.removeprefix(LABEL), "")
        return {
            "project": one.project,
            "kind": "" if of is None else of.kind,
            "object": "" if of is None else f"{of.kind.lower()}/{of.name}",
            "meter": meter.name,
            "day": "" if one.day < 0 else (_EPOCH + timedelta(days=one.day)).strftime("%Y-%m-%d"),
            "segment": one.segment.capitalize(),
            "offering": meter.offering,
            "rank": "",  # nothing runs on several ranks yet
            "member": labels.get(CREATED_BY, ""),
        }[key]

    return tuple(map(value, keys))


def rows(found: Iterable[tuple[Sum, Billed | None]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return sums put together by what they are grouped by, in order.

    A quantity is given where all of a row has one unit.
    """
    together: dict[tuple[str, ...], _Row] = {}
    for one, of in found:
        row = together.setdefault(group_of(one, of, keys), _Row())
        row.paid += one.paid
        row.covered += one.covered
        row.quantities[one.unit] = row.quantities.get(one.unit, 0) + one.quantity
    return [_row(dict(zip(keys, values, strict=True)), row) for values, row in sorted(together.items())]


def _row(group: dict[str, str], row: _Row) -> dict[str, Any]:
    shown: dict[str, Any] = {"group": group, "amountUSD": format_usd(row.paid)}
    if row.covered:
        shown["coveredUSD"] = format_usd(row.covered)
    if len(row.quantities) == 1:
        ((unit, quantity),) = row.quantities.items()
        shown |= {"quantity": quantity_text(quantity, unit), "unit": "seconds" if unit == "us" else unit}
    return shown
