"""Rows that count money: an org's credits, Budgets, and the caps of objects and groups.

All four kinds are one table, so that a hold is checked against however many of them with one statement. Whoever writes
here holds the object lock (:func:`nodus.server.store.context.lock_objects`): what was read stays as it is until the
commit, on both databases, and transactions over limits and objects wait for each other in one order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, bindparam, insert, select, union_all, update

from nodus.core.errors import BudgetExceeded, InsufficientCredits, Invalid
from nodus.core.money import MAX_NANOS, format_usd
from nodus.server.store.codec import clean
from nodus.server.store.context import lock_objects, org_of
from nodus.server.store.prepared import Prepared
from nodus.server.store.schema import limits

CREDITS: Final = "Credits"
MAX_LIMITS = 64
"""How many limits one hold may stand under."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that a hold stands under, besides the credits, under which every hold stands.

    The row is made when it is first used. After that, a hold raises the cap of an Object or a Group to the one it
    gives and never lowers it; the cap of a Budget is changed with :func:`set_cap` alone.
    """

    kind: Literal["Credits", "Budget", "Object", "Group"]
    """Never ``Credits`` in a request for a hold."""
    subject: str
    """Uid of the Budget or the object."""
    name: str
    """As messages call it: the Budget's name; ``job/train`` for an object or a group."""
    cap: int | None = None
    """Nano-dollars, or None: it counts and stops nothing."""
    period: str = ""
    """Such as ``2026-11``; empty for all time."""
    thresholds: tuple[int, ...] = ()
    """Nano-dollars that are worth a report when they are reached."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a limit has counted; amounts in nano-dollars."""

    kind: str
    subject: str
    period: str
    name: str
    cap: int | None
    held: int
    spent: int
    covered: int
    """What Nodus bore itself; no part of ``spent``."""
    thresholds: tuple[int, ...] = ()

    @property
    def left(self) -> int | None:
        """What can still be held; None without a cap."""
        return None if self.cap is None else max(self.cap - self.held - self.spent, 0)


class Crossing(NamedTuple):
    """A threshold that was reached. Whoever reports these also looks at the limit now and then: a process may die."""

    kind: str
    subject: str
    period: str
    name: str
    threshold: int
    """Nano-dollars."""
    measure: Literal["Committed", "Spent"]
    """What reached it: what is spent and held together (told by a hold), or what is spent (told by a settlement)."""


class Segment(NamedTuple):
    """What one part of a run's time cost, in nano-dollars and microseconds."""

    spent: int
    covered: int
    time_us: int
    covered_us: int


Refusal = InsufficientCredits | BudgetExceeded


def checked(amount: int) -> int:
    """Return an amount that the books can hold.

    Raises:
        Invalid: it is negative or above :data:`nodus.core.money.MAX_NANOS`.
    """
    if 0 <= amount <= MAX_NANOS:
        return amount
    wanted = f"amounts are from $0 to ${format_usd(MAX_NANOS)}"
    raise Invalid(f"${format_usd(amount)} can't be booked; {wanted}", fix="Use a smaller amount.")


def read(conn: Connection, kind: str, subject: str, period: str = "") -> Counted | None:
    """Return what a limit has counted, or None where nothing ever did."""
    rows = _by_keys(1).all(conn, {"org": org_of(conn), "kind0": kind, "subject0": subject, "period0": period})
    return _counted(rows[0]) if rows else None


def periods(conn: Connection, kind: str, subject: str) -> list[Counted]:
    """Return every period of a limit, oldest first."""
    query = READ.where(limits.c.org == org_of(conn), limits.c.kind == kind, limits.c.subject == subject)
    return [_counted(row) for row in conn.execute(query.order_by(limits.c.period))]


def set_cap(conn: Connection, limit: Limit) -> Counted:
    """Give a limit its cap, name and thresholds, whatever they were; the row is made where there is none.

    A cap below what is held and spent stops every further hold and takes nothing back.

    Raises:
        Invalid: the cap can't be counted.
    """
    lock_objects(conn)
    row = find(conn, [limit])[0]
    if row is None:
        create(conn, limit)
    else:
        values = {"cap_nanos": _cap(limit), "name": _name(limit), "thresholds": _thresholds(limit)}
        conn.execute(update(limits).where(limits.c.id == row.id).values(values))
    found = read(conn, limit.kind, limit.subject, limit.period)
    assert found is not None
    return found


# For the ledger -----------------------------------------------------------------------------------------------------

_COLUMNS = (
    limits.c.id, limits.c.kind, limits.c.subject, limits.c.period, limits.c.name, limits.c.cap_nanos,
    limits.c.held_nanos, limits.c.spent_nanos, limits.c.covered_nanos, limits.c.thresholds,
)  # fmt: skip
READ = select(*_COLUMNS)
"""What is read of limits, to be narrowed down."""
_CREATE = Prepared(insert(limits).returning(limits.c.id), [c.key for c in limits.c if c.key != "id"])
_RAISE = Prepared(update(limits).where(limits.c.id == bindparam("of")).values(cap_nanos=bindparam("cap")))


