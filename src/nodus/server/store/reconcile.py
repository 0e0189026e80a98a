"""Reckoning the ledger anew: every limit from the holds and transfers, every hold from its transfers, every account.

What is stored is read a piece at a time, so that a million holds take no more memory than a thousand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, select

from nodus.core.money import format_usd
from nodus.server.store.books import ACCOUNTS
from nodus.server.store.context import org_of
from nodus.server.store.limits import CREDITS
from nodus.server.store.schema import holds, limit_segments, limits, transfers

MOST = 1000
"""Discrepancies that are named at most."""
_PAGE = 5_000
_LIMITS_AT_ONCE = 200_000


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """Something that the ledger says twice and differently."""

    what: str
    """What it is about, such as ``Budget team 2026-11`` or ``hold attempt/UID/slice/0``."""
    field: str
    recorded: str
    """As it stands there."""
    reckoned: str
    """As it follows from the holds and transfers."""


def verify(conn: Connection) -> list[Discrepancy]:
    """Return what doesn't agree, the first :data:`MOST`; an empty list when the books balance.

    Args:
        conn: a read transaction: all of it is of one moment.
    """
    return list(itertools.islice(_verify(conn), MOST))


def _verify(conn: Connection) -> Iterator[Discrepancy]:
    accounts = _Accounts()
    before = 0
    for numbers in _limits(conn):
        first, counts = before == 0, {number: _Count() for number in numbers}
        upto = numbers[-1] if len(numbers) == _LIMITS_AT_ONCE else math.inf
        for hold, lines in _holds(conn):
            if first:
                yield from accounts.add(lines)
                yield from _lost(lines) if hold is None else ()
            if hold is None:
                continue
            sums = _Sums.of(lines)
            if first and not _agrees(hold, sums):
                yield from _of_hold(hold, sums)
            for named in map(int, hold.limits.split()):
                if named in counts:
                    counts[named].add(sums)
                elif before < named <= upto:
                    yield Discrepancy(f"hold {hold.reference}", "limits", f"limit {named}", "no such limit")
        if first:
            for grants in _pages(conn, select(*_LINE), transfers.c.seq, transfers.c.hold.is_(None)):
                yield from accounts.add(grants)
        if numbers:
            yield from _of_limits(conn, numbers, counts)
            before = numbers[-1]
    yield from _of_accounts(conn, accounts)


# What there is ------------------------------------------------------------------------------------------------------

_LINE = (
    transfers.c.seq, transfers.c.hold, transfers.c.type, transfers.c.debit, transfers.c.credit,
    transfers.c.amount_nanos, transfers.c.segment, transfers.c.quantity,
)  # fmt: skip
_HOLD = (
    holds.c.id, holds.c.reference, holds.c.amount_nanos, holds.c.settled_nanos, holds.c.covered_nanos, holds.c.state,
    holds.c.limits,
)  # fmt: skip


def _pages(
    conn: Connection, query: Select[Any], key: ColumnElement[int], *conditions: ColumnElement[bool], count: int = _PAGE
) -> Iterator[Sequence[Any]]:
    """Yield rows a page at a time, in the order of a key that they have as an attribute."""
    table = query.get_final_froms()[0]
    # Not by the index of some other key that begins with the org: it would have to be sorted for every page.
    ours = table.c.org.concat("") == org_of(conn)
    query, last = query.where(ours, *conditions).order_by(key).limit(count), 0
    while rows := conn.execute(query.where(key > last)).all():
        yield rows
        last = getattr(rows[-1], str(key.key))


def _limits(conn: Connection) -> Iterator[list[int]]:
    """Yield the limits' numbers a portion at a time; the last is the one that isn't full, if need be an empty one."""
    numbers: list[int] = []
    for rows in _pages(conn, select(limits.c.id), limits.c.id, count=_LIMITS_AT_ONCE):
        numbers = [row.id for row in rows]
        yield numbers
    if len(numbers) in (0, _LIMITS_AT_ONCE):
        yield []


def _holds(conn: Connection) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each hold with its transfers; None with transfers whose hold isn't there."""
    last = 0
    for page in itertools.chain(_pages(conn, select(*_HOLD), holds.c.id), [()]):
        lines: dict[int, list[Any]] = {hold.id: [] for hold in page}
        here = [transfers.c.org == org_of(conn), transfers.c.hold > last]
        if page:
            last = page[-1].id
            here.append(transfers.c.hold <= last)
        lost: list[Any] = []
        for line in conn.execute(select(*_LINE).where(*here)):
            lines.get(line.hold, lost).append(line)
        if lost:
            yield None, lost
        for hold in page:
            yield hold, lines[hold.id]


# What follows from it -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sums:
    """The transfers of a hold by type, and what its time cost by segment."""

    held: int = 0
    charged: int = 0
    released: int = 0
    covered: int = 0
    number: int = 0
    """Of transfers that began it: one."""
    segments: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Sequence[Any]) -> _Sums:
        sums = cls()
        for _, _, type_, _, _, amount, segment, quantity in lines:
            if type_ == "Hold":
                sums.held += amount
                sums.number += 1
            elif type_ == "Charge":
                sums.charged += amount
            elif type_ == "Release":
                sums.released += amount
            elif type_ == "Cover":
                sums.covered += amount
            if segment:
                part = sums.segments.setdefault(segment, [0, 0, 0, 0])
                borne = type_ == "Cover"
                part[borne] += amount
                part[2 + borne] += quantity
        return sums


