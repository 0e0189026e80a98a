"""Sums over the books: usage by what it is grouped by, what is left after each line, what a time cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, case, func, literal, select

from nodus.server.store import ledger
from nodus.server.store.books import conditions_for
from nodus.server.store.context import org_of
from nodus.server.store.schema import holds, transfers

DAY_US = 86_400_000_000
_JOINED = transfers.join(holds, holds.c.id == transfers.c.hold)
# Credits that are not spent, whether they are set aside or not, are moved by these alone.
_MOVING = ("Grant", "Charge")
_EFFECT = case(
    (transfers.c.type == "Grant", transfers.c.amount_nanos),
    (transfers.c.type == "Charge", -transfers.c.amount_nanos),
    else_=0,
)


@dataclass(frozen=True, slots=True)
class Sum:
    """What usage of one sort came to; amounts in nano-dollars."""

    item: str
    unit: str
    segment: str
    project: str
    object: str
    """Uid; empty where sums are not taken apart by object."""
    day: int
    """Days since the epoch, in UTC; -1 where sums are not taken apart by day."""
    paid: int
    covered: int
    quantity: int
    """What was paid for and what Nodus bore."""


class Spent(NamedTuple):
    """What a time cost, in nano-dollars."""

    paid: int
    covered: int


def sums(
    conn: Connection,
    *,
    by_object: bool,
    by_day: bool,
    project: Sequence[str] | None = None,
    object: Sequence[str] | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
) -> list[Sum]:
    """Return sums over charges and what Nodus covered, by item, unit, segment and project.

    Args:
        conn: a transaction.
        by_object: take them apart by object too.
        by_day: and by the day of the charge.
        project: only of these projects.
        object: uids; only of these objects.
        since_us: only what was charged then or later, in microseconds since the epoch.
        until_us: only what was charged before.
    """
    parts: list[ColumnElement[Any]] = [transfers.c.item, transfers.c.unit, transfers.c.segment, holds.c.project]
    by = list(parts)
    if by_object:
        by.append(holds.c.object)
    parts.append((holds.c.object if by_object else literal("")).label("of"))
    day = transfers.c.at_us // DAY_US
    if by_day:
        by.append(day)
    parts.append((day if by_day else literal(-1)).label("day"))
    is_paid = transfers.c.type == "Charge"
    totals = (
        func.sum(case((is_paid, transfers.c.amount_nanos), else_=0)).label("paid"),
        func.sum(case((is_paid, 0), else_=transfers.c.amount_nanos)).label("covered"),
        func.sum(transfers.c.quantity).label("quantity"),
    )
    wanted = conditions_for(conn, ("Charge", "Cover"), project, object, None, since_us, until_us)
    query = select(*parts, *totals).select_from(_JOINED).where(*wanted).group_by(*by)
    return [
        Sum(
            row.item, row.unit, row.segment, row.project, row.of, int(row.day), int(row.paid), int(row.covered),
            int(row.quantity),
        )
        for row in conn.execute(query)
    ]  # fmt: skip


def left_after(conn: Connection, seqs: Sequence[int]) -> dict[int, int]:
    """Return the credits that were not spent right after each of some lines, in nano-dollars, by the line's number."""
    if not seqs:
        return {}
    now = ledger.balance(conn)
    mine = (transfers.c.org == org_of(conn), transfers.c.type.in_(_MOVING))
    newer = conn.execute(select(func.sum(_EFFECT)).where(*mine, transfers.c.seq > max(seqs))).scalar()
    running = (
        select(
            transfers.c.seq, func.sum(_EFFECT).over(order_by=transfers.c.seq.desc()).label("since"), _EFFECT.label("it")
        )
        .where(transfers.c.org == org_of(conn), transfers.c.seq <= max(seqs), transfers.c.seq >= min(seqs))
        .subquery()
    )
    after_last = now.granted - now.spent - int(newer or 0)
    rows = conn.execute(select(running).where(running.c.seq.in_(list(seqs))))
    return {row.seq: after_last - int(row.since) + int(row.it) for row in rows}


def spent(conn: Connection, since_us: int) -> Spent:
    """Return what was charged, and covered, from a moment on in microseconds since the epoch."""
    query = (
        select(transfers.c.type, func.sum(transfers.c.amount_nanos).label("total"))
        .where(*conditions_for(conn, ("Charge", "Cover"), None, None, since_us=since_us))
        .group_by(transfers.c.type)
    )
    found = {row.type: int(row.total) for row in conn.execute(query)}
    return Spent(found.get("Charge", 0), found.get("Cover", 0))
