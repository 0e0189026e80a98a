"""The money of an attempt: what it costs, the slices it is funded in, and what it is charged at its end.

Read by the Attempt controller with everything else it decides about; when and how much is decided in ``billing``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from nodus.core.clock import rfc3339
from nodus.core.errors import NodusError
from nodus.core.kinds import ATTEMPT, OFFERING
from nodus.core.money import format_usd, parse_usd
from nodus.server.billing import funding, metering
from nodus.server.billing.funding import PACE, Pace, Paid, Roll, Stop, Wait, Wanted
from nodus.server.billing.limits import limits_for
from nodus.server.billing.refusals import told
from nodus.server.controllers import memberspec
from nodus.server.controllers.outcome import REFUSED, Payment
from nodus.server.store import ledger, objects
from nodus.server.store.ledger import Charge, HoldRequest, Limit, Owner

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.compute.base import MemberState
    from nodus.server.controllers.outcome import ActionResult
    from nodus.server.store.objects import Object

_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms this server runs what costs something."""

    pricebook: str = ""
    """Version of the prices in force."""
    pace: Pace = PACE
    """How far ahead runs are funded."""
    grading: int = 0
    """Nano-dollars for an hour of one grading sandbox at work."""


FREE_TERMS = Terms()


class Place(NamedTuple):
    """Where an attempt runs, and what an hour of its share of that costs in nano-dollars."""

    offering: str
    rate: int


@dataclass(frozen=True, slots=True)
class Account:
    """The books of an attempt that costs something."""

    attempt: Object
    place: Place
    paid: Paid
    charged_us: int
    """Running time that it has been charged for."""
    open: str | None
    """Reference of its open hold."""
    spender: Object
    """Whose limits its holds stand under."""
    bill: str
    """Uid of the object whose bill it is on."""
    terms: Terms

    @property
    def item(self) -> str:
        """What its charges are for."""
        return f"compute/{self.place.offering}"

    @property
    def funded_s(self) -> float:
        """How long it may run in all, in seconds; its supervisor is told."""
        return funding.funded_us(self.place.rate, self.paid) / _SECOND_US


class Due(NamedTuple):
    """What is due for a running attempt now."""

    payment: Payment | None = None
    short: dict[str, str] | None = None
    """Reason, message and fix, when it has to stop because no further money is to be had."""
    again_s: float | None = None
    """When to look again."""


def load(
    conn: Connection, attempt: Object, owner: Object, node: str, terms: Terms
) -> tuple[Place | None, Account | None]:
    """Read where an attempt runs or would run, and its books; no books where it costs nothing.

    Args:
        conn: a transaction.
        attempt: The attempt.
        owner: The Job or Sandbox that it is a run of.
        node: This host's id.
        terms: This server's.
    """
    place = _known_place(attempt) or _place(conn, owner, node)
    if place is None or place.rate == 0:
        return place, None
    cost = ledger.cost_of(conn, attempt.uid)
    running = cost.segments.get("running")
    held = ledger.open_holds(conn, owner=attempt.uid)
    return place, Account(
        attempt=attempt,
        place=place,
        paid=Paid(cost.total, cost.held),
        charged_us=running.time_us if running is not None else 0,
        open=held[0].reference if held else None,
        spender=owner,
        bill=min(owner.controllers, default=owner.uid),
        terms=terms,
    )


def _known_place(attempt: Object) -> Place | None:
    known = attempt.status.get("placement") or {}
    if "offering" not in known or "rateUSDPerHour" not in known:
        return None
    return Place(known["offering"], parse_usd(known["rateUSDPerHour"]))


def _place(conn: Connection, owner: Object, node: str) -> Place | None:
    """The offering of this host that a run would take its share of; None where none fits."""
    request = memberspec.request_of(owner.spec)
    for offering in objects.list_(conn, OFFERING, None).items:
        has = int(offering.spec.get("count") or 0)
        if offering.spec.get("node") not in (None, node) or bool(has) != bool(request.gpus) or has < request.gpus:
            continue
        whole = has if request.gpus else Fraction(str(offering.spec.get("cpu") or 1))
        used = request.gpus if request.gpus else Fraction(str(request.cpu))
        price = parse_usd(offering.spec.get("priceUSDPerHour") or "0")
        return Place(offering.name, metering.rate_of(price, min(Fraction(1), Fraction(used) / whole)))
    return None


