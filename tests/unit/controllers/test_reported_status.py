"""What commands reported and saved, as it gets from the backend into Attempts and Jobs; and stops that wait for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.server.compute.base import MemberState, Reported
from nodus.server.controllers import memberspec, stopping
from nodus.server.controllers.attempt import AttemptController
from nodus.server.controllers.attempt import Context as AttemptContext
from nodus.server.controllers.job import Context, JobController
from nodus.server.controllers.runtime import Outcome
from nodus.server.store import Object
from nodus.testing.compute import FakeBackend

NOW = FakeClock().now()
Make = Callable[..., Object]
PROGRESS = {"stage": "Training", "units": {"completed": 3, "total": 9}}
SAVED = {"seq": 4, "time": "2026-01-01T00:00:00Z", "size": 10, "trigger": "Requested", "count": 2}
PAUSED = {"phase": "Cancelled", "reason": "Suspended", "progress": PROGRESS, "checkpoints": SAVED}


@pytest.fixture
def decide(make_object: Make) -> Callable[..., Outcome]:
    """Decides about a Job: ``decide(spec={...}, status={...}, attempts=[({...spec...}, {...status...}), ...])``."""

    def run(spec: dict[str, Any], status: dict[str, Any], attempts: Any) -> Outcome:
        job = make_object("Job", spec={"command": ["x"], **spec}, status=status)
        made = tuple(
            make_object("Attempt", f"job-{epoch}", spec={"job": "job", "epoch": epoch, **own}, status=given)
            for epoch, (own, given) in enumerate(attempts, start=1)
        )
        controller = JobController("node-1", FakeBackend(), FakeClock(), None, None)  # type: ignore[arg-type]
        return controller.decide(Context(job, made, "node-1", None), NOW)

    return run


def test_job_shows_what_its_newest_attempt_with_something_to_say_said(decide: Callable[..., Outcome]) -> None:
    first = {"phase": "Lost", "progress": {"stage": "Old"}, "checkpoints": SAVED}
    outcome = decide({}, {"phase": "Recovering"}, [({}, first), ({"restoreFrom": {"seq": 4}}, {"phase": "Running"})])
    assert outcome.status is not None
    assert outcome.status["progress"] == {"stage": "Old"}
    without_count = {name: value for name, value in SAVED.items() if name != "count"}
    assert outcome.status["checkpoint"] == {**without_count, "attempt": "job-1", "restoredFromSeq": 4}


@pytest.mark.parametrize(
    ("continuity", "restored"), [("Checkpointed", True), ("Ephemeral", True), ("Restartable", False)]
)
def test_next_attempt_knows_which_checkpoint_it_goes_on_from(
    decide: Callable[..., Outcome], continuity: str, restored: bool
) -> None:
    [attempt] = decide({"recovery": {"continuity": continuity}}, {"phase": "Suspended"}, [({}, PAUSED)]).create
    assert attempt.spec.get("restoreFrom") == ({"attempt": "job-1", "seq": 4} if restored else None)


def test_suspended_job_says_that_it_waits_for_its_command(decide: Callable[..., Outcome]) -> None:
    outcome = decide({"state": "Suspended"}, {"phase": "Running"}, [({"state": "Running"}, {"phase": "Running"})])
    assert outcome.status is not None
    assert (outcome.status["phase"], outcome.status["reason"]) == ("Running", "Suspending")
    done = decide({"state": "Suspended"}, {"phase": "Running"}, [({"state": "Stopped"}, PAUSED)])
    assert done.status is not None
    assert (done.status["phase"], done.status["reason"]) == ("Suspended", "Suspended")
    assert done.status["progress"] == PROGRESS


def test_command_that_ended_while_it_was_asked_has_ended(decide: Callable[..., Outcome]) -> None:
    ended = decide({"state": "Suspended"}, {"phase": "Running"}, [({}, {"phase": "Succeeded", "exitCode": 0})])
    assert ended.status is not None
    assert ended.status["phase"] == "Succeeded"


def test_indexes_that_are_done_are_the_progress_of_a_job_with_completions(decide: Callable[..., Outcome]) -> None:
    outcome = decide({"completions": 2}, {"phase": "Running"}, [({"slot": 0}, {"phase": "Running", **PAUSED})])
    assert outcome.status is not None
    assert outcome.status["progress"] == {"units": {"completed": 0, "total": 2}}


@pytest.mark.parametrize(
    ("before", "reason", "after"),
    [
        ({"state": "Running"}, "Suspended", "Suspended"),
        ({"state": "Running"}, "Cancelled", "Cancelled"),
        ({"state": "Stopped", "stopReason": "Suspended"}, "Suspended", None),
        ({"state": "Stopped", "stopReason": "Suspended"}, "Cancelled", "Cancelled"),
        ({"state": "Stopped", "stopReason": "Cancelled"}, "Suspended", None),
        ({"state": "Stopped", "stopReason": "Cancelled"}, "JobFailed", None),
    ],
)
def test_a_pause_gives_way_to_other_stops_and_nothing_else_does(
    make_object: Make, before: dict[str, Any], reason: str, after: str | None
) -> None:
    update = stopping.stop(make_object("Attempt", spec=before), reason)
    assert (update.spec or {}).get("stopReason") == after if update is not None else after is None


def test_only_pauses_wait_for_a_checkpoint() -> None:
    waiting = {reason for reason in stopping.STOP_REASONS if stopping.checkpoint_s(reason) > 0}
    assert waiting == stopping.PAUSES
    assert "Suspended" in waiting
    assert max(map(stopping.checkpoint_s, waiting)) < 50  # with the grace period, what is kept in hand of a run's money


@pytest.mark.parametrize("phase", ["Running", "Exited"])
def test_attempt_keeps_what_was_said(make_object: Make, phase: Any) -> None:
    status = {"phase": "Running", "progress": {"stage": "Old"}, "checkpoints": {"seq": 1}}
    attempt = make_object("Attempt", "job-1", uid="a1", spec={"job": "job", "epoch": 1}, status=status)
    ctx = AttemptContext(attempt, make_object("Job"), MemberState("a1", phase, exit_code=0))
    controller = AttemptController(None, None, None, "node-1", FakeClock())  # type: ignore[arg-type]
    if phase == "Exited":
        action = controller.decide(ctx, NOW).action
        assert action is not None
        result = type("Result", (), {"name": "collect", "value": {}, "error": None})()
        ctx = replace(ctx, result=result)
    kept = controller.decide(ctx, NOW).status or {}
    assert (kept["progress"], kept["checkpoints"]) == ({"stage": "Old"}, {"seq": 1})
    told = controller.decide(replace(ctx, said=Reported(PROGRESS, SAVED)), NOW).status or {}
    assert (told["progress"], told["checkpoints"]) == (PROGRESS, SAVED)


@pytest.mark.parametrize(
    ("recovery", "attempt", "expected"),
    [
        ({}, {}, (("/nodus/state",), 0, None)),
        (
            {"checkpoint": {"paths": ["/workspace/ck"], "interval": "10m"}},
            {},
            (("/workspace/ck", "/nodus/state"), 0, 600),
        ),
        ({}, {"restoreFrom": {"seq": 7}}, (("/nodus/state",), 7, None)),
        ({"continuity": "Restartable", "checkpoint": {"interval": "10m"}}, {}, ((), 0, None)),
    ],
)
def test_plan_of_checkpoints(recovery: dict[str, Any], attempt: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert memberspec.checkpoint_plan({"recovery": recovery}, attempt) == expected
