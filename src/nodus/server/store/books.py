"""The books: every transfer between accounts, append-only, and lists of them.

Written by ``ledger.py`` under the object lock, so that their numbers grow in the order in which they become visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, literal, select, text

from nodus.server.store import pagetokens
from nodus.server.store.appended import Appended
from nodus.server.store.codec import clean
from nodus.server.store.context import now_us, org_of
from nodus.server.store.prepared import Prepared
from nodus.server.store.schema import holds, transfers

ACCOUNTS = {
    "Grant": ("granted", "credits"),
    "Hold": ("credits", "held"),
    "Charge": ("held", "usage"),
    "Release": ("held", "credits"),
    "Cover": ("covered", "usage"),
}
"""From which account to which each type of transfer goes."""


@dataclass(frozen=True, slots=True)
class Charge:
    """A part of what was used; amounts in nano-dollars."""

    item: str
    """Such as ``compute/local-cpu``, ``grading`` or ``tokens/MODEL/output``."""
    amount: int
    """What is paid from the hold."""
    covered: int = 0
    """What Nodus bears on top of it."""
    quantity: int = 0
    """How much was used and paid for; with a segment microseconds."""
    covered_quantity: int = 0
    """How much Nodus bore."""
    unit: str = ""
    """Of the quantities: ``us``, ``tokens``, ``characters``, ``bytes``, ..."""
    segment: Literal["boot", "running", "restore", "teardown", ""] = ""
    """Part of a run's time, for ``status.cost.bySegment``."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A line of the books, with what its hold says."""

    seq: int
    at_us: int
    """Microseconds since the epoch."""
    type: str
    """Grant, Hold, Charge, Release or Cover."""
    debit: str
    credit: str
    amount: int
    """Nano-dollars."""
    reference: str
    reason: str
    item: str
    segment: str
    quantity: int
    unit: str
    hold: int | None = None
    """None for grants, and with it what follows is empty."""
    owner_kind: str = ""
    owner: str = ""
    owner_name: str = ""
    project: str = ""
    object: str = ""
    pricebook: str = ""


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of transfers, newest first."""

    items: list[Transfer]
    continue_: str | None = None
    """Token of the next page; None on the last."""


def transactions(
    conn: Connection,
    *,
    types: Sequence[str] | None = None,
    project: str | Sequence[str] | None = None,
    object: str | Sequence[str] | None = None,
    owner: str | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    limit: int = 500,
    continue_: str | None = None,
) -> Listed:
    """Return transfers, newest first.

    Args:
        conn: a transaction.
        types: only these; see :data:`ACCOUNTS`.
        project: only those of holds in this project, or in one of these.
        object: uid; only those on this object's bill, or on one of these objects'.
        owner: uid; only those of holds of this owner.
        since_us: none before, in microseconds since the epoch.
        until_us: none at or after it.
        limit: most items of the page.
        continue_: the token of the page before.

    Raises:
        BadRequest: the token can't be read.
    """
    conditions = conditions_for(conn, types, project, object, owner, since_us, until_us)
    below = pagetokens.decode(continue_)
    if below is not None:
        conditions.append(transfers.c.seq < below)
    query = _LINES.where(*conditions).order_by(transfers.c.seq.desc()).limit(limit + 1)
    items = [_line(row) for row in conn.execute(query)]
    if len(items) <= limit:
        return Listed(items)
    return Listed(items[:limit], pagetokens.encode(items[limit - 1].seq))


def line(conn: Connection, seq: int) -> Transfer | None:
    """Return the line of that number, or None."""
    row = conn.execute(_LINES.where(transfers.c.org == org_of(conn), transfers.c.seq == seq)).first()
    return None if row is None else _line(row)


def usage(conn: Connection, **filters: Any) -> Listed:
    """Return what was used, newest first: charges, and what Nodus covered. Filters are those of transactions."""
    return transactions(conn, types=("Charge", "Cover"), **filters)


def of_hold(conn: Connection, number: int) -> list[Transfer]:
    """Return every transfer of a hold, oldest first: what a receipt says."""
    return [_line(row) for row in conn.execute(_LINES.where(transfers.c.hold == number).order_by(transfers.c.seq))]


def conditions_for(
    conn: Connection,
    types: Sequence[str] | None,
    project: str | Sequence[str] | None,
    object: str | Sequence[str] | None,
    owner: str | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
) -> list[ColumnElement[bool]]:
    """Return what the filters of :func:`transactions` mean, over transfers joined with their holds."""
    found: list[ColumnElement[bool]] = [transfers.c.org == org_of(conn)]
    if types is not None:
        found.append(transfers.c.type.in_(types))
    if since_us is not None:
        found += [transfers.c.seq >= first_since(conn, since_us), transfers.c.at_us >= since_us]
    if until_us is not None:
        found.append(transfers.c.at_us < until_us)
    for column, value in ((holds.c.project, project), (holds.c.object, object), (holds.c.owner, owner)):
        if value is not None:
            found.append(column.in_([value] if isinstance(value, str) else value))
    return found


def first_since(conn: Connection, since_us: int) -> int:
    """Return a number below which no line is as new as a moment, in microseconds since the epoch.

    Lines are in the order of time but for what clocks of servers differ, so it takes few steps however many there are.
    """
    low, high = 0, int(_NEWEST.scalar(conn, {}) or 0) + 1
    while low < high:
        middle = (low + high) // 2
        at_us = _TIME.scalar(conn, {"seq": middle})
        if at_us is not None and at_us < since_us - _CLOCKS_DIFFER_US:
            low = middle + 1
        else:
            high = middle
    return low


# For the ledger -----------------------------------------------------------------------------------------------------

_CLOCKS_DIFFER_US = 86_400_000_000
_NEWEST = Prepared(select(func.max(transfers.c.seq).label("seq")))
_TIME = Prepared(
    select(transfers.c.at_us).where(transfers.c.seq >= bindparam("seq")).order_by(transfers.c.seq).limit(literal(1))
)
_WRITTEN = [column.key for column in transfers.c if column.key != "seq"]
_BOOKS = Appended(transfers, _WRITTEN)
_GRANT = Prepared(insert(transfers).inline(), _WRITTEN)
_GRANTED = Prepared(
    select(transfers.c.amount_nanos).where(
        transfers.c.org == bindparam("org"),
        transfers.c.reference == bindparam("reference"),
        # As it stands in the index of grants: with a parameter in its place, that would not be used.
        text("type = 'Grant'"),
    )
)
_LINES = select(
    transfers, holds.c.reference.label("hold_reference"), holds.c.owner_kind, holds.c.owner, holds.c.owner_name,
    holds.c.project, holds.c.object, holds.c.pricebook, holds.c.reason.label("hold_reason"),
).select_from(transfers.outerjoin(holds, holds.c.id == transfers.c.hold))  # fmt: skip
_NOTHING = Charge("", 0)


def add(
    conn: Connection, now: int, type_: str, hold: int, amount: int, charge: Charge = _NOTHING, quantity: int = 0
) -> None:
    """Write a transfer of a hold, at the latest with the commit; ``now`` in microseconds since the epoch."""
    debit, credit = ACCOUNTS[type_]
    row = {
        "org": org_of(conn), "at_us": now, "type": type_, "debit": debit, "credit": credit,
        "amount_nanos": amount, "hold": hold, "reference": None, "reason": "", "item": clean(charge.item)[:253],
        "segment": charge.segment, "quantity": quantity, "unit": charge.unit[:16],
    }  # fmt: skip
    _BOOKS.add(conn, row)


def grant(conn: Connection, amount: int, reference: str, reason: str) -> None:
    """Write a grant now, so that the next in this transaction sees it."""
    debit, credit = ACCOUNTS["Grant"]
    row = {
        "org": org_of(conn), "at_us": now_us(conn), "type": "Grant", "debit": debit, "credit": credit,
        "amount_nanos": amount, "hold": None, "reference": clean(reference)[:253], "reason": clean(reason)[:253],
        "item": "", "segment": "", "quantity": 0, "unit": "",
    }  # fmt: skip
    _GRANT.run(conn, row)


def granted(conn: Connection, reference: str) -> int | None:
    """Return what was granted under a reference, or None."""
    found = _GRANTED.scalar(conn, {"org": org_of(conn), "reference": clean(reference)[:253]})
    return None if found is None else int(found)


def _line(row: Any) -> Transfer:
    same = (
        row.seq, row.at_us, row.type, row.debit, row.credit, row.amount_nanos, row.reference or row.hold_reference,
        row.reason or row.hold_reason or "", row.item, row.segment, row.quantity, row.unit,
    )  # fmt: skip
    if row.hold is None:
        return Transfer(*same)
    return Transfer(*same, row.hold, row.owner_kind, row.owner, row.owner_name, row.project, row.object, row.pricebook)
