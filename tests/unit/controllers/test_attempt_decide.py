"""What an Attempt's controller decides, case by case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import ATTEMPT
from nodus.server.compute.base import MemberState
from nodus.server.controllers.attempt import (
    QUEUED_ANNOTATION,
    UNSCHEDULABLE,
    WAITING,
    AttemptController,
    Context,
    how_it_ended,
    waiting_line,
)
from nodus.server.controllers.runtime import Action, ActionResult, Outcome
from nodus.server.store import Object

NOW = FakeClock().now()
Make = Callable[..., Object]


@pytest.fixture
def decide(make_object: Make) -> Callable[..., Outcome]:
    """Decides about an attempt: ``decide(member=MemberState(...), spec={...}, status={...}, result=..., line=...)``."""

    def run(
        member: MemberState | None = None,
        spec: dict[str, Any] | None = None,
        status: dict[str, Any] | None = None,
        **more: Any,
    ) -> Outcome:
        given = {"job": "job", "epoch": 1, "node": "node-1", "state": "Running", **(spec or {})}
        obj = make_object("Attempt", "job-1", uid="a1", spec=given, status=status or {"phase": "Pending"})
        job = more.pop("job", make_object("Job"))
        ctx = Context(obj, job, member or MemberState("a1", "Absent"), **more)
        return AttemptController(None, None, None, "node-1", FakeClock()).decide(ctx, NOW)  # type: ignore[arg-type]

    return run


def result(name: str, error: str | None = None, **value: Any) -> ActionResult:
    return ActionResult("a1", name, value, error)


def summary(outcome: Outcome) -> tuple[Any, ...]:
    status = outcome.status or {}
    return status.get("phase"), status.get("reason"), outcome.action.name if outcome.action else None


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({}, ("Pending", None, "start")),
        ({"line": ("a1", "a2")}, ("Pending", None, "start")),
        ({"line": ("a0", "a1")}, ("Pending", "Queued", None)),
        ({"status": {"phase": "Starting"}, "line": ("a0",)}, ("Starting", None, "start")),
        ({"result": result("start")}, ("Starting", None, None)),
        ({"result": result("start", "waiting for 1 CPUs", reason="Queued")}, ("Pending", "Queued", None)),
        ({"result": result("start", "it asks for 9 CPUs", reason=UNSCHEDULABLE)}, ("Pending", UNSCHEDULABLE, None)),
        ({"result": result("start", "the volume is Pending", reason=WAITING)}, ("Pending", WAITING, None)),
        ({"spec": {"state": "Stopped", "stopReason": "Suspended"}}, (None, None, "stop")),
        ({"member": MemberState("a1", "Starting")}, ("Starting", None, None)),
        ({"member": MemberState("a1", "Running")}, ("Running", None, None)),
        ({"member": MemberState("a1", "Running"), "spec": {"state": "Stopped"}}, ("Running", None, "stop")),
        (
            {"member": MemberState("a1", "Running"), "spec": {"state": "Stopped"}, "result": result("stop")},
            ("Running", None, None),
        ),
        ({"member": MemberState("a1", "Exited", exit_code=0)}, (None, None, "collect")),
        (
            {"member": MemberState("a1", "Exited", exit_code=0), "result": result("collect", outputs=[])},
            ("Succeeded", None, None),
        ),
        (
            {"member": MemberState("a1", "Exited", exit_code=0), "result": result("collect", "too large", outputs=[])},
            ("Failed", "OutputsNotCollected", None),
        ),
        ({"member": MemberState("a1", "Lost", reason="AttemptLost")}, (None, None, "collect")),
    ],
)
def test_attempt_decision(decide: Callable[..., Outcome], case: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert summary(decide(**case)) == expected


def test_attempt_that_its_job_left_behind_is_deleted(decide: Callable[..., Outcome]) -> None:
    assert [gone.uid for gone in decide(job=None).delete] == ["a1"]


def test_action_keys_are_the_same_each_time(decide: Callable[..., Outcome]) -> None:
    assert decide().action == decide().action == Action("start", "a1")


@pytest.mark.parametrize(
    ("member", "phase", "reason"),
    [
        (MemberState("a", "Exited", exit_code=0), "Succeeded", None),
        (MemberState("a", "Exited", exit_code=7), "Failed", "Error"),
        (MemberState("a", "Exited", exit_code=137, signal=9), "Failed", "Error"),
        (MemberState("a", "Exited", exit_code=137, reason="OOMKilled"), "Failed", "OOMKilled"),
        (MemberState("a", "Exited", exit_code=137, reason="DeadlineExceeded"), "Failed", "DeadlineExceeded"),
        (MemberState("a", "Exited", exit_code=1, reason="StateMismatch", retryable=False), "Failed", "StateMismatch"),
        (MemberState("a", "Exited", exit_code=0, reason="Cancelled"), "Cancelled", "Cancelled"),
        (MemberState("a", "Exited", exit_code=143, reason="Suspended"), "Cancelled", "Suspended"),
        (MemberState("a", "Exited", reason="StartFailed"), "Failed", "StartFailed"),
        (MemberState("a", "Lost", reason="AttemptLost"), "Lost", "AttemptLost"),
    ],
)
def test_end_of_a_member_gives_phase_and_reason(member: MemberState, phase: str, reason: str | None) -> None:
    status = how_it_ended(member)
    assert (status["phase"], status.get("reason")) == (phase, reason)


def test_status_is_valid_for_its_kind(decide: Callable[..., Outcome]) -> None:
    ended = MemberState("a1", "Exited", 7, 9, "OOMKilled", "m", "f", False, {"started": 1.0, "finished": 2.5}, 5)
    for case in ({"member": ended, "result": result("collect")}, {"member": MemberState("a1", "Running")}):
        assert ATTEMPT.status_model.model_validate(decide(**case).status)


def test_line_is_first_come_first_served_with_a_fair_share_by_project(make_object: Make) -> None:
    def attempt(name: str, project: str, phase: str, age_s: int, reason: str | None = None) -> Object:
        queued = {QUEUED_ANNOTATION: (NOW - timedelta(seconds=age_s)).isoformat()}
        status = {"phase": phase, "reason": reason}
        return replace(make_object("Attempt", name, annotations=queued, status=status), project=project, uid=name)

    live = [
        attempt("busy-running", "busy", "Running", 99),
        attempt("busy-old", "busy", "Pending", 90),
        attempt("idle-new", "idle", "Pending", 10),
        attempt("idle-old", "idle", "Pending", 20),
        attempt("never", "idle", "Pending", 95, UNSCHEDULABLE),
        attempt("no-volume-yet", "idle", "Pending", 96, WAITING),
    ]
    assert waiting_line(live) == ("idle-old", "idle-new", "busy-old")
