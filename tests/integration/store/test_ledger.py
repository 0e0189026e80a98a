"""The ledger on both databases: what is held, settled and refused; many at once never take more than there is."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection

from nodus.core.clock import FakeClock
from nodus.core.errors import BadRequest, BudgetExceeded, Conflict, InsufficientCredits, Invalid, NodusError, NotFound
from nodus.core.money import MAX_NANOS, NANO
from nodus.server.store import Store, books, holds, ledger, limits, reconcile
from nodus.server.store.ledger import Charge, Crossing, Hold, HoldRequest, Limit, Owner, Segment

OWNER = Owner("Attempt", "a-1", "train-1", "default")
JOB = Limit("Object", "o-1", "job/train", cap=5 * NANO)
GROUP = Limit("Group", "g-1", "agentgroup/g")
BUDGET = Limit("Budget", "b-1", "team", cap=6 * NANO, period="2026-11", thresholds=(1 * NANO, 3 * NANO))
ALL = (JOB, GROUP, BUDGET)


def wanted(reference: str, usd: float, under: tuple[Limit, ...] = ALL, **more: Any) -> HoldRequest:
    return HoldRequest(reference, int(usd * NANO), OWNER, "o-1", under, **more)


def charge(usd: float, **more: Any) -> Charge:
    return Charge("compute/local-cpu", int(usd * NANO), **more)


@pytest.fixture
def funded(store: Store) -> Store:
    store.write_sync(ledger.grant, 10 * NANO, "start", "first")
    return store


def state(store: Store, kind: str = "Object", subject: str = "o-1", period: str = "") -> tuple[int, int, int]:
    found = store.read_sync(limits.read, kind, subject, period)
    assert found is not None
    return found.held, found.spent, found.covered


def test_a_hold_counts_under_every_limit_and_a_settlement_gives_back_the_rest(funded: Store) -> None:
    held = funded.write_sync(ledger.hold, wanted("r", 2, reason="slice", pricebook="v1", expires_us=7))
    assert (held.amount, held.state, held.owner, held.expires_us) == (2 * NANO, "Held", OWNER, 7)
    everywhere = (
        ("Object", "o-1", ""),
        ("Group", "g-1", ""),
        ("Budget", "b-1", "2026-11"),
        ("Credits", funded.org, ""),
    )
    assert [state(funded, *one) for one in everywhere] == [(2 * NANO, 0, 0)] * 4
    assert funded.read_sync(ledger.balance).available == 8 * NANO

    done = funded.write_sync(ledger.settle, "r", [charge(0.5, covered=3, quantity=9, unit="us")])
    assert (done.paid, done.covered, done.returned) == (NANO // 2, 3, 3 * NANO // 2)
    assert done.hold is not None
    assert (done.hold.state, done.hold.settled, done.hold.covered) == ("Settled", NANO // 2, 3)
    assert [state(funded, *one) for one in everywhere] == [(0, NANO // 2, 3)] * 4
    assert funded.read_sync(ledger.balance) == (10 * NANO, 0, NANO // 2, 3)
    lines = [(line.type, line.debit, line.credit, line.amount) for line in funded.read_sync(books.of_hold, held.id)]
    assert lines == [
        ("Hold", "credits", "held", 2 * NANO),
        ("Charge", "held", "usage", NANO // 2),
        ("Cover", "covered", "usage", 3),
        ("Release", "held", "credits", 3 * NANO // 2),
    ]


def test_a_release_gives_back_everything(funded: Store) -> None:
    funded.write_sync(ledger.hold, wanted("r", 2))
    released = funded.write_sync(ledger.release, "r")
    assert released is not None
    assert released.state == "Released"
    assert state(funded) == (0, 0, 0)
    assert funded.read_sync(ledger.balance).available == 10 * NANO
    assert funded.read_sync(ledger.open_holds) == []


def test_each_limit_refuses_in_its_own_words_and_nothing_is_held(funded: Store) -> None:
    with pytest.raises(
        BudgetExceeded, match=r"job/train needs \$5\.50 and has \$5\.00 of its cap of \$5\.00 left"
    ) as cap:
        funded.write_sync(ledger.hold, wanted("r", 5.5))
    assert cap.value.fix == "Raise its spec.maxCostUSD to 5.50 or more."
    assert cap.value.details == {
        "budget": "job/train", "neededUSD": "5.50", "remainingUSD": "5.00", "reason": "MaxCostReached"
    }  # fmt: skip
    funded.write_sync(ledger.hold, wanted("r", 2))
    with pytest.raises(BudgetExceeded, match=r"the Budget 'team' has \$4\.00 of \$6\.00 left") as budget:
        funded.write_sync(ledger.hold, wanted("s", 4.25, (BUDGET,)))
    assert budget.value.details == {"budget": "team", "neededUSD": "4.25", "remainingUSD": "4.00"}
    with pytest.raises(InsufficientCredits, match=r"needs \$8\.000000001 and \$8\.00 of credits is left") as credit:
        funded.write_sync(ledger.hold, HoldRequest("s", 8 * NANO + 1, OWNER, "o-2"))
    assert credit.value.details == {"availableUSD": "8.00", "neededUSD": "8.000000001"}
    assert "nodus admin grant --amount 0.000000001" in str(credit.value.fix)
    assert state(funded) == (2 * NANO, 0, 0)
    assert funded.read_sync(ledger.balance).held == 2 * NANO


def test_without_a_grant_there_is_nothing(store: Store) -> None:
    with pytest.raises(InsufficientCredits):
        store.write_sync(ledger.hold, wanted("r", 1))
    assert store.read_sync(ledger.balance) == (0, 0, 0, 0)
    assert store.read_sync(limits.read, "Object", "o-1") is None, "a refused hold leaves nothing"


def test_a_transaction_may_go_on_without_the_money(funded: Store) -> None:
    found = funded.write_sync(ledger.try_hold, wanted("r", 9))
    assert isinstance(found, BudgetExceeded)
    assert isinstance(funded.write_sync(ledger.try_hold, wanted("r", 1)), Hold)


def test_what_would_be_refused_is_told_without_a_hold(funded: Store) -> None:
    assert funded.read_sync(ledger.would_refuse, NANO, ALL) is None
    assert isinstance(funded.read_sync(ledger.would_refuse, 6 * NANO, ALL), BudgetExceeded)
    assert isinstance(funded.read_sync(ledger.would_refuse, 11 * NANO, ()), InsufficientCredits)
    assert funded.read_sync(limits.read, "Object", "o-1") is None


def test_a_partial_hold_takes_what_is_left_but_no_less_than_the_minimum(funded: Store) -> None:
    first = funded.write_sync(ledger.hold, wanted("a", 4, minimum=NANO))
    second = funded.write_sync(ledger.hold, wanted("b", 4, minimum=NANO))
    assert (first.amount, second.amount) == (4 * NANO, NANO)
    with pytest.raises(BudgetExceeded, match=r"needs \$1\.00 and has \$0\.00"):
        funded.write_sync(ledger.hold, wanted("c", 4, minimum=NANO))
    assert funded.write_sync(ledger.hold, wanted("b", 4, minimum=NANO)) == second, "the same request once more"


def test_a_partial_hold_leaves_what_others_on_the_bill_need(funded: Store) -> None:
    whole = funded.write_sync(ledger.hold, wanted("a", 1, minimum=NANO, leave=NANO))
    rest = funded.write_sync(ledger.hold, wanted("b", 9, minimum=NANO, leave=NANO))
    assert (whole.amount, rest.amount) == (NANO, 3 * NANO)
    with pytest.raises(BudgetExceeded, match=r"needs \$1\.50 and has \$1\.00"):
        funded.write_sync(ledger.hold, wanted("c", 4, minimum=NANO // 2, leave=NANO))
    assert funded.write_sync(ledger.hold, wanted("d", 1)).amount == NANO


def test_every_call_is_done_once(funded: Store) -> None:
    first = funded.write_sync(ledger.hold, wanted("r", 2))
    assert funded.write_sync(ledger.hold, wanted("r", 2)) == dataclasses.replace(first, crossings=())
    with pytest.raises(Conflict, match=r"the hold 'r' is \$2\.00, not \$3\.00"):
        funded.write_sync(ledger.hold, wanted("r", 3))
    done = funded.write_sync(ledger.settle, "r", [charge(1)])
    again = funded.write_sync(ledger.settle, "r", [charge(1)])
    assert again == done._replace(crossings=())
    with pytest.raises(Conflict, match=r"was settled for \$1\.00 already"):
        funded.write_sync(ledger.settle, "r", [charge(2)])
    with pytest.raises(Conflict):
        funded.write_sync(ledger.release, "r")
    funded.write_sync(ledger.hold, wanted("s", 1))
    assert funded.write_sync(ledger.release, "s") == funded.write_sync(ledger.release, "s")
    with pytest.raises(Conflict, match="was released already"):
        funded.write_sync(ledger.settle, "s", [charge(1)])
    assert funded.write_sync(ledger.hold, wanted("s", 1)).state == "Released"
    assert state(funded) == (0, NANO, 0)


def test_a_repeated_hold_is_answered_even_when_nothing_is_left(funded: Store) -> None:
    first = funded.write_sync(ledger.hold, wanted("r", 5))
    assert funded.write_sync(ledger.hold, wanted("r", 5)).id == first.id


@pytest.mark.parametrize(("period", "waits"), [("2026-11", True), ("", False)])
def test_only_a_budget_with_periods_is_worth_waiting_for(period: str, waits: bool) -> None:
    budget = Limit("Budget", "b-1", "team", cap=6 * NANO, period=period)
    refused = limits.refusal(budget, 2 * NANO, 6 * NANO, NANO)
    assert refused.fix is not None
    assert refused.fix.endswith(": nodus edit budget/team.")
    assert ("next period" in refused.fix) == waits


def test_grants_add_up_and_are_given_once(funded: Store) -> None:
    assert funded.write_sync(ledger.grant, 10 * NANO, "start").granted == 10 * NANO
    assert funded.write_sync(ledger.grant, NANO, "more").granted == 11 * NANO
    with pytest.raises(Conflict, match=r"was \$1\.00, not \$2\.00"):
        funded.write_sync(ledger.grant, 2 * NANO, "more")


def test_nothing_is_held_for_what_is_free(store: Store) -> None:
    free = store.write_sync(ledger.hold, wanted("r", 0))
    assert (free.id, free.amount) == (0, 0)
    assert store.write_sync(ledger.settle, "r", [charge(0)]) == (None, 0, 0, 0, ())
    assert store.write_sync(ledger.release, "r") is None
    assert store.read_sync(books.transactions).items == []
    with pytest.raises(NotFound, match="no hold 'r'"):
        store.write_sync(ledger.settle, "r", [charge(1)])


def test_what_exceeds_the_hold_is_covered(funded: Store) -> None:
    funded.write_sync(ledger.hold, wanted("r", 1))
    done = funded.write_sync(ledger.settle, "r", [charge(0.75), charge(0.5), charge(0.25)])
    assert (done.paid, done.covered, done.returned) == (NANO, NANO // 2, 0)
    assert [(line.type, line.amount) for line in funded.read_sync(books.of_hold, 1)][1:] == [
        ("Charge", 3 * NANO // 4),
        ("Charge", NANO // 4),
        ("Cover", NANO // 4),
        ("Cover", NANO // 4),
    ]


def test_caps_of_objects_rise_and_those_of_budgets_change_by_hand(funded: Store) -> None:
    funded.write_sync(ledger.hold, wanted("a", 5))
    raised = dataclasses.replace(JOB, cap=7 * NANO)
    funded.write_sync(ledger.hold, wanted("b", 1, (raised,)))
    for cap in (JOB, dataclasses.replace(JOB, cap=None)):
        with pytest.raises(BudgetExceeded, match=r"cap of \$7\.00"):
            funded.write_sync(ledger.hold, wanted("c", 2, (cap,)))

    wider = dataclasses.replace(BUDGET, cap=7 * NANO, thresholds=(NANO,))
    with pytest.raises(BudgetExceeded, match=r"of \$6\.00"):
        funded.write_sync(ledger.hold, wanted("c", 2, (wider,)))
    counted = funded.write_sync(limits.set_cap, wider)
    assert (counted.cap, counted.held, counted.left, counted.thresholds) == (7 * NANO, 5 * NANO, 2 * NANO, (NANO,))
    funded.write_sync(ledger.hold, wanted("c", 2, (BUDGET,)))
    lower = funded.write_sync(limits.set_cap, dataclasses.replace(BUDGET, cap=NANO))
    assert lower.left == 0
    assert funded.write_sync(limits.set_cap, dataclasses.replace(BUDGET, cap=None)).left is None
    assert [one.period for one in funded.read_sync(limits.periods, "Budget", "b-1")] == ["2026-11"]


def test_a_limit_without_a_cap_counts(funded: Store) -> None:
    notify = dataclasses.replace(BUDGET, cap=None)
    held = funded.write_sync(ledger.hold, wanted("a", 7, (notify,)))
    assert [(one.threshold, one.measure) for one in held.crossings] == [(NANO, "Committed"), (3 * NANO, "Committed")]
    assert state(funded, "Budget", "b-1", "2026-11") == (7 * NANO, 0, 0)


def test_thresholds_are_reported_when_they_are_reached(funded: Store) -> None:
    assert funded.write_sync(ledger.hold, wanted("a", 0.5)).crossings == ()
    held = funded.write_sync(ledger.hold, wanted("b", 0.5))
    assert held.crossings == (Crossing("Budget", "b-1", "2026-11", "team", NANO, "Committed"),)
    assert funded.write_sync(ledger.settle, "a", [charge(0.5)]).crossings == ()
    done = funded.write_sync(ledger.settle, "b", [charge(0.5)])
    assert done.crossings == (Crossing("Budget", "b-1", "2026-11", "team", NANO, "Spent"),)


def test_rolling_settles_and_takes_the_next_or_says_why_not(funded: Store) -> None:
    funded.write_sync(ledger.hold, wanted("slice/0", 2))
    rolled = funded.write_sync(ledger.roll, "slice/0", [charge(2)], wanted("slice/1", 2))
    assert (rolled.settled.paid, rolled.refused) == (2 * NANO, None)
    assert rolled.next is not None
    again = funded.write_sync(ledger.roll, "slice/0", [charge(2)], wanted("slice/1", 2))
    assert again.next is not None
    assert again.next.id == rolled.next.id
    last = funded.write_sync(ledger.roll, "slice/1", [charge(2)], wanted("slice/2", 2))
    assert last.next is None
    assert isinstance(last.refused, BudgetExceeded)
    assert state(funded) == (0, 4 * NANO, 0)


def test_the_cost_of_an_object_and_its_parts(funded: Store) -> None:
    assert funded.read_sync(ledger.cost_of, "o-1") == ledger.Cost()
    funded.write_sync(ledger.hold, wanted("a", 2))
    boot = charge(0, covered=7, covered_quantity=5, unit="us", segment="boot")
    run = charge(1, quantity=60, unit="us", segment="running")
    funded.write_sync(ledger.roll, "a", [boot, run], wanted("b", 1))
    funded.write_sync(ledger.roll, "b", [run], wanted("c", 0.5))
    for uid, cap in (("o-1", 5 * NANO), ("g-1", None)):
        cost = funded.read_sync(ledger.cost_of, uid)
        assert (cost.total, cost.held, cost.cap, cost.covered) == (2 * NANO, NANO // 2, cap, 7)
        assert cost.segments == {"boot": Segment(0, 7, 0, 5), "running": Segment(2 * NANO, 0, 120, 0)}


def test_holds_are_found_by_owner_and_when_they_expired(funded: Store, clock: FakeClock) -> None:
    now = int(clock.now().timestamp() * 1e6)
    for number, expires in enumerate((now + 2_000_000, now + 1_000_000, None)):
        funded.write_sync(ledger.hold, wanted(f"r{number}", 1, expires_us=expires))
    other = dataclasses.replace(wanted("other", 1), owner=Owner("Request", "q", "q"))
    funded.write_sync(ledger.hold, other)
    assert [one.reference for one in funded.read_sync(ledger.open_holds, owner="a-1")] == ["r0", "r1", "r2"]
    assert len(funded.read_sync(ledger.open_holds)) == 4
    assert funded.read_sync(ledger.expired) == []
    clock.advance(3)
    assert [one.reference for one in funded.read_sync(ledger.expired)] == ["r1", "r0"]
    funded.write_sync(ledger.extend, "r1", now + 9_000_000)
    funded.write_sync(ledger.release, "r0")
    assert funded.read_sync(ledger.expired) == []
    found = funded.read_sync(holds.find, "r1")
    assert found is not None
    assert found.expires_us == now + 9_000_000
    with pytest.raises(Conflict):
        funded.write_sync(ledger.extend, "r0", now)
    with pytest.raises(NotFound):
        funded.write_sync(ledger.extend, "none", now)


def test_the_books_are_read_page_by_page_newest_first(funded: Store, clock: FakeClock) -> None:
    for number in range(4):
        clock.advance(1)
        funded.write_sync(ledger.hold, wanted(f"r{number}", 1))
        funded.write_sync(ledger.settle, f"r{number}", [charge(0.25, quantity=number, unit="us", segment="running")])
    whole = funded.read_sync(books.transactions).items
    assert [line.seq for line in whole] == sorted((line.seq for line in whole), reverse=True)
    assert (len(whole), whole[-1].type, whole[-1].reference, whole[-1].reason) == (13, "Grant", "start", "first")
    paged, token = [], None
    while True:
        page = funded.read_sync(books.transactions, limit=5, continue_=token)
        paged += page.items
        token = page.continue_
        if token is None:
            break
    assert paged == whole
    used = funded.read_sync(books.usage, project="default", object="o-1", owner="a-1").items
    assert [(line.quantity, line.item, line.owner_name) for line in used] == [
        (number, "compute/local-cpu", "train-1") for number in (3, 2, 1, 0)
    ]
    assert funded.read_sync(books.usage, project="other").items == []
    assert len(funded.read_sync(books.usage, since_us=used[1].at_us).items) == 2
    with pytest.raises(BadRequest):
        funded.read_sync(books.transactions, continue_="nonsense")


@pytest.mark.parametrize("amount", [-1, MAX_NANOS + 1, 10**30])
def test_amounts_beyond_what_is_counted_are_refused(funded: Store, amount: int) -> None:
    for call in (
        lambda conn: ledger.grant(conn, amount, "g"),
        lambda conn: ledger.hold(conn, HoldRequest("r", amount, OWNER, "o")),
        lambda conn: ledger.settle(conn, "r", [Charge("x", amount)]),
        lambda conn: ledger.settle(conn, "r", [Charge("x", 0, covered=amount)]),
        lambda conn: limits.set_cap(conn, Limit("Budget", "b", "b", cap=amount)),
    ):
        with pytest.raises(Invalid, match="can't be booked"):
            funded.write_sync(call)


def test_sums_stay_within_what_is_counted(funded: Store) -> None:
    with pytest.raises(Invalid):
        funded.write_sync(ledger.grant, MAX_NANOS, "too much")
    with pytest.raises(Invalid):
        funded.write_sync(ledger.grant, 0, "nothing")
    for number in range(2):
        funded.write_sync(ledger.hold, wanted(f"r{number}", 1))
    funded.write_sync(ledger.settle, "r0", [charge(1, covered=MAX_NANOS)])
    with pytest.raises(Invalid, match="can't be covered"):
        funded.write_sync(ledger.settle, "r1", [charge(1, covered=1)])
    assert state(funded) == (NANO, NANO, MAX_NANOS)


@pytest.mark.parametrize("reference", ["", "x" * 254, "a\0b", "ü", "a\nb"])
def test_references_that_no_database_holds_are_refused(funded: Store, reference: str) -> None:
    with pytest.raises(Invalid, match="is no reference"):
        funded.write_sync(ledger.hold, wanted(reference, 1))


def test_names_that_no_database_holds_are_cut_to_what_it_does(funded: Store) -> None:
    owner = Owner("Attempt", "a-1", "\0" * 300, "default")
    limit = Limit("Object", "o-1", "é\0" * 300)
    funded.write_sync(ledger.hold, HoldRequest("r", NANO, owner, "o-1", (limit,), reason="\ud800" * 300))
    funded.write_sync(ledger.settle, "r", [Charge("\0" * 300, NANO, quantity=1, unit="x" * 99)])
    funded.write_sync(ledger.grant, NANO, "\0" * 300, "\0" * 300)
    (line,) = funded.read_sync(books.usage).items
    assert (len(line.item), len(line.unit), len(line.owner_name), len(line.reason)) == (253, 16, 253, 253)
    assert funded.read_sync(reconcile.verify) == []


def test_a_limit_given_twice_counts_once_and_too_many_are_refused(funded: Store) -> None:
    funded.write_sync(ledger.hold, wanted("r", 2, (JOB, JOB)))
    assert state(funded) == (2 * NANO, 0, 0)
    many = tuple(Limit("Budget", f"b{number}", "b") for number in range(limits.MAX_LIMITS))
    with pytest.raises(Invalid, match="65 limits"):
        funded.write_sync(ledger.hold, wanted("s", 1, many))
    funded.write_sync(ledger.hold, wanted("s", 1, many[1:]))
    funded.write_sync(ledger.settle, "s", [charge(1)])


def test_what_fails_after_it_leaves_nothing_of_it(funded: Store) -> None:
    def fail(conn: Connection) -> None:
        ledger.hold(conn, wanted("r", 1))
        ledger.settle(conn, "r", [charge(0.5)])
        ledger.hold(conn, wanted("s", 1))
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError):
        funded.write_sync(fail)
    assert funded.read_sync(ledger.balance) == (10 * NANO, 0, 0, 0)
    assert len(funded.read_sync(books.transactions).items) == 1


async def _admitted(stores: list[Store], requests: list[HoldRequest]) -> list[Hold]:
    async def one(number: int, request: HoldRequest) -> Hold | None:
        try:
            return await stores[number % len(stores)].write(ledger.hold, request)
        except NodusError as error:
            assert isinstance(error, BudgetExceeded | InsufficientCredits)
            return None

    found = await asyncio.gather(*(one(number, request) for number, request in enumerate(requests)))
    return [held for held in found if held is not None]


@pytest.mark.parametrize("which", ["Credits", "Budget", "Object", "Group"])
async def test_of_200_at_once_a_cap_for_ten_admits_ten(open_store: Callable[[], Store], which: Any) -> None:
    stores = [open_store(), open_store()]
    await stores[0].write(ledger.grant, (10 if which == "Credits" else 1000) * NANO, "start")
    # First used by all of them at once.
    under = () if which == "Credits" else (Limit(which, "x-1", "x", cap=10 * NANO), GROUP)
    requests = [HoldRequest(f"r{number}", NANO, OWNER, "o-1", under) for number in range(200)]
    admitted = await _admitted(stores, requests)
    assert len(admitted) == 10
    for held in admitted[:4]:
        await stores[1].write(ledger.release, held.reference)
    assert (
        len(await _admitted(stores, [dataclasses.replace(one, reference=f"again/{one.reference}") for one in requests]))
        == 4
    )


async def test_limits_named_in_any_order_by_two_servers_never_block_each_other(open_store: Callable[[], Store]) -> None:
    stores = [open_store(), open_store()]
    await stores[0].write(ledger.grant, 10_000 * NANO, "start")
    under = [Limit("Budget", f"b-{number}", "b") for number in range(4)]
    requests = [
        HoldRequest(f"r{number}", NANO, OWNER, "o-1", tuple(under if number % 4 < 2 else reversed(under)))
        for number in range(200)
    ]
    assert len(await _admitted(stores, requests)) == 200
    await asyncio.gather(*(stores[number % 2].write(ledger.settle, f"r{number}", [charge(1)]) for number in range(200)))
    assert (await stores[0].read(ledger.balance)).spent == 200 * NANO


def _work(store: Store, call: Callable[[Connection], object]) -> int:
    """Return about how many steps SQLite takes for a call, which is undone."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def counted(conn: Connection) -> None:
        driver: Any = conn.connection.dbapi_connection
        driver.set_progress_handler(step, 5)
        try:
            call(conn)
        finally:
            driver.set_progress_handler(None, 5)
        raise Undone

    with pytest.raises(Undone):
        store.write_sync(counted)
    return steps


