"""What the ledger must do, as simply as it can be said, and the calls that the property tests make of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from sqlalchemy import Connection

from nodus.core.errors import BudgetExceeded, Conflict, InsufficientCredits, NotFound
from nodus.server.store import ledger, limits
from nodus.server.store.ledger import Charge, Hold, HoldRequest, Limit, Owner, Settlement

Outcome = tuple[Any, ...]
Key = tuple[str, str]
OWNERS = ("a", "b")
SUBJECTS = (("Object", "job"), ("Object", "tj"), ("Group", "g"), ("Budget", "team"), ("Budget", "notify"))
CREDITS: Key = ("Credits", "")
REFERENCES = tuple("rstuvw")


@dataclass(frozen=True)
class Call:
    """One call of the ledger: small amounts, few references, so that calls get in each other's way."""

    verb: str
    reference: str
    amount: int = 0
    minimum: int | None = None
    under: tuple[tuple[Key, int | None], ...] = ()
    charges: tuple[tuple[int, int, str], ...] = ()
    next: Call | None = None

    def __call__(self, conn: Connection) -> Outcome:
        """Make it, and return what came of it; what is raised goes on."""
        return _REAL[self.verb](conn, self)


_charges = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 2), st.sampled_from(["", "boot", "running"])), max_size=3
).map(tuple)
_references = st.sampled_from(REFERENCES)
_holds = st.builds(
    Call,
    verb=st.just("hold"),
    reference=_references,
    amount=st.integers(0, 9),
    minimum=st.none() | st.integers(0, 6),
    under=st.lists(
        st.tuples(st.sampled_from(SUBJECTS), st.none() | st.integers(0, 20)), max_size=4, unique_by=lambda one: one[0]
    ).map(tuple),
)
calls = st.one_of(
    _holds,
    _holds,
    st.builds(Call, verb=st.just("grant"), reference=_references, amount=st.integers(1, 20)),
    st.builds(Call, verb=st.just("settle"), reference=_references, charges=_charges),
    st.builds(Call, verb=st.just("release"), reference=_references),
    st.builds(Call, verb=st.just("roll"), reference=_references, charges=_charges, next=_holds),
    st.builds(Call, verb=st.just("set_cap"), reference=st.just("team"), minimum=st.none() | st.integers(0, 20)),
)


@dataclass
class Count:
    """A limit's row."""

    cap: int | None
    held: int = 0
    spent: int = 0
    covered: int = 0


@dataclass
class Held:
    """A hold's row."""

    amount: int
    under: tuple[Key, ...]
    state: str = "Held"
    settled: int = 0
    covered: int = 0


class Refused(Exception):
    """The model refuses; ``args`` say why."""


@dataclass
class Model:
    """The whole ledger."""

    counts: dict[Key, Count] = field(default_factory=dict)
    holds: dict[str, Held] = field(default_factory=dict)
    grants: dict[str, int] = field(default_factory=dict)

    def apply(self, call: Call) -> Outcome:
        """Return what has to come of a call."""
        try:
            return getattr(self, call.verb)(call)  # type: ignore[no-any-return]
        except Refused as refused:
            return refused.args

    def grant(self, call: Call) -> Outcome:
        before = self.grants.setdefault(call.reference, call.amount)
        if before != call.amount:
            raise Refused("Conflict")
        return ("granted", sum(self.grants.values()))

    def set_cap(self, call: Call) -> Outcome:
        key = ("Budget", call.reference)
        self.counts.setdefault(key, Count(None)).cap = call.minimum
        return ("capped",)

    def hold(self, call: Call) -> Outcome:
        if call.amount == 0:
            return ("held", 0, "Held")
        least = call.amount if call.minimum is None else max(1, min(call.minimum, call.amount))
        fitting, caps = call.amount, self._caps(call)
        before = self.holds.get(call.reference)
        for key, cap in caps.items():
            count = self.counts.get(key, Count(cap))
            left = fitting if cap is None else cap - count.held - count.spent
            if left < least:
                if before is None:
                    raise Refused("refused", key)
                return self._same(before, call)
            fitting = min(fitting, left)
        found = self._same(before, call) if before is not None else ("held", fitting, "Held")
        for key, cap in caps.items():
            if key != CREDITS:
                self.counts.setdefault(key, Count(cap)).cap = cap
        if before is None:
            self.holds[call.reference] = Held(fitting, tuple(caps))
            for key in caps:
                if key != CREDITS:
                    self.counts[key].held += fitting
        return found

    def _caps(self, call: Call) -> dict[Key, int | None]:
        caps: dict[Key, int | None] = {}
        for key, cap in call.under:
            there = self.counts.get(key)
            if there is not None and (key[0] == "Budget" or cap is None):
                cap = there.cap
            elif there is not None and there.cap is not None and cap is not None:
                cap = max(cap, there.cap)
            caps[key] = cap
        return caps | {CREDITS: sum(self.grants.values()) - self.committed}

    @property
    def committed(self) -> int:
        """What is held and spent of the credits."""
        return sum(one.amount if one.state == "Held" else one.settled for one in self.holds.values())

    @staticmethod
    def _same(before: Held, call: Call) -> Outcome:
        least = call.amount if call.minimum is None else min(call.minimum, call.amount)
        if not least <= before.amount <= call.amount:
            raise Refused("Conflict")
        return ("held", before.amount, before.state)

    def settle(self, call: Call) -> Outcome:
        used, borne = sum(one[0] for one in call.charges), sum(one[1] for one in call.charges)
        there = self.holds.get(call.reference)
        if there is None:
            if used or borne:
                raise Refused("NotFound")
            return ("settled", 0, 0, 0)
        paid = min(used, there.amount)
        covered = borne + used - paid
        if there.state == "Held":
            there.state, there.settled, there.covered = "Settled", paid, covered
            self._give_back(there)
        elif (there.state, there.settled, there.covered) != ("Settled", paid, covered):
            raise Refused("Conflict")
        return ("settled", paid, covered, there.amount - paid)

    def _give_back(self, ended: Held) -> None:
        for key in ended.under:
            if key != CREDITS:
                count = self.counts[key]
                count.held -= ended.amount
                count.spent += ended.settled
                count.covered += ended.covered

    def release(self, call: Call) -> Outcome:
        there = self.holds.get(call.reference)
        if there is None:
            return ("released", None)
        if there.state == "Settled":
            raise Refused("Conflict")
        if there.state == "Held":
            there.state = "Released"
            self._give_back(there)
        return ("released", there.amount)

    def roll(self, call: Call) -> Outcome:
        assert call.next is not None
        there = self.holds.get(call.reference)
        kept = None if there is None else Held(**vars(there))
        counts = {key: Count(**vars(count)) for key, count in self.counts.items()}
        settled = self.settle(call)
        try:
            return (*settled, *self.hold(call.next))
        except Refused as refused:
            if refused.args[0] == "refused":
                return (*settled, *refused.args)
            # Anything else undoes the settlement too.
            self.counts = counts
            if kept is not None:
                self.holds[call.reference] = kept
            raise