@functools.cache
def _by_keys(count: int) -> Prepared:
    """The statement that reads so many limits by what they are for.

    One look into the index for each: with OR between them, SQLite may read every limit of the org instead.
    """
    c = limits.c
    each = [
        READ.where(
            c.org == bindparam("org"),
            c.kind == bindparam(f"kind{n}"),
            c.subject == bindparam(f"subject{n}"),
            c.period == bindparam(f"period{n}"),
        )
        for n in range(count)
    ]
    return Prepared(union_all(*each) if count > 1 else each[0])


def find(conn: Connection, wanted: Sequence[Limit]) -> list[Any]:
    """Return the row of each limit, None where there is none yet."""
    values: dict[str, Any] = {"org": org_of(conn)}
    for number, limit in enumerate(wanted):
        values[f"kind{number}"] = limit.kind
        values[f"subject{number}"] = limit.subject
        values[f"period{number}"] = limit.period
    rows = {(row.subject, row.kind, row.period): row for row in _by_keys(len(wanted)).all(conn, values)}
    return [rows.get((limit.subject, limit.kind, limit.period)) for limit in wanted]


def credits_of(conn: Connection) -> Limit:
    """Return the limit of the org's credits."""
    org = org_of(conn)
    return Limit(CREDITS, org, "credits", cap=0)


def create(conn: Connection, limit: Limit) -> int:
    """Make a limit's row and return its number.

    Raises:
        Invalid: the cap can't be counted.
    """
    values = {
        "org": org_of(conn), "kind": limit.kind, "subject": limit.subject, "period": limit.period,
        "name": _name(limit), "cap_nanos": _cap(limit), "held_nanos": 0, "spent_nanos": 0, "covered_nanos": 0,
        "thresholds": _thresholds(limit),
    }  # fmt: skip
    return int(_CREATE.scalar(conn, values))


def raised_cap(limit: Limit, row: Any) -> int | None:
    """Return the cap that counts for a hold: the row's, or a higher one that it brings."""
    if row is None:
        return _cap(limit)
    if limit.kind in (CREDITS, "Budget") or limit.cap is None:
        return row.cap_nanos  # type: ignore[no-any-return]
    return _cap(limit) if row.cap_nanos is None else max(row.cap_nanos, _cap(limit) or 0)


def raise_cap(conn: Connection, row: Any, cap: int | None) -> None:
    """Write a cap that :func:`raised_cap` returned."""
    _RAISE.run(conn, {"of": row.id, "cap": cap})


def of_object(conn: Connection, subject: str) -> Any:
    """Return the row of an object's or a group's limit, or None."""
    wanted = [Limit("Object", subject, ""), Limit("Group", subject, "")]
    return next((row for row in find(conn, wanted) if row is not None), None)


def refusal(limit: Limit, amount: int, cap: int, left: int) -> Refusal:
    """Return the error for a hold that doesn't fit; amounts in nano-dollars."""
    needed, rest = format_usd(amount), format_usd(left)
    if limit.kind == CREDITS:
        return InsufficientCredits(
            f"this needs ${needed} and ${rest} of credits is left",
            fix=f"Add credits: nodus admin grant --amount {format_usd(amount - left)} (or more).",
            details={"availableUSD": rest, "neededUSD": needed},
        )
    details = {"budget": limit.name, "neededUSD": needed, "remainingUSD": rest}
    if limit.kind == "Budget":
        later = ", or wait for its next period" if limit.period else ""
        return BudgetExceeded(
            f"this needs ${needed} and the Budget {limit.name!r} has ${rest} of ${format_usd(cap)} left",
            fix=f"Raise its spec.limitUSD{later}: nodus edit budget/{limit.name}.",
            details=details,
        )
    return BudgetExceeded(
        f"{limit.name} needs ${needed} and has ${rest} of its cap of ${format_usd(cap)} left",
        fix=f"Raise its spec.maxCostUSD to {format_usd(cap + amount - left)} or more.",
        details={**details, "reason": "MaxCostReached"},
    )


def reached(row: Limit | Any, before: int, after: int, measure: Literal["Committed", "Spent"]) -> list[Crossing]:
    """Return the thresholds of a limit that lie above one amount and not above another.

    Args:
        row: the limit, as a request gives it or as a row.
        before: nano-dollars.
        after: likewise.
        measure: what the amounts are.
    """
    thresholds = row.thresholds if isinstance(row, Limit) else map(int, row.thresholds.split())
    return [
        Crossing(row.kind, row.subject, row.period, row.name, threshold, measure)
        for threshold in thresholds
        if before < threshold <= after
    ]


def _counted(row: Any) -> Counted:
    thresholds = tuple(map(int, row.thresholds.split()))
    return Counted(
        row.kind, row.subject, row.period, row.name, row.cap_nanos, row.held_nanos, row.spent_nanos,
        row.covered_nanos, thresholds,
    )  # fmt: skip


def _cap(limit: Limit) -> int | None:
    return None if limit.cap is None else checked(limit.cap)


def _name(limit: Limit) -> str:
    return clean(limit.name)[:253]


def _thresholds(limit: Limit) -> str:
    return " ".join(str(checked(amount)) for amount in sorted(set(limit.thresholds)))