class Undone(Exception):
    """Raised to undo a transaction."""


def test_no_call_takes_longer_for_what_is_there_already(tmp_path: Any, clock: FakeClock) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'nodus.db'}", clock, sync=False)
    store.write_sync(ledger.grant, 10_000 * NANO, "start")

    def fill(conn: Connection, numbers: range) -> None:
        for number in numbers:
            uid = f"uid-{number}"
            under = (Limit("Object", uid, uid, cap=NANO), Limit("Budget", uid, uid, period="2026-11"))
            ledger.hold(conn, HoldRequest(uid, 9, Owner("Attempt", uid, uid), uid, under, expires_us=number))
            ledger.settle(conn, uid, [charge(0)])
            ledger.grant(conn, 1, uid)

    held = dataclasses.replace(wanted("open", 1), expires_us=5)

    def calls() -> dict[str, int]:
        return {
            "hold": _work(store, lambda conn: ledger.hold(conn, wanted("new", 1))),
            "settle": _work(store, lambda conn: ledger.settle(conn, "open", [charge(1, unit="us", segment="boot")])),
            "grant": _work(store, lambda conn: ledger.grant(conn, 1, "new")),
            "extend": _work(store, lambda conn: ledger.extend(conn, "open", 6)),
            "expired": _work(store, ledger.expired),
            "open_holds": _work(store, ledger.open_holds),
            "of an owner": _work(store, lambda conn: ledger.open_holds(conn, owner="a-1")),
            "cost_of": _work(store, lambda conn: ledger.cost_of(conn, "o-1")),
            "balance": _work(store, ledger.balance),
            "transactions": _work(store, lambda conn: books.transactions(conn, limit=5)),
        }

    store.write_sync(ledger.hold, held)
    store.write_sync(fill, range(20))
    few = calls()
    store.write_sync(fill, range(20, 1500))
    many = calls()
    store.close()
    assert {name: (few[name], many[name]) for name in few if many[name] > few[name] + 60} == {}
