"""The ledger: what is spent is held before, under every limit that covers it, and settled once.

    found = await store.write(ledger.hold, HoldRequest("attempt/UID/slice/0", amount, owner, job.uid, limits))
    await store.write(ledger.settle, found.reference, [Charge("compute/local-cpu", used)])

Each function is a part of a transaction like any other of the store: a controller that decides work takes the hold for
it in the same one. Amounts are integer nano-dollars. Every call is idempotent by its reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sqlalchemy import Connection

from nodus.core.errors import Conflict, Invalid
from nodus.core.money import format_usd
from nodus.server.store import books, counting, holds, limits
from nodus.server.store.books import Charge
from nodus.server.store.context import lock_objects, now_us, org_of
from nodus.server.store.holds import Hold, HoldRequest, Owner, expired, extend, open_holds
from nodus.server.store.limits import Counted, Crossing, Limit, Refusal, Segment, checked

__all__ = [
    "Balance", "Charge", "Cost", "Counted", "Crossing", "Hold", "HoldRequest", "Limit", "Owner", "Refusal", "Rolled",
    "Segment", "Settlement", "balance", "cost_of", "expired", "extend", "grant", "hold", "open_holds", "release",
    "roll", "settle", "try_hold", "would_refuse",
]  # fmt: skip


class Settlement(NamedTuple):
    """What a settlement did; amounts in nano-dollars."""

    hold: Hold | None
    """The hold as it ended; None where nothing was held and nothing used."""
    paid: int
    covered: int
    """What Nodus bore: what the charges say, and what they came to beyond the hold."""
    returned: int
    """What was held and not used."""
    crossings: tuple[Crossing, ...] = ()


class Rolled(NamedTuple):
    """What :func:`roll` did."""

    settled: Settlement
    next: Hold | None
    refused: Refusal | None
    """Why there is no next hold."""


class Balance(NamedTuple):
    """An org's credits, in nano-dollars."""

    granted: int
    held: int
    spent: int
    covered: int

    @property
    def available(self) -> int:
        """What can be held now."""
        return self.granted - self.held - self.spent


@dataclass(frozen=True, slots=True)
class Cost:
    """What an object or a group has cost; amounts in nano-dollars."""

    total: int = 0
    held: int = 0
    cap: int | None = None
    covered: int = 0
    segments: dict[str, Segment] = field(default_factory=dict)
    """By boot, running, restore and teardown; those that there were."""


def grant(conn: Connection, amount: int, reference: str, reason: str = "") -> Balance:
    """Add credits and return what there is now.

    Args:
        conn: a write transaction.
        amount: nano-dollars, above zero.
        reference: the second grant under it adds nothing.
        reason: to read in lists.

    Raises:
        Invalid: the amount isn't above zero, or the credits would be more than can be counted.
        Conflict: the reference was granted another amount.
    """
    lock_objects(conn)
    if checked(amount) == 0:
        raise Invalid("a grant of $0.00 adds nothing", fix="Use an amount above zero.")
    credit = limits.credits_of(conn)
    row = limits.find(conn, [credit])[0]
    before = books.granted(conn, reference)
    if before is not None:
        if before != amount:
            was, now = format_usd(before), format_usd(amount)
            name = reference.removeprefix("grant/")  # as the Owner who granted it wrote it
            raise Conflict(
                f"the grant {name!r} was ${was}, not ${now}",
                fix="Use another reference (--idempotency-key) for another grant.",
            )
        return balance(conn)
    checked(amount + (row.cap_nanos if row is not None else 0))
    books.grant(conn, amount, reference, reason)
    counting.grant(conn, row.id if row is not None else limits.create(conn, credit), amount)
    return balance(conn)


def hold(conn: Connection, request: HoldRequest) -> Hold:
    """Set money aside under every limit of a request and under the credits, or change nothing.

    An amount of zero takes no hold: what is returned is not written down, and nothing needs to end it. A reference
    that has a hold gets that one, whatever became of it.

    Raises:
        InsufficientCredits: the credits don't cover it.
        BudgetExceeded: a Budget or a cap leaves no room; the first in the order of the request is named.
        Conflict: the reference has a hold of another amount.
        Invalid: an amount or the reference can't be stored.
    """
    found = try_hold(conn, request)
    if not isinstance(found, Hold):
        raise found
    return found