def outcome_of(act: Callable[[], Outcome]) -> Outcome:
    """Return what came of a call, errors included."""
    try:
        return act()
    except (BudgetExceeded, InsufficientCredits) as error:
        return _refused(error)
    except (Conflict, NotFound) as error:
        return (error.reason,)


def _refused(error: BudgetExceeded | InsufficientCredits) -> Outcome:
    if isinstance(error, InsufficientCredits):
        return ("refused", CREDITS)
    kind, _, name = error.details["budget"].partition("/")
    return ("refused", (kind, name))


def _request(call: Call) -> HoldRequest:
    # Names say which limit refused.
    under = [
        Limit(kind, f"{kind}-{name}", f"{kind}/{name}", cap)  # type: ignore[arg-type]
        for (kind, name), cap in call.under
    ]
    owner = Owner("Attempt", OWNERS[REFERENCES.index(call.reference) % 2], "x", "default")
    return HoldRequest(call.reference, call.amount, owner, "Object-job", under, minimum=call.minimum)


def _charges_of(call: Call) -> list[Charge]:
    return [
        Charge("x", amount, covered, quantity=amount, covered_quantity=covered, unit="us", segment=segment)  # type: ignore[arg-type]
        for amount, covered, segment in call.charges
    ]


def _settled(found: Settlement) -> Outcome:
    return ("settled", found.paid, found.covered, found.returned)


def _held(found: Hold) -> Outcome:
    return ("held", found.amount, found.state)


def _grant(conn: Connection, call: Call) -> Outcome:
    return ("granted", ledger.grant(conn, call.amount, call.reference).granted)


def _hold(conn: Connection, call: Call) -> Outcome:
    return _held(ledger.hold(conn, _request(call)))


def _settle(conn: Connection, call: Call) -> Outcome:
    return _settled(ledger.settle(conn, call.reference, _charges_of(call)))


def _release(conn: Connection, call: Call) -> Outcome:
    found = ledger.release(conn, call.reference)
    return ("released", None if found is None else found.amount)


def _roll(conn: Connection, call: Call) -> Outcome:
    assert call.next is not None
    found = ledger.roll(conn, call.reference, _charges_of(call), _request(call.next))
    last = _refused(found.refused) if found.refused is not None else ()
    return (*_settled(found.settled), *(_held(found.next) if found.next is not None else last))


def _set_cap(conn: Connection, call: Call) -> Outcome:
    limits.set_cap(conn, Limit("Budget", f"Budget-{call.reference}", f"Budget/{call.reference}", call.minimum))
    return ("capped",)


_REAL: dict[str, Callable[[Connection, Call], Outcome]] = {
    "grant": _grant,
    "hold": _hold,
    "settle": _settle,
    "release": _release,
    "roll": _roll,
    "set_cap": _set_cap,
}
