"""The money of an attempt, pass by pass: what is taken, told, charged, and when it stops for want of more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.errors import BudgetExceeded, InsufficientCredits, NodusError
from nodus.server.billing.funding import PACE, SECOND_US, Paid
from nodus.server.compute.base import MemberState
from nodus.server.controllers import funding
from nodus.server.controllers.attempt import AttemptController, Context
from nodus.server.controllers.funding import Account, Place, Terms
from nodus.server.controllers.runtime import REFUSED, ActionResult, Outcome
from nodus.server.store import Object

NOW = FakeClock().now()
RATE = 3_600_000_000
"""A nano-dollar for each microsecond."""
SLICE = PACE.slice_us
Make = Callable[..., Object]
Pass = Callable[..., Outcome]


@pytest.fixture
def step(make_object: Make) -> Pass:
    """One pass over an attempt that costs something: ``step(ran_s=..., charged=..., held=..., status=..., ...)``."""

    def run(
        *,
        ran_s: float | None = None,
        charged: int = 0,
        held: int = 0,
        told_s: float | None = None,
        status: dict[str, Any] | None = None,
        member: MemberState | None = None,
        result: ActionResult | None = None,
    ) -> Outcome:
        spec = {"job": "job", "epoch": 1, "node": "node-1", "state": "Running"}
        given = {"phase": "Running" if ran_s is not None else "Pending", **(status or {})}
        obj = make_object("Attempt", "job-1", uid="a1", spec=spec, status=given)
        job = make_object("Job")
        if member is None and ran_s is not None:
            times = {"created": NOW.timestamp() - ran_s - 1, "started": NOW.timestamp() - ran_s}
            member = MemberState("a1", "Running", times=times, isolation="none", funded_s=told_s)
        account = Account(
            attempt=obj, place=Place("local-cpu", RATE), paid=Paid(charged, held), charged_us=charged,
            open="attempt/a1/slice/0" if held else None, spender=job, bill=job.uid, terms=Terms("2026.11"),
        )  # fmt: skip
        ctx = Context(
            obj, job, member or MemberState("a1", "Absent"), ("a1",), result, place=account.place, account=account
        )
        return AttemptController(None, None, None, "node-1", FakeClock()).decide(ctx, NOW)  # type: ignore[arg-type]

    return run


def refused(refusal: NodusError) -> ActionResult:
    return ActionResult(REFUSED, REFUSED, {"refusal": refusal}, error=refusal.message)


CAP = BudgetExceeded("no room", fix="Raise it.", details={"reason": "MaxCostReached"})


def test_room_is_set_aside_before_money_and_money_before_the_start(step: Pass) -> None:
    first = step()
    assert (first.action and first.action.name, first.payment) == ("reserve", None)
    second = step(result=ActionResult("k", "reserve"))
    assert second.payment is not None and second.payment.hold is not None
    assert (second.payment.hold.amount, second.payment.hold.reference) == (SLICE, "attempt/a1/slice/0")
    assert second.payment.hold.pricebook == "2026.11"
    assert second.status is not None
    assert second.status["placement"] == {"offering": "local-cpu", "rateUSDPerHour": "3.60"}
    third = step(held=SLICE, status={**second.status})
    assert third.action is not None and third.action.name == "start"


def test_nothing_is_held_while_it_waits_for_room(step: Pass) -> None:
    waiting = step(result=ActionResult("k", "reserve", {"reason": "Queued"}, error="waiting for 1 CPU"))
    assert (waiting.payment, waiting.status and waiting.status["reason"]) == (None, "Queued")
    lost = step(held=SLICE, result=ActionResult("k", "start", {"reason": "Waiting"}, error="the volume is Pending"))
    assert lost.payment is not None and lost.payment.settle == "attempt/a1/slice/0"
    assert (lost.payment.charges, lost.payment.hold) == ((), None)


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (CAP, "MaxCostReached"),
        (BudgetExceeded("no room"), "BudgetExceeded"),
        (InsufficientCredits("none"), "InsufficientCredits"),
    ],
)
def test_what_is_not_funded_at_its_start_is_stopped_with_the_reason(
    step: Pass, refusal: NodusError, reason: str
) -> None:
    outcome = step(result=refused(refusal))
    assert outcome.action is not None
    assert (outcome.action.name, outcome.action.args["reason"]) == ("stop", reason)
    assert outcome.status is not None and outcome.status["message"] == refusal.message


def test_the_supervisor_is_told_before_anything_else(step: Pass) -> None:
    outcome = step(ran_s=1, held=SLICE)
    assert outcome.action is not None
    assert (outcome.action.name, outcome.action.args["seconds"]) == ("fund", SLICE / SECOND_US)


def test_the_next_slice_settles_what_was_used(step: Pass) -> None:
    assert step(ran_s=100, held=SLICE, told_s=SLICE / SECOND_US).payment is None
    outcome = step(ran_s=400, held=SLICE, told_s=SLICE / SECOND_US, status={"funding": {"slices": 1}})
    payment = outcome.payment
    assert payment is not None and payment.hold is not None
    assert (payment.settle, payment.hold.reference) == ("attempt/a1/slice/0", "attempt/a1/slice/1")
    assert (payment.charges[0].amount, payment.charges[0].quantity) == (400 * SECOND_US, 400 * SECOND_US)
    assert payment.hold.amount == SLICE
    assert outcome.status is not None and outcome.status["funding"]["slices"] == 2


def test_a_refusal_lets_it_run_to_the_reserve_and_then_stops_it_once(step: Pass) -> None:
    told_s = SLICE / SECOND_US
    early = step(ran_s=400, held=SLICE, told_s=told_s, result=refused(CAP))
    assert (early.payment, early.action) == (None, None)
    late = step(ran_s=545, held=SLICE, told_s=told_s, result=refused(CAP))
    assert late.status is not None and late.status["reason"] == "MaxCostReached"
    assert [event.reason for event in late.events] == ["MaxCostReached"]
    stopping = step(ran_s=546, held=SLICE, told_s=told_s, status=late.status)
    assert stopping.action is not None and stopping.action.name == "stop"
    assert stopping.events == ()
    again = step(ran_s=547, held=SLICE, told_s=told_s, status=late.status, result=ActionResult("k", "stop"))
    assert (again.action, again.payment) == (None, None)


def test_the_end_charges_the_time_that_it_ran_and_covers_the_start(step: Pass) -> None:
    started = NOW.timestamp() - 100
    times = {"created": started - 2, "started": started, "finished": NOW.timestamp(), "paused": 5.0, "ran": 90.5}
    member = MemberState("a1", "Exited", exit_code=0, times=times)
    outcome = step(held=SLICE, charged=40 * SECOND_US, member=member, result=ActionResult("k", "collect"))
    assert outcome.payment is not None
    boot, running = outcome.payment.charges
    assert (boot.segment, boot.amount, boot.covered) == ("boot", 0, 2 * SECOND_US)
    assert (running.amount, running.quantity, running.covered) == (50_500_000, 50_500_000, 0)
    assert outcome.status is not None
    assert outcome.status["cost"] == {"totalUSD": "0.0905", "final": True}


def test_what_a_lost_attempt_used_since_its_last_charge_is_not_charged(step: Pass) -> None:
    member = MemberState("a1", "Lost", reason="AttemptLost", times={"started": NOW.timestamp() - 100})
    outcome = step(held=SLICE, member=member, result=ActionResult("k", "collect"))
    assert outcome.payment is not None
    assert (outcome.payment.settle, outcome.payment.charges) == ("attempt/a1/slice/0", ())


def test_paused_time_is_no_running_time() -> None:
    started = NOW.timestamp() - 100
    paused = MemberState("a1", "Running", times={"started": started, "pausedAt": started + 60})
    again = MemberState("a1", "Running", times={"started": started, "paused": 30.0})
    assert funding.ran_us(paused, NOW) == 60 * SECOND_US
    assert funding.ran_us(again, NOW) == 70 * SECOND_US
    assert funding.ran_us(again, NOW - timedelta(days=1)) == 0