def try_hold(conn: Connection, request: HoldRequest) -> Hold | Refusal:
    """Like :func:`hold`, for transactions that go on without the money: a refusal is returned, not raised."""
    amount = checked(request.amount)
    if amount == 0:
        return holds.taken(request, 0, 0, (), now_us(conn))
    lock_objects(conn)
    wanted, rows, caps = _look(conn, request.limits)
    fitting = _fitting(wanted, rows, caps, amount, request.minimum, request.leave)
    if not isinstance(fitting, int):
        before = holds.row_of(conn, request.reference)
        return fitting if before is None else _same(before, request)
    numbers = []
    for limit, row, cap in zip(wanted, rows, caps, strict=True):
        numbers.append(row.id if row is not None else limits.create(conn, limit))
        if row is not None and row.cap_nanos != cap:
            limits.raise_cap(conn, row, cap)
    taken = holds.add(conn, request, fitting, numbers)
    if taken is None:
        return _same(holds.row_of(conn, request.reference), request)
    counting.hold(conn, numbers, fitting)
    books.add(conn, taken.created_us, "Hold", taken.id, fitting)
    crossed: list[Crossing] = []
    for limit, row in zip(wanted, rows, strict=True):
        if row is None:
            crossed += limits.reached(limit, 0, fitting, "Committed")
        elif row.thresholds:
            before = row.held_nanos + row.spent_nanos
            crossed += limits.reached(row, before, before + fitting, "Committed")
    return replace(taken, crossings=tuple(crossed)) if crossed else taken


def would_refuse(conn: Connection, amount: int, under: Sequence[Limit]) -> Refusal | None:
    """Return why a hold of an amount would be refused now, or None; nothing is written."""
    wanted, rows, caps = _look(conn, under)
    fitting = _fitting(wanted, rows, caps, checked(amount), None)
    return None if isinstance(fitting, int) else fitting


def settle(conn: Connection, reference: str, charges: Sequence[Charge] = ()) -> Settlement:
    """End a hold with what was used of it; the rest goes back.

    No more is paid than was held: what charges come to beyond it is covered by Nodus, and the books say so.

    Args:
        conn: a write transaction.
        reference: the hold's.
        charges: what was used; none means nothing.

    Raises:
        NotFound: there is no such hold and the charges aren't zero.
        Conflict: it has ended otherwise.
        Invalid: an amount can't be stored.
    """
    for charge in charges:
        for number in (charge.amount, charge.covered, charge.quantity, charge.covered_quantity):
            checked(number)
    used = sum(charge.amount for charge in charges)
    borne = sum(charge.covered for charge in charges)
    lock_objects(conn)
    row = holds.row_of(conn, reference)
    if row is None:
        if used or borne:
            raise holds.unknown(reference)
        return Settlement(None, 0, 0, 0)
    paid = min(used, row.amount_nanos)
    covered, rest = checked(borne + used - paid), row.amount_nanos - paid
    if row.state != "Held":
        if (row.state, row.settled_nanos, row.covered_nanos) != ("Settled", paid, covered):
            raise holds.ended(row)
        return Settlement(holds.from_row(row), paid, covered, rest)
    now = holds.end(conn, row, "Settled", paid, covered)
    numbers = holds.limits_of(row)
    counting.settle(conn, numbers, row.amount_nanos, paid, covered)
    _book(conn, row, numbers, charges, rest, now)
    crossed: list[Crossing] = []
    for limit in counting.watched(conn, numbers) if paid else ():
        crossed += limits.reached(limit, limit.spent_nanos - paid, limit.spent_nanos, "Spent")
    ended = holds.from_row(row._replace(state="Settled", settled_nanos=paid, covered_nanos=covered, ended_us=now))
    return Settlement(ended, paid, covered, rest, tuple(crossed))


def release(conn: Connection, reference: str) -> Hold | None:
    """End a hold of which nothing was used; None where there is none, as for an amount of zero.

    Raises:
        Conflict: it was settled.
    """
    lock_objects(conn)
    row = holds.row_of(conn, reference)
    if row is None:
        return None
    if row.state == "Settled":
        raise holds.ended(row)
    if row.state == "Released":
        return holds.from_row(row)
    now = holds.end(conn, row, "Released", 0, 0)
    numbers = holds.limits_of(row)
    counting.settle(conn, numbers, row.amount_nanos, 0, 0)
    books.add(conn, now, "Release", row.id, row.amount_nanos)
    return holds.from_row(row._replace(state="Released", ended_us=now))


