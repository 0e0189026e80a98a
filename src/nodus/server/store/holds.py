"""Holds: money that is set aside for an owner until it is settled or released. Taken and ended in ``ledger.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Connection, and_, bindparam, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from nodus.core.errors import Conflict, Invalid, NotFound
from nodus.core.money import format_usd
from nodus.server.store.codec import clean
from nodus.server.store.context import lock_objects, now_us, org_of
from nodus.server.store.limits import Crossing, Limit
from nodus.server.store.prepared import Prepared
from nodus.server.store.schema import holds

State = Literal["Held", "Settled", "Released"]


@dataclass(frozen=True, slots=True)
class Owner:
    """What a hold pays for; when it is gone, the reaper ends the hold."""

    kind: str
    """Such as ``Attempt`` or ``Sandbox``; ``Request`` for a call to the gateway."""
    uid: str
    name: str
    project: str = ""


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """A hold that is wanted."""

    reference: str
    """Unique in the org and derived from what is paid for, such as ``attempt/UID/slice/3``; whoever asks under the same
    one is answered with the same hold, so nothing of it is a user's choice alone."""
    amount: int
    """Nano-dollars."""
    owner: Owner
    object: str
    """Uid of the object whose bill it is on: the TrainingJob and not its Job."""
    limits: Sequence[Limit] = ()
    """Most specific first: the first that lacks room is named. The credits are always the last."""
    reason: str = ""
    """What it is for, to read in lists."""
    pricebook: str = ""
    """Version of the prices that it was reckoned with."""
    expires_us: int | None = None
    """When the reaper looks whether the owner is still there, in microseconds since the epoch; None: never."""
    minimum: int | None = None
    """Take less than ``amount`` if no more is left, but no less than this; None: all or nothing."""
    leave: int = 0
    """With ``minimum``: what is left under each limit for others that are on the same bill."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold as it is; amounts in nano-dollars."""

    id: int
    """0 for an amount of zero, which is not written down."""
    reference: str
    amount: int
    settled: int
    covered: int
    state: State
    owner: Owner
    object: str
    reason: str
    pricebook: str
    created_us: int
    expires_us: int | None = None
    ended_us: int | None = None
    limits: tuple[int, ...] = ()
    """Numbers of the limits that it stands under."""
    crossings: tuple[Crossing, ...] = ()
    """Thresholds that were reached by taking it; empty when it is read."""


def find(conn: Connection, reference: str) -> Hold | None:
    """Return the hold of that reference, or None."""
    row = row_of(conn, reference)
    return None if row is None else from_row(row)


def open_holds(conn: Connection, *, owner: str | None = None, kind: str | None = None, limit: int = 1000) -> list[Hold]:
    """Return holds that have not ended, oldest first.

    Args:
        conn: a transaction.
        owner: uid of the owner; None means every owner's.
        kind: of the owner; None means every kind.
        limit: most holds.
    """
    query = select(holds).where(_OPEN, holds.c.org == org_of(conn))
    if owner is not None:
        query = query.where(holds.c.owner == owner)
    if kind is not None:
        query = query.where(holds.c.owner_kind == kind)
    return [from_row(row) for row in conn.execute(query.order_by(holds.c.id).limit(limit))]


def expired(conn: Connection, limit: int = 100) -> list[Hold]:
    """Return holds that have outlived their time without an end; those that wait longest come first."""
    query = select(holds).where(
        holds.c.state == "Held", holds.c.org == org_of(conn), holds.c.expires_us <= now_us(conn)
    )
    return [from_row(row) for row in conn.execute(query.order_by(holds.c.expires_us, holds.c.id).limit(limit))]


def extend(conn: Connection, reference: str, expires_us: int) -> Hold:
    """Give a hold another time at which it expires.

    Raises:
        NotFound: there is no such hold.
        Conflict: it has ended.
    """
    lock_objects(conn)
    row = row_of(conn, reference)
    if row is None:
        raise unknown(reference)
    if row.state != "Held":
        raise ended(row)
    conn.execute(update(holds).where(holds.c.id == row.id).values(expires_us=expires_us))
    return replace(from_row(row), expires_us=expires_us)


