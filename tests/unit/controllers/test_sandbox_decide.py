"""What a Sandbox's controller decides, case by case; times are the test's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from nodus.core.clock import FakeClock, rfc3339
from nodus.server.compute.processes import Activity, ProcessState
from nodus.server.controllers.runtime import NOTHING, ActionResult, Outcome
from nodus.server.controllers.sandbox import MAX_LOST, START_ANNOTATION, Context, SandboxController
from nodus.server.controllers.sandboxprocesses import MOST_ENDED, Known
from nodus.server.store import Object

NOW = FakeClock().now()
BEGAN = NOW - timedelta(minutes=5)
Make = Callable[..., Object]
Decide = Callable[..., Outcome]
SHORT = {"lifecycle": {"idleTimeout": "1m"}}


def attempt_status(phase: str, began: datetime | None = BEGAN, **more: Any) -> dict[str, Any]:
    timings = {"commandStartedTime": rfc3339(began)} if began is not None else {}
    return {"phase": phase, "timings": timings, **more}


@pytest.fixture
def decide(make_object: Make) -> Decide:
    """Decides about a Sandbox: ``decide(spec, status, attempt=attempt_status(...), annotations=...)``."""

    def run(
        spec: dict[str, Any] | None = None,
        status: dict[str, Any] | None = None,
        *,
        attempt: dict[str, Any] | None = None,
        attempt_spec: dict[str, Any] | None = None,
        annotations: dict[str, str] | None = None,
        **more: Any,
    ) -> Outcome:
        sandbox = make_object(
            "Sandbox", "dev", spec=spec or {}, status=status or {"phase": "Pending"}, annotations=annotations or {}
        )
        attempts = ()
        if attempt is not None:
            given = {"sandbox": "dev", "epoch": 1, "state": "Running", **(attempt_spec or {})}
            attempts = (make_object("Attempt", "sb-dev-1", uid="a1", spec=given, status=attempt),)
        ctx = Context(sandbox, attempts, node="node-1", **more)
        return SandboxController("node-1", None).decide(ctx, NOW)  # type: ignore[arg-type]

    return run


def summary(outcome: Outcome) -> tuple[Any, ...]:
    status = outcome.status or {}
    stopped = [update.spec["stopReason"] for update in outcome.update if update.spec is not None]
    return status.get("phase"), status.get("stopReason"), len(outcome.create), stopped


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # Nothing runs yet.
        ({}, ("Pending", None, 1, [])),
        ({"spec": {"state": "Stopped"}}, ("Stopped", "Stopped", 0, [])),
        # An attempt is on its way, or runs.
        ({"attempt": attempt_status("Pending", None)}, ("Pending", None, 0, [])),
        ({"attempt": attempt_status("Starting", None)}, ("Starting", None, 0, [])),
        ({"attempt": attempt_status("Running")}, ("Running", None, 0, [])),
        ({"attempt": attempt_status("Starting", None), "status": {"phase": "Running"}}, ("Recovering", None, 0, [])),
        # Its user stops it, in whatever phase.
        ({"spec": {"state": "Stopped"}, "attempt": attempt_status("Running")}, ("Stopping", None, 0, ["Stopped"])),
        ({"spec": {"state": "Stopped"}, "attempt": attempt_status("Pending")}, ("Stopping", None, 0, ["Stopped"])),
        (
            {"attempt": attempt_status("Running"), "attempt_spec": {"state": "Stopped", "stopReason": "Idle"}},
            ("Stopping", None, 0, []),
        ),
        # It is idle for too long, or not.
        ({"spec": SHORT, "attempt": attempt_status("Running")}, ("Stopping", None, 0, ["Idle"])),
        (
            {
                "spec": SHORT,
                "attempt": attempt_status("Running"),
                "activity": Activity(False, NOW.timestamp() - 61),
            },
            ("Stopping", None, 0, ["Idle"]),
        ),
        (
            {
                "spec": SHORT,
                "attempt": attempt_status("Running"),
                "activity": Activity(False, NOW.timestamp() - 59),
            },
            ("Running", None, 0, []),
        ),
        (
            {"spec": SHORT, "attempt": attempt_status("Running"), "activity": Activity(True, 0.0)},
            ("Running", None, 0, []),
        ),
        # Its lifetime is over, whatever runs.
        (
            {
                "spec": {"lifecycle": {"maxLifetime": "4m"}},
                "attempt": attempt_status("Running"),
                "activity": Activity(True, 0.0),
            },
            ("Stopping", None, 0, ["MaxLifetime"]),
        ),
        # The attempt ended.
        ({"attempt": attempt_status("Cancelled", reason="Idle")}, ("Stopped", "Idle", 0, [])),
        ({"attempt": attempt_status("Cancelled", reason="MaxLifetime")}, ("Stopped", "MaxLifetime", 0, [])),
        (
            {"spec": {"state": "Stopped"}, "attempt": attempt_status("Cancelled", reason="Stopped")},
            ("Stopped", "Stopped", 0, []),
        ),
        # Its user changed their mind while it stopped.
        ({"attempt": attempt_status("Cancelled", reason="Stopped")}, ("Pending", None, 1, [])),
        # Its own command ended, or it was shut down from inside.
        (
            {"spec": {"command": ["x"]}, "attempt": attempt_status("Failed", reason="Error", exitCode=4)},
            ("Stopped", "CommandExited", 0, []),
        ),
        (
            {"spec": {"command": ["x"]}, "attempt": attempt_status("Succeeded", exitCode=0)},
            ("Stopped", "CommandExited", 0, []),
        ),
        ({"attempt": attempt_status("Failed", reason="Error", exitCode=143)}, ("Stopped", "CommandExited", 0, [])),
        # It can't be started, or broke.
        ({"attempt": attempt_status("Failed", reason="StartFailed", message="no bwrap")}, ("Failed", None, 0, [])),
        ({"attempt": attempt_status("Failed", reason="SandboxBroken")}, ("Failed", None, 0, [])),
        # It was lost: another attempt follows, though not for ever.
        (
            {"attempt": attempt_status("Lost", message="lost"), "status": {"phase": "Running"}},
            ("Recovering", None, 1, []),
        ),
        (
            {
                "attempt": attempt_status("Lost"),
                "status": {"phase": "Recovering", "recoveries": MAX_LOST},
            },
            ("Failed", None, 0, []),
        ),
        (
            {
                "attempt": attempt_status("Lost", NOW - timedelta(hours=1)),
                "status": {"phase": "Running", "recoveries": MAX_LOST},
            },
            ("Recovering", None, 1, []),
        ),
        # It is down, and a start is asked for, or its user wants it again.
        (
            {
                "attempt": attempt_status("Cancelled", reason="Idle"),
                "status": {"phase": "Stopped", "stopReason": "Idle"},
                "annotations": {START_ANNOTATION: "t1"},
            },
            ("Pending", None, 1, []),
        ),
        (
            {
                "attempt": attempt_status("Cancelled", reason="Idle"),
                "status": {"phase": "Stopped", "stopReason": "Stopped"},
            },
            ("Pending", None, 1, []),
        ),
        (
            {
                "attempt": attempt_status("Failed", reason="StartFailed"),
                "status": {"phase": "Failed"},
                "annotations": {START_ANNOTATION: "t1"},
            },
            ("Pending", None, 1, []),
        ),
    ],
)
def test_decision(decide: Decide, case: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert summary(decide(**case)) == expected


def test_a_settled_sandbox_stays(decide: Decide) -> None:
    for status in ({"phase": "Stopped", "stopReason": "Idle"}, {"phase": "Failed"}):
        assert decide(status=status, attempt=attempt_status("Cancelled", reason="Idle")) == NOTHING


def test_a_start_that_was_followed_is_not_followed_again(decide: Decide) -> None:
    asked = {START_ANNOTATION: "t1"}
    running = decide(annotations=asked, attempt=attempt_status("Running"))
    assert running.status is not None
    assert running.status["observedStart"] == "t1"
    down = decide(
        status={**running.status, "phase": "Running"}, annotations=asked, attempt=attempt_status("Lost", reason="Lost")
    )
    assert summary(down)[0] == "Recovering"
    idle = decide(
        status={**running.status, "phase": "Stopping"},
        annotations=asked,
        attempt=attempt_status("Cancelled", reason="Idle"),
    )
    assert summary(idle) == ("Stopped", "Idle", 0, [])


def test_a_start_asked_for_while_it_stops_is_followed(decide: Decide) -> None:
    stopping = decide(
        annotations={START_ANNOTATION: "t2"},
        status={"phase": "Stopping", "observedStart": "t1"},
        attempt=attempt_status("Running"),
        attempt_spec={"state": "Stopped", "stopReason": "Idle"},
    )
    assert stopping.status is not None
    assert stopping.status["observedStart"] == "t1"


def test_idle_deletes_where_that_is_asked_for(decide: Decide) -> None:
    spec = {"lifecycle": {"idleTimeout": "1m", "onIdle": "Delete"}}
    assert [obj.name for obj in decide(spec, attempt=attempt_status("Running")).delete] == ["dev"]


def test_it_looks_again_when_it_may_be_idle(decide: Decide) -> None:
    seen = Activity(False, NOW.timestamp() - 59.5)
    again_s = decide(SHORT, attempt=attempt_status("Running"), activity=seen).requeue_after_s
    assert again_s is not None
    assert 0.4 < again_s <= 0.5


# Processes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def process(make_object: Make) -> Callable[..., Known]:
    def make(standing: ProcessState | None, number: int = 1, phase: str = "Running", **spec: Any) -> Known:
        given = {"command": ["x"], "sandbox": "dev", "attempt": "a1", "number": number, **spec}
        created = NOW - timedelta(seconds=60)
        obj = make_object(
            "Process", f"sb-dev-{number}", uid=f"p{number}", spec=given, status={"phase": phase}, created_at=created
        )
        return Known(obj, standing)

    return make


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (ProcessState("Running"), ("Running", None, None)),
        (ProcessState("Exited", 0), ("Succeeded", None, 0)),
        (ProcessState("Exited", 3), ("Failed", "NonZeroExitCode", 3)),
        (ProcessState("Exited", 137, "DeadlineExceeded"), ("Failed", "DeadlineExceeded", 137)),
        (ProcessState("Exited", 143, "Cancelled"), ("Cancelled", "Cancelled", 143)),
        (ProcessState("Lost", 137, "SandboxLost"), ("Failed", "SandboxLost", 137)),
    ],
)
def test_ends_of_processes_are_recorded(
    decide: Decide, process: Callable[..., Known], state: ProcessState, expected: tuple[Any, ...]
) -> None:
    outcome = decide(attempt=attempt_status("Running"), processes=(process(state, phase="Pending"),))
    [update] = outcome.update
    status = update.status or {}
    assert (status["phase"], status.get("reason"), status.get("exitCode")) == expected


def test_process_that_is_cancelled_is_stopped_once_a_round(decide: Decide, process: Callable[..., Known]) -> None:
    known = process(ProcessState("Running"), state="Cancelled")
    action = decide(attempt=attempt_status("Running"), processes=(known,)).action
    assert action is not None
    assert (action.name, action.args["uid"]) == ("cancel", "p1")
    result = ActionResult(action.key, "cancel", action.args)
    assert decide(attempt=attempt_status("Running"), processes=(known,), result=result).action is None


def test_process_that_a_dead_server_forgot_is_started(decide: Decide, process: Callable[..., Known]) -> None:
    known = process(ProcessState("Absent"), phase="Pending")
    action = decide(attempt=attempt_status("Running"), processes=(known,)).action
    assert action is not None
    assert action.name == "exec"
    young = Known(known.obj, known.state)
    object.__setattr__(young.obj, "created_at", NOW)
    assert decide(attempt=attempt_status("Running"), processes=(young,)).action is None


def test_process_that_could_not_begin_before_the_end_has_failed(decide: Decide, process: Callable[..., Known]) -> None:
    known = process(ProcessState("Absent"), phase="Pending", attempt="a0")
    [update] = decide(attempt=attempt_status("Running"), processes=(known,)).update
    assert (update.status or {})["reason"] == "SandboxStopped"


def test_oldest_processes_are_forgotten_and_then_deleted(decide: Decide, process: Callable[..., Known]) -> None:
    ended = tuple(process(None, number, phase="Succeeded") for number in range(1, MOST_ENDED + 3))
    first = decide(attempt=attempt_status("Running"), processes=ended)
    assert first.action is not None
    assert first.delete == ()
    assert first.action.args["processes"] == [("a1", "p1"), ("a1", "p2")]
    result = ActionResult(first.action.key, "forget", first.action.args)
    then = decide(attempt=attempt_status("Running"), processes=ended, result=result)
    assert [obj.name for obj in then.delete] == ["sb-dev-1", "sb-dev-2"]


def test_a_stop_for_want_of_money_says_what_a_start_needs_by_the_books(decide: Decide) -> None:
    ended = attempt_status("Cancelled", reason="MaxCostReached", message="it lacked this to go on", fix="Old.")
    short = {"reason": "MaxCostReached", "message": "this is left", "fix": "Raise it."}
    for given, told in ((short, ("this is left", "Raise it.")), (None, ("it lacked this to go on", "Old."))):
        status = decide(None, {"phase": "Running"}, attempt=ended, short=given).status or {}
        assert (status["stopReason"], status["message"], status["fix"]) == ("MaxCostReached", *told)