def roll(conn: Connection, reference: str, charges: Sequence[Charge], request: HoldRequest) -> Rolled:
    """Settle a hold and take the next in one transaction: the money is never free for another in between.

    The settlement stands even where the next hold is refused.

    Raises:
        NotFound: as :func:`settle`.
        Conflict: as :func:`settle` and :func:`hold`.
        Invalid: likewise.
    """
    settled = settle(conn, reference, charges)
    found = try_hold(conn, request)
    return Rolled(settled, found, None) if isinstance(found, Hold) else Rolled(settled, None, found)


def balance(conn: Connection) -> Balance:
    """Return the org's credits."""
    found = limits.read(conn, limits.CREDITS, org_of(conn))
    return Balance(0, 0, 0, 0) if found is None else Balance(found.cap or 0, found.held, found.spent, found.covered)


def cost_of(conn: Connection, subject: str) -> Cost:
    """Return what an object or a group has cost, by its uid; all zero where nothing was ever held for it."""
    row = limits.of_object(conn, subject)
    if row is None:
        return Cost()
    parts = counting.segments(conn, row.id)
    return Cost(row.spent_nanos, row.held_nanos, row.cap_nanos, row.covered_nanos, parts)


def _look(conn: Connection, under: Sequence[Limit]) -> tuple[list[Limit], list[Any], list[int | None]]:
    """Return the limits of a hold, their rows where there are any, and the caps that count.

    Raises:
        Invalid: they are too many, or a cap can't be counted.
    """
    # Whoever gives a limit twice means it once.
    distinct = {(limit.kind, limit.subject, limit.period): limit for limit in under}
    wanted = [*distinct.values(), limits.credits_of(conn)]
    if len(wanted) > limits.MAX_LIMITS:
        message = f"a hold under {len(wanted)} limits; {limits.MAX_LIMITS} are the most"
        raise Invalid(message, fix="Remove some Budgets.")
    rows = limits.find(conn, wanted)
    return wanted, rows, [limits.raised_cap(limit, row) for limit, row in zip(wanted, rows, strict=True)]


def _fitting(
    wanted: Sequence[Limit],
    rows: Sequence[Any],
    caps: Sequence[int | None],
    amount: int,
    minimum: int | None,
    leave: int = 0,
) -> int | Refusal:
    """Return what can be held of an amount under all limits, or the error of the first that leaves too little."""
    least = amount if minimum is None else max(min(minimum, amount), 1) + leave
    fitting = amount
    for limit, row, cap in zip(wanted, rows, caps, strict=True):
        if cap is None:
            continue
        left = cap if row is None else max(cap - row.held_nanos - row.spent_nanos, 0)
        if left < least:
            return limits.refusal(limit, least, cap, left)
        fitting = min(fitting, left if minimum is None else left - leave)
    return fitting


def _same(row: Any, request: HoldRequest) -> Hold:
    """Return the hold of a repeated request.

    Raises:
        Conflict: the request is another one.
    """
    least = request.amount if request.minimum is None else min(request.minimum, request.amount)
    if least <= row.amount_nanos <= request.amount:
        return holds.from_row(row)
    raise Conflict(
        f"the hold {row.reference!r} is ${format_usd(row.amount_nanos)}, not ${format_usd(request.amount)}",
        fix="Use another reference for another payment.",
        details={"reference": row.reference},
    )


def _book(conn: Connection, row: Any, numbers: Sequence[int], charges: Sequence[Charge], rest: int, now: int) -> None:
    """Write the transfers of a settlement, and what segments cost."""
    left = row.amount_nanos - rest
    for charge in charges:
        paid = min(charge.amount, left)
        left -= paid
        covered = charge.covered + charge.amount - paid
        if paid or charge.quantity:
            books.add(conn, now, "Charge", row.id, paid, charge, charge.quantity)
        if covered or charge.covered_quantity:
            books.add(conn, now, "Cover", row.id, covered, charge, charge.covered_quantity)
        if charge.segment:
            part = Segment(paid, covered, charge.quantity, charge.covered_quantity)
            counting.add_segment(conn, numbers, charge.segment, part)
    if rest:
        books.add(conn, now, "Release", row.id, rest)
