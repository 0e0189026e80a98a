"""What a Job's controller decides, case by case."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from nodus.core.clock import FakeClock, rfc3339
from nodus.server.controllers.job import Context, JobController
from nodus.server.controllers.jobslots import MAX_LOST
from nodus.server.controllers.runtime import Outcome
from nodus.server.store import Object
from nodus.testing.compute import FakeBackend

NOW = FakeClock().now()
Make = Callable[..., Object]


@pytest.fixture
def decide(make_object: Make) -> Callable[..., Outcome]:
    """Decides about a Job: ``decide(spec={...}, status={...}, attempts=[{...status...}, ...])``."""

    def run(
        spec: dict[str, Any] | None = None,
        status: dict[str, Any] | None = None,
        attempts: Any = (),
        image: dict[str, str] | None = None,
        **fields: Any,
    ) -> Outcome:
        given = {"command": ["x"], **(spec or {})}
        job = make_object("Job", spec=given, status=status or {"phase": "Queued"}, **fields)
        made = tuple(
            make_object(
                "Attempt", f"job-{epoch}", spec={"job": "job", "epoch": epoch, "state": "Running"}, status=given
            )
            for epoch, given in enumerate(attempts, start=1)
        )
        controller = JobController("node-1", FakeBackend(), FakeClock(), None, None)  # type: ignore[arg-type]
        return controller.decide(Context(job, made, "node-1", image), NOW)

    return run


def ended_at(seconds_ago: float) -> dict[str, Any]:
    return {"timings": {"finishedTime": rfc3339(NOW - timedelta(seconds=seconds_ago))}}


FAILED = {"phase": "Failed", "reason": "Error", "message": "exit 1", "exitCode": 1, **ended_at(100)}
LOST = {"phase": "Lost", "reason": "AttemptLost"}


def test_new_job_gets_its_first_attempt(decide: Callable[..., Outcome]) -> None:
    outcome = decide()
    [attempt] = outcome.create
    assert (attempt.name, attempt.spec, attempt.labels, attempt.status) == (
        "job-1",
        {"job": "job", "epoch": 1, "node": "node-1", "state": "Running"},
        {"nodus.dev/job": "job", "nodus.dev/rank": "0"},
        {"phase": "Pending"},
    )
    assert outcome.status is not None
    assert (outcome.status["phase"], outcome.status["attempts"]) == ("Queued", {"current": 1, "max": 1, "total": 1})


@pytest.mark.parametrize(
    ("before", "attempt", "phase"),
    [
        ("Queued", {"phase": "Pending"}, "Queued"),
        ("Queued", {"phase": "Starting"}, "Provisioning"),
        ("Provisioning", {"phase": "Running"}, "Running"),
        ("Running", {"phase": "Running"}, "Running"),
        ("Running", {"phase": "Pending"}, "Recovering"),
        ("Recovering", {"phase": "Starting"}, "Recovering"),
        ("Recovering", {"phase": "Running"}, "Running"),
        ("Suspended", {"phase": "Pending"}, "Queued"),
    ],
)
def test_live_attempt_gives_the_job_its_phase(
    decide: Callable[..., Outcome], before: str, attempt: dict[str, Any], phase: str
) -> None:
    status = decide(status={"phase": before}, attempts=[attempt]).status
    assert status is not None
    assert status["phase"] == phase


def test_why_an_attempt_waits_is_shown_on_the_job(decide: Callable[..., Outcome]) -> None:
    waiting = {"phase": "Pending", "reason": "Queued", "message": "waiting for 1 CPUs; 0 of 2 are free"}
    status = decide(attempts=[waiting]).status
    assert status is not None
    assert (status["reason"], status["message"]) == (waiting["reason"], waiting["message"])


@pytest.mark.parametrize(
    ("spec", "attempts", "expected"),
    [
        ({}, [{"phase": "Succeeded", "exitCode": 0}], ("Succeeded", None)),
        ({}, [FAILED], ("Failed", "BackoffLimitExceeded")),
        ({"backoffLimit": 1}, [FAILED, FAILED], ("Failed", "BackoffLimitExceeded")),
        ({}, [{"phase": "Failed", "reason": "OOMKilled"}], ("Failed", "OOMKilled")),
        ({"backoffLimit": 5}, [{"phase": "Failed", "reason": "DeadlineExceeded"}], ("Failed", "DeadlineExceeded")),
        ({"backoffLimit": 5}, [{**FAILED, "reason": "StateMismatch", "retryable": False}], ("Failed", "StateMismatch")),
        ({"backoffLimit": 5}, [{**FAILED, "reason": "StartFailed", "retryable": False}], ("Failed", "StartFailed")),
        ({}, [LOST] * (MAX_LOST + 1), ("Failed", "AttemptLost")),
        ({"state": "Cancelled"}, [], ("Cancelled", "Cancelled")),
        ({"state": "Cancelled"}, [{"phase": "Cancelled", "reason": "Cancelled"}], ("Cancelled", "Cancelled")),
        ({"state": "Cancelled"}, [{"phase": "Cancelled", "reason": "Suspended"}], ("Cancelled", "Cancelled")),
        ({"state": "Cancelled"}, [FAILED], ("Cancelled", "Cancelled")),
        ({"state": "Suspended"}, [], ("Suspended", "Suspended")),
        ({"state": "Suspended"}, [{"phase": "Cancelled", "reason": "Suspended"}], ("Suspended", "Suspended")),
        ({"state": "Suspended"}, [{"phase": "Succeeded"}], ("Succeeded", None)),
    ],
)  # fmt: skip
def test_job_without_a_live_attempt_ends_or_pauses(
    decide: Callable[..., Outcome],
    spec: dict[str, Any],
    attempts: list[dict[str, Any]],
    expected: tuple[str, str | None],
) -> None:
    outcome = decide(spec=spec, status={"phase": "Running"}, attempts=attempts)
    assert outcome.status is not None
    assert (outcome.status["phase"], outcome.status.get("reason")) == expected
    assert outcome.create == ()


@pytest.mark.parametrize(
    ("spec", "attempts"),
    [
        ({"backoffLimit": 1}, [FAILED]),
        ({"backoffLimit": 2}, [FAILED, FAILED]),
        ({}, [LOST]),
        ({"backoffLimit": 0}, [LOST, LOST]),
        ({}, [{"phase": "Cancelled", "reason": "Suspended"}]),
    ],
)
def test_job_gets_another_attempt(
    decide: Callable[..., Outcome], spec: dict[str, Any], attempts: list[dict[str, Any]]
) -> None:
    [attempt] = decide(spec=spec, status={"phase": "Running"}, attempts=attempts).create
    assert attempt.spec["epoch"] == len(attempts) + 1


def test_second_retry_waits_and_says_what_for(decide: Callable[..., Outcome]) -> None:
    fresh = {**FAILED, **ended_at(0)}
    outcome = decide(spec={"backoffLimit": 5}, status={"phase": "Running"}, attempts=[fresh, fresh])
    assert outcome.status is not None
    assert (outcome.create, outcome.requeue_after_s) == ((), 1.0)
    assert (outcome.status["phase"], outcome.status["reason"]) == ("Recovering", "RetryWait")


@pytest.mark.parametrize(("state", "reason"), [("Cancelled", "Cancelled"), ("Suspended", "Suspended")])
def test_live_attempt_is_told_to_stop(decide: Callable[..., Outcome], state: str, reason: str) -> None:
    [update] = decide(spec={"state": state}, status={"phase": "Running"}, attempts=[{"phase": "Running"}]).update
    assert update.spec is not None
    assert (update.spec["state"], update.spec["stopReason"]) == ("Stopped", reason)


def test_time_is_shared_by_all_attempts(decide: Callable[..., Outcome]) -> None:
    status = {"phase": "Recovering", "startTime": rfc3339(NOW - timedelta(seconds=61))}
    outcome = decide(spec={"backoffLimit": 5, "timeout": "1m"}, status=status, attempts=[FAILED])
    assert outcome.status is not None
    assert (outcome.status["phase"], outcome.status["reason"]) == ("Failed", "DeadlineExceeded")


def test_end_takes_over_what_the_last_attempt_left(decide: Callable[..., Outcome]) -> None:
    outputs = [{"name": "r", "path": "/nodus/outputs/r", "sha256": "0" * 64, "size": 1}]
    status = decide(
        status={"phase": "Running"}, attempts=[{"phase": "Succeeded", "exitCode": 0, "outputs": outputs}]
    ).status
    assert status is not None
    assert (status["outputs"], status["exitCode"], status["completionTime"]) == (outputs, 0, rfc3339(NOW))
    assert status["cost"] == {"totalUSD": "0.00", "final": True}


def test_status_is_valid_for_its_kind(decide: Callable[..., Outcome]) -> None:
    from nodus.core.kinds import JOB

    for attempts in ([], [{"phase": "Running"}], [FAILED], [{"phase": "Succeeded", "exitCode": 0}]):
        status = decide(attempts=attempts).status
        assert JOB.status_model.model_validate(status)


@pytest.mark.parametrize(
    ("accepted", "phase"), [(None, "Suspended"), ("sha256:old", "Suspended"), ("sha256:new", "Recovering")]
)
def test_image_that_changed_holds_further_attempts_until_it_is_accepted(
    decide: Callable[..., Outcome], accepted: str | None, phase: str
) -> None:
    old, new = ({"reference": "nodus/base", "digest": f"sha256:{age}", "user": "1"} for age in ("old", "new"))
    annotations = {"nodus.dev/accept-image": accepted} if accepted else {}
    status = {"phase": "Recovering", "image": old}
    outcome = decide(status=status, attempts=[LOST], image=new, annotations=annotations)
    assert outcome.status is not None
    assert (outcome.status["phase"], len(outcome.create)) == (phase, int(phase == "Recovering"))
    assert outcome.status["image"] == (new if phase == "Recovering" else old)
    if phase == "Suspended":
        assert outcome.status["reason"] == "RuntimeChanged"
        assert "nodus.dev/accept-image=sha256:new" in outcome.status["fix"]