def ran_us(member: MemberState, now: datetime) -> int:
    """Return how long a member's command has run, pauses left out, in microseconds."""
    times = member.times
    if "ran" in times:
        return round(times["ran"] * _SECOND_US)
    if "started" not in times:
        return 0
    until = times.get("finished") or times.get("pausedAt") or now.timestamp()
    return max(0, round((until - times["started"] - times.get("paused", 0.0)) * _SECOND_US))


def to_supervisor(account: Account) -> dict[str, Any]:
    """Return what the supervisor is told of an attempt's funding."""
    return {"seconds": account.funded_s, "rate": account.place.rate, "item": account.item}


def until(account: Account, member: MemberState) -> dict[str, str]:
    """Return the time until which a running attempt is funded; nothing for one that doesn't run."""
    if member.phase != "Running" or "started" not in member.times:
        return {}
    at = member.times["started"] + member.times.get("paused", 0.0) + account.funded_s
    return {"untilTime": rfc3339(datetime.fromtimestamp(at, UTC))}


def begin(account: Account, number: int) -> Payment:
    """Return the payment for the first slice."""
    request = _request(account, number, funding.opening(account.place.rate, account.terms.pace))
    return Payment(hold=request, spender=account.spender)


def follow(account: Account, number: int, ran: int, result: ActionResult | None) -> Due:
    """Return what is due for an attempt that has run for ``ran`` microseconds.

    Args:
        account: Its books.
        number: Of its next slice.
        ran: Microseconds.
        result: Of the last pass; a refused payment is one.
    """
    rate = account.place.rate
    due = funding.step(rate, account.paid, ran, account.terms.pace)
    if isinstance(due, Wait):
        return Due(again_s=due.time_us / _SECOND_US)
    refusal = refusal_of(result)
    if refusal is None:
        return Due(payment=_roll(account, number, due, ran))
    then = funding.refused(rate, account.paid, ran, account.terms.pace)
    if isinstance(then, Stop):
        return Due(short=told(refusal))
    return Due(again_s=then.time_us / _SECOND_US)


def finish(account: Account, member: MemberState, ran: int) -> Payment | None:
    """Return the payment at an attempt's end; None when nothing is held.

    What a lost member used since it was last charged nobody knows: that is not charged.
    """
    if account.open is None:
        return None
    if member.phase == "Lost" or "started" not in member.times:
        return Payment(settle=account.open)
    return Payment(settle=account.open, charges=(*_boot(account, member), _end(account, ran)))


def final_cost(account: Account, payment: Payment | None) -> dict[str, Any]:
    """Return ``status.cost`` of an attempt that ended with a payment."""
    last = sum(charge.amount for charge in payment.charges) if payment is not None else 0
    return {"totalUSD": format_usd(account.paid.charged + last), "final": True}


def refusal_of(result: ActionResult | None) -> NodusError | None:
    """Return why a payment was refused, if the last pass's was."""
    return result.value["refusal"] if result is not None and result.name == REFUSED else None


def _roll(account: Account, number: int, due: Roll, ran: int) -> Payment:
    charge = _charge(account, due.used, ran)
    return Payment(account.open, (charge,), _request(account, number, due.next), account.spender)


def _end(account: Account, ran: int) -> Charge:
    closing = funding.close(account.place.rate, account.paid, ran)
    return _charge(account, closing.used, ran, closing.beyond)


def _charge(account: Account, used: int, ran: int, beyond: int = 0) -> Charge:
    time_us = max(0, ran - account.charged_us)
    return Charge(account.item, used, covered=beyond, quantity=time_us, unit="us", segment="running")


