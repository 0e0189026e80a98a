"""What the ledger adds to limits and takes from them: plain sums, under the object lock, once room was made sure of."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from nodus.core.errors import Invalid
from nodus.core.money import MAX_NANOS, format_usd
from nodus.server.store.context import org_of
from nodus.server.store.limits import READ, Segment
from nodus.server.store.prepared import Prepared
from nodus.server.store.schema import limit_segments, limits


def grant(conn: Connection, number: int, amount: int) -> None:
    """Raise a cap by an amount."""
    _GRANT.run(conn, {"of": number, "amount": amount})


def hold(conn: Connection, numbers: Sequence[int], amount: int) -> None:
    """Count an amount as held under limits that have room for it."""
    if _hold_under(len(numbers)).run(conn, _numbered(numbers) | {"amount": amount}) != len(numbers):
        raise AssertionError(f"the limits {numbers} changed under the lock")


def settle(conn: Connection, numbers: Sequence[int], amount: int, paid: int, covered: int) -> None:
    """Count an amount as no longer held, and what was paid and covered.

    Raises:
        Invalid: what Nodus covers is more than can be counted.
    """
    values = _numbered(numbers) | {
        "amount": amount, "paid": paid, "covered": covered, "most": MAX_NANOS - covered
    }  # fmt: skip
    if _settle_under(len(numbers)).run(conn, values) != len(numbers):
        raise Invalid(f"${format_usd(covered)} can't be covered on top of what was", fix="Use a smaller amount.")


def watched(conn: Connection, numbers: Sequence[int]) -> list[Any]:
    """Return the rows of those limits that have thresholds."""
    return _watched_of(len(numbers)).all(conn, _numbered(numbers))


def add_segment(conn: Connection, numbers: Sequence[int], segment: str, part: Segment) -> None:
    """Count what a part of a run's time cost under each limit."""
    for number in numbers:
        values = (number, segment, org_of(conn), *part)
        _ADD_SEGMENT.run(conn, dict(zip(_SEGMENT_COLUMNS, values, strict=True)))


def segments(conn: Connection, number: int) -> dict[str, Segment]:
    """Return what each part of the time cost under a limit."""
    return {
        row.segment: Segment(row.spent_nanos, row.covered_nanos, row.time_us, row.covered_us)
        for row in _SEGMENTS.all(conn, {"of": number})
    }


# Statements ---------------------------------------------------------------------------------------------------------

_DIALECTS: dict[str, Any] = {"sqlite": sqlite, "postgresql": postgresql}
_GRANT = Prepared(
    update(limits).where(limits.c.id == bindparam("of")).values(cap_nanos=limits.c.cap_nanos + bindparam("amount"))
)
_SEGMENT_COLUMNS = [column.key for column in limit_segments.c]
_SEGMENTS = Prepared(select(limit_segments).where(limit_segments.c.limit == bindparam("of")))


def _adding_segments(insert_: Any) -> Any:
    added, there = insert_.excluded, limit_segments.c
    return insert_.on_conflict_do_update(
        index_elements=[there.limit, there.segment],
        set_={name: there[name] + added[name] for name in ("spent_nanos", "covered_nanos", "time_us", "covered_us")},
    )


_ADD_SEGMENT = Prepared(
    {name: _adding_segments(module.insert(limit_segments)) for name, module in _DIALECTS.items()}, _SEGMENT_COLUMNS
)


def _numbered(numbers: Sequence[int]) -> dict[str, Any]:
    return {f"of{place}": number for place, number in enumerate(numbers)}


def _these(count: int) -> Any:
    return or_(*(limits.c.id == bindparam(f"of{place}") for place in range(count)))


@functools.cache
def _hold_under(count: int) -> Prepared:
    """The statement that holds an amount under so many limits, those that have room."""
    c = limits.c
    amount: Any = bindparam("amount")
    room = or_(c.cap_nanos.is_(None), c.cap_nanos - c.held_nanos - c.spent_nanos >= amount)
    return Prepared(update(limits).where(and_(_these(count), room)).values(held_nanos=c.held_nanos + amount))


@functools.cache
def _settle_under(count: int) -> Prepared:
    """The statement that ends a hold under so many limits, those that can count what is covered."""
    c = limits.c
    return Prepared(
        update(limits)
        .where(_these(count), c.covered_nanos <= bindparam("most"))
        .values(
            held_nanos=c.held_nanos - bindparam("amount"),
            spent_nanos=c.spent_nanos + bindparam("paid"),
            covered_nanos=c.covered_nanos + bindparam("covered"),
        )
    )


@functools.cache
def _watched_of(count: int) -> Prepared:
    """The statement that reads those of so many limits that have thresholds."""
    return Prepared(READ.where(_these(count), limits.c.thresholds != ""))