@dataclass(slots=True)
class _Count:
    """What a limit must have counted."""

    held: int = 0
    spent: int = 0
    covered: int = 0
    segments: dict[str, list[int]] = field(default_factory=dict)

    def add(self, sums: _Sums) -> None:
        self.held += sums.held - sums.charged - sums.released
        self.spent += sums.charged
        self.covered += sums.covered
        for segment, part in sums.segments.items():
            there = self.segments.setdefault(segment, [0, 0, 0, 0])
            self.segments[segment] = [one + other for one, other in zip(there, part, strict=True)]


class _Accounts:
    """What is on each account."""

    def __init__(self) -> None:
        self.balances = dict.fromkeys(("granted", "credits", "held", "usage", "covered"), 0)

    def add(self, lines: Sequence[Any]) -> Iterator[Discrepancy]:
        """Book transfers; yield those that can't be."""
        balances = self.balances
        for seq, hold, type_, debit, credit, amount, _, _ in lines:
            grants = type_ == "Grant"
            if (debit, credit) != ACCOUNTS.get(type_) or amount < 0 or grants != (hold is None):
                shown = f"{type_} of ${format_usd(amount)} from {debit} to {credit}"
                yield Discrepancy(f"transfer {seq}", "accounts", shown, "no such transfer")
                balances.setdefault(debit, 0)
                balances.setdefault(credit, 0)
            balances[debit] -= amount
            balances[credit] += amount


# Where they differ --------------------------------------------------------------------------------------------------


def _lost(lines: Sequence[Any]) -> Iterator[Discrepancy]:
    for line in lines:
        yield Discrepancy(f"transfer {line.seq}", "hold", f"hold {line.hold}", "no such hold")


def _of_hold(hold: Any, sums: _Sums) -> Iterator[Discrepancy]:
    what = f"hold {hold.reference}"
    if sums.number != 1:
        yield Discrepancy(what, "transfers of type Hold", "1", str(sums.number))
    back = {"Held": 0, "Settled": hold.amount_nanos - hold.settled_nanos, "Released": hold.amount_nanos}
    if hold.state not in back or (hold.state != "Settled" and (hold.settled_nanos or hold.covered_nanos)):
        yield Discrepancy(what, "state", hold.state, "Settled")
        return
    yield from _differences(
        what,
        ("amount", hold.amount_nanos, sums.held),
        ("settled", hold.settled_nanos, sums.charged),
        ("covered", hold.covered_nanos, sums.covered),
        ("given back", back[hold.state], sums.released),
    )


def _agrees(hold: Any, sums: _Sums) -> bool:
    """Tell quickly that nothing is wrong with a hold, as nearly always."""
    amount, settled, covered = hold.amount_nanos, hold.settled_nanos, hold.covered_nanos
    moved = (sums.number, sums.held, sums.charged, sums.covered, sums.released)
    if hold.state == "Settled":
        return moved == (1, amount, settled, covered, amount - settled)
    back = amount if hold.state == "Released" else 0
    return hold.state in ("Held", "Released") and moved == (1, amount, settled, covered, back) and not settled + covered


def _of_limits(conn: Connection, numbers: Sequence[int], counts: dict[int, _Count]) -> Iterator[Discrepancy]:
    within = (limits.c.id >= numbers[0], limits.c.id <= numbers[-1])
    for rows in _pages(conn, select(limits), limits.c.id, *within):
        names = {row.id: " ".join(filter(None, (row.kind, row.name, row.period))) for row in rows}
        for row in rows:
            count = counts[row.id]
            yield from _differences(
                names[row.id],
                ("held", row.held_nanos, count.held),
                ("spent", row.spent_nanos, count.spent),
                ("covered", row.covered_nanos, count.covered),
            )
        here = (limit_segments.c.limit >= rows[0].id, limit_segments.c.limit <= rows[-1].id)
        parts = conn.execute(select(limit_segments).where(*here, limit_segments.c.org == org_of(conn)))
        for part in parts:
            there = counts[part.limit].segments.pop(part.segment, [0, 0, 0, 0])
            yield from _of_segment(f"{names[part.limit]}, {part.segment}", part, there)
        for number, name in names.items():
            for segment in counts[number].segments:
                yield Discrepancy(f"{name}, {segment}", "segment", "none", "some")


def _of_segment(what: str, part: Any, there: Sequence[int]) -> Iterator[Discrepancy]:
    spent, covered, time_us, covered_us = there
    yield from _differences(what, ("spent", part.spent_nanos, spent), ("covered", part.covered_nanos, covered))
    for name, recorded, reckoned in (("time", part.time_us, time_us), ("covered time", part.covered_us, covered_us)):
        if recorded != reckoned:
            yield Discrepancy(what, name, f"{recorded} µs", f"{reckoned} µs")


def _of_accounts(conn: Connection, accounts: _Accounts) -> Iterator[Discrepancy]:
    """Compare the accounts with the row of the credits, under which every hold stands."""
    query = select(limits).where(limits.c.org == org_of(conn), limits.c.kind == CREDITS)
    row = conn.execute(query).first()
    cap, held, spent, covered = (
        (row.cap_nanos or 0, row.held_nanos, row.spent_nanos, row.covered_nanos) if row is not None else (0, 0, 0, 0)
    )
    balances = accounts.balances
    yield from _differences(
        "account",
        ("granted", cap, -balances["granted"]),
        ("credits", cap - held - spent, balances["credits"]),
        ("held", held, balances["held"]),
        ("usage", spent + covered, balances["usage"]),
        ("covered", covered, -balances["covered"]),
    )
    if balances["credits"] < 0:
        yield Discrepancy("account", "credits", f"${format_usd(balances['credits'])}", "$0.00 or more")


def _differences(what: str, *fields: tuple[str, int, int]) -> Iterator[Discrepancy]:
    for name, recorded, reckoned in fields:
        if recorded != reckoned:
            yield Discrepancy(what, name, f"${format_usd(recorded)}", f"${format_usd(reckoned)}")