def _boot(account: Account, member: MemberState) -> list[Charge]:
    """The time from the supervisor's start to the command's, which Nodus covers: no user can shorten it."""
    started = member.times["started"]
    time_us = max(0, round((started - member.times.get("created", started)) * _SECOND_US))
    covered = metering.amount_of(account.place.rate, time_us)
    return [Charge(account.item, 0, covered=covered, covered_quantity=time_us, unit="us", segment="boot")]


def _request(account: Account, number: int, wanted: Wanted) -> HoldRequest:
    attempt = account.attempt
    return HoldRequest(
        reference=f"attempt/{attempt.uid}/slice/{number}",
        amount=wanted.amount,
        minimum=wanted.least,
        leave=_for_grading(account.spender, account.terms),
        owner=Owner("Attempt", attempt.uid, attempt.name, attempt.project or ""),
        object=account.bill,
        limits=(Limit("Object", attempt.uid, f"attempt/{attempt.name}"),),
        reason=f"running at ${format_usd(account.place.rate)} an hour",
        pricebook=account.terms.pricebook,
    )


def _for_grading(owner: Object, terms: Terms) -> int:
    """What a run's own slices leave of its limits: its completions are graded on the same bill, or it gets nowhere."""
    if not terms.grading or memberspec.TRAINING_LABEL not in owner.labels:
        return 0
    return funding.opening(terms.grading, terms.pace).amount


def settle_left_over(conn: Connection, uid: str, rate: int, item: str, ran: int) -> None:
    """Settle what an attempt still holds that nobody else will: it was deleted, or given up.

    Args:
        conn: a write transaction.
        uid: The attempt's.
        rate: Nano-dollars an hour, from what its supervisor was told; 0 where nothing is known, and nothing charged.
        item: What that is for, from there too.
        ran: Microseconds that it ran.
    """
    for held in ledger.open_holds(conn, owner=uid):
        cost = ledger.cost_of(conn, uid)
        running = cost.segments.get("running")
        if not rate:
            ledger.release(conn, held.reference)
            continue
        closing = funding.close(rate, Paid(cost.total, cost.held), ran)
        time_us = max(0, ran - (running.time_us if running is not None else 0))
        charge = Charge(item, closing.used, closing.beyond, quantity=time_us, unit="us", segment="running")
        ledger.settle(conn, held.reference, [charge])


def holds_money(conn: Connection, uid: str) -> bool:
    """Tell whether an attempt has an open hold."""
    return bool(ledger.open_holds(conn, owner=uid, limit=1))


def left_over(conn: Connection) -> list[str]:
    """Return the uids of attempts that hold money though they are gone or have ended."""
    owners = {held.owner.uid for held in ledger.open_holds(conn) if held.owner.kind == ATTEMPT.name}
    found = {uid: objects.find_by_uid(conn, uid) for uid in owners}
    return sorted(
        uid for uid, attempt in found.items() if attempt is None or ATTEMPT.is_terminal(attempt.status.get("phase"))
    )


def shortage(
    conn: Connection, owner: Object, node: str, terms: Terms, stopped: Iterable[Object] = ()
) -> dict[str, str] | None:
    """Return reason, message and fix why a further attempt of a run would not be funded now, or None when it would.

    Args:
        conn: a transaction.
        owner: The Job.
        node: This host's id.
        terms: This server's.
        stopped: Its attempts that were stopped for want of money; each says what more its grading waits for.
    """
    place = _place(conn, owner, node)
    least = funding.opening(place.rate, terms.pace).least if place is not None and place.rate else 0
    if leave := _for_grading(owner, terms):
        needed = (parse_usd(attempt.spec.get("needsUSD") or "0") for attempt in stopped)
        # Where the run itself is free, none of its slices leaves anything.
        least += max([leave if least else funding.opening(terms.grading, terms.pace).least, *needed])
    refusal = ledger.would_refuse(conn, least, limits_for(conn, owner)) if least else None
    return None if refusal is None else told(refusal)


def placement(place: Place) -> dict[str, Any]:
    """Return what of a placement is fixed when money is taken for it."""
    return {"offering": place.offering, "rateUSDPerHour": format_usd(place.rate)}