# For the ledger -----------------------------------------------------------------------------------------------------

# As it stands in the indexes of open holds: with a parameter in its place, they would not be used.
_OPEN = text("state = 'Held'")
_HERE = and_(holds.c.org == bindparam("org"), holds.c.reference == bindparam("reference"))
_FIND = Prepared(select(holds).where(_HERE))
_ADDED = [column.key for column in holds.c if column.key not in ("id", "ended_us")]
_ADD = Prepared(
    {
        "sqlite": sqlite.insert(holds).on_conflict_do_nothing().returning(holds.c.id),
        "postgresql": postgresql.insert(holds).on_conflict_do_nothing().returning(holds.c.id),
    },
    _ADDED,
)
_END = Prepared(
    update(holds)
    .where(holds.c.id == bindparam("of"))
    .values(
        state=bindparam("to"), settled_nanos=bindparam("settled"), covered_nanos=bindparam("covered"),
        ended_us=bindparam("now"),
    )
)  # fmt: skip


def add(conn: Connection, request: HoldRequest, amount: int, limits: Sequence[int]) -> Hold | None:
    """Write a hold; None when its reference is taken.

    Raises:
        Invalid: the reference can't be stored.
    """
    reference, owner = request.reference, request.owner
    if not reference or len(reference) > 253 or not (reference.isascii() and reference.isprintable()):
        raise Invalid(f"{reference[:300]!r} is no reference; use 1 to 253 printable ASCII characters")
    now = now_us(conn)
    row = {
        "org": org_of(conn), "reference": reference, "amount_nanos": amount, "settled_nanos": 0, "covered_nanos": 0,
        "state": "Held", "owner_kind": owner.kind, "owner": owner.uid, "owner_name": clean(owner.name)[:253],
        "project": owner.project, "object": request.object, "reason": clean(request.reason)[:253],
        "pricebook": request.pricebook, "limits": " ".join(map(str, limits)), "expires_us": request.expires_us,
        "created_us": now,
    }  # fmt: skip
    found = _ADD.scalar(conn, row)
    return None if found is None else taken(request, amount, int(found), tuple(limits), now)


def taken(request: HoldRequest, amount: int, number: int, limits: tuple[int, ...], now: int) -> Hold:
    """Return a hold that was just taken."""
    return Hold(
        number, request.reference, amount, 0, 0, "Held", request.owner, request.object, request.reason,
        request.pricebook, now, request.expires_us, None, limits,
    )  # fmt: skip


def end(conn: Connection, row: Any, state: State, settled: int, covered: int) -> int:
    """Write how a hold ended and return when, in microseconds since the epoch."""
    now = now_us(conn)
    _END.run(conn, {"of": row.id, "to": state, "settled": settled, "covered": covered, "now": now})
    return now


def row_of(conn: Connection, reference: str) -> Any:
    """Return the row of a hold, or None."""
    return _FIND.first(conn, {"org": org_of(conn), "reference": reference})


def from_row(row: Any) -> Hold:
    """Return a row as a hold."""
    owner = Owner(row.owner_kind, row.owner, row.owner_name, row.project)
    return Hold(
        row.id, row.reference, row.amount_nanos, row.settled_nanos, row.covered_nanos, row.state, owner, row.object,
        row.reason, row.pricebook, row.created_us, row.expires_us, row.ended_us, limits_of(row),
    )  # fmt: skip


def limits_of(row: Any) -> tuple[int, ...]:
    """Numbers of the limits that a hold's row names."""
    return tuple(map(int, row.limits.split()))


def unknown(reference: str) -> NotFound:
    """Return the error for a reference that no hold has."""
    return NotFound(f"there is no hold {reference!r}", details={"reference": reference})


def ended(row: Any) -> Conflict:
    """Return the error for a hold that has ended otherwise than the caller says."""
    how = f"settled for ${format_usd(row.settled_nanos)}" if row.state == "Settled" else "released"
    return Conflict(
        f"the hold {row.reference!r} of ${format_usd(row.amount_nanos)} was {how} already",
        fix="Use another reference for another payment.",
        details={"reference": row.reference},
    )
