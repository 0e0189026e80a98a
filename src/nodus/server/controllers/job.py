"""Jobs: tries of a command, one Attempt after another, until one succeeds or no further one is due.

::

    Queued -> Provisioning -> Running -> Succeeded
      ^            |            |-> Recovering -> Running   a further attempt, with the same state directory
      |            |            |-> Failed                  BackoffLimitExceeded, OOMKilled, DeadlineExceeded, or the
      |            |            |                           reason that the command gave
      |            +------------+-> Suspended -> Queued     spec.state
      +-------------------------+-> Cancelled               spec.state

A failed attempt counts against ``backoffLimit``; one that was lost with its supervisor does not, up to
``MAX_LOST`` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nodus.core.clock import Clock, parse_rfc3339, rfc3339
from nodus.core.errors import Unsupported
from nodus.core.kinds import ATTEMPT, JOB, Kind
from nodus.server.compute.local import images
from nodus.server.controllers import memberspec
from nodus.server.controllers.attempt import QUEUED_ANNOTATION
from nodus.server.controllers.runtime import (
    NOTHING,
    ActionResult,
    BaseController,
    EventNote,
    EventType,
    NewObject,
    Outcome,
    Update,
)
from nodus.server.store.cascade import dependents

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.compute.local.backend import LocalBackend
    from nodus.server.store.objects import Object

MAX_LOST = 10
"""Attempts lost with their supervisors before a Job fails all the same."""
RETRY_BASE_S, RETRY_MAX_S = 1.0, 60.0
JOB_LABEL, RANK_LABEL = "nodus.dev/job", "nodus.dev/rank"
ACCEPT_ANNOTATION = "nodus.dev/accept-image"
"""On a Job: the digest of an image it may go on with, though it began with another."""
_COPIED = ("exitCode", "message", "fix")


@dataclass(frozen=True, slots=True)
class Context:
    """What a decision about a Job needs."""

    job: Object
    attempts: tuple[Object, ...]
    """Its attempts, oldest first."""
    node: str
    image: dict[str, str] | None = None
    """What its image means here."""
    result: ActionResult | None = None

    @property
    def last(self) -> Object | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def wanted(self) -> str:
        """The state the user wants: Running, Suspended or Cancelled."""
        return str(self.job.spec.get("state") or "Running")

    def ended(self, phase: str) -> int:
        """Count the attempts that ended in ``phase``."""
        return sum(1 for attempt in self.attempts if attempt.status.get("phase") == phase)


class JobController(BaseController):
    """Turns Jobs into Attempts.

    Args:
        node: This host's id; new attempts run on it.
        backend: Where the state of Jobs is kept.
        clock: Where time comes from.
    """

    kind = JOB
    watches: tuple[Kind, ...] = (ATTEMPT,)

    def __init__(self, node: str, backend: LocalBackend, clock: Clock) -> None:
        self._node = node
        self._backend = backend
        self._clock = clock

    def eligible(self, obj: Object) -> bool:
        """Tell whether the Job hasn't ended, or ended so long ago that it is to be deleted."""
        return not self.kind.is_terminal(obj.status.get("phase")) or _outlived(obj, self._clock.now())

    def load(self, conn: Connection, obj: Object) -> Context:
        """Read the attempts."""
        attempts = [child for child in dependents(conn, obj.uid) if child.kind == ATTEMPT.name]
        attempts.sort(key=lambda attempt: int(attempt.spec["epoch"]))
        try:
            image = images.resolve(obj.spec.get("image") or "nodus/base").to_status()
        except Unsupported:
            image = None
        return Context(obj, tuple(attempts), self._node, image)

    def decide(self, ctx: Context, now: datetime) -> Outcome:
        """Start, follow, retry or end."""
        if ctx.job.deleted_at is not None:
            return NOTHING
        if self.kind.is_terminal(ctx.job.status.get("phase")):
            return Outcome(delete=[ctx.job]) if _outlived(ctx.job, now) else NOTHING
        last = ctx.last
        if last is not None and not ATTEMPT.is_terminal(last.status.get("phase")):
            return _decide_live(ctx, last, now)
        if ctx.wanted == "Cancelled":
            return _end(ctx, now, "Cancelled", reason="Cancelled", message="cancelled by its user")
        if last is not None and (ended := _decide_ended(ctx, last, now)) is not None:
            return ended
        if ctx.wanted == "Suspended":
            return Outcome(status={**_status(ctx), "phase": "Suspended", "reason": "Suspended"})
        return _decide_next(ctx, last, now)

    async def gone(self, uid: str) -> None:
        """Delete the state that a deleted Job kept."""
        await self._backend.release_state(uid)


def _outlived(job: Object, now: datetime) -> bool:
    """Tell whether an ended Job's time to live is over; one that somebody owns lives as long as its owner."""
    ttl_s, ended = job.spec.get("ttlSecondsAfterFinished"), job.status.get("completionTime")
    if ttl_s is None or not ended or job.owner_references:
        return False
    return (now - parse_rfc3339(ended)).total_seconds() >= float(ttl_s)


def _decide_live(ctx: Context, attempt: Object, now: datetime) -> Outcome:
    """An attempt waits or runs: mirror it, and tell it to stop when that is wanted."""
    status = {**_status(ctx), **_mirror(ctx, attempt)}
    events: tuple[EventNote, ...] = ()
    if status["phase"] == "Running" and "startTime" not in status:
        status["startTime"] = rfc3339(now)
        events = (EventNote("Normal", "Started", f"attempt {attempt.name} runs"),)
    reason = {"Cancelled": "Cancelled", "Suspended": "Suspended"}.get(ctx.wanted)
    if reason is not None and attempt.spec.get("state") != "Stopped":
        spec = {**attempt.spec, "state": "Stopped", "stopReason": reason}
        return Outcome(status=status, update=[Update(attempt, spec=spec)], events=events)
    return Outcome(status=status, events=events)


def _mirror(ctx: Context, attempt: Object) -> dict[str, Any]:
    """Return the Job's phase, reason and message while an attempt is alive."""
    attempt_phase = attempt.status.get("phase")
    if attempt_phase == "Running":
        return {"phase": "Running"}
    recovering = ctx.job.status.get("phase") in ("Running", "Recovering")
    phase = "Recovering" if recovering else "Provisioning" if attempt_phase == "Starting" else "Queued"
    told = {name: attempt.status[name] for name in ("reason", "message") if attempt.status.get(name)}
    return {"phase": phase, **told}


def _decide_ended(ctx: Context, last: Object, now: datetime) -> Outcome | None:
    """The newest attempt ended: end the Job with it, or None when another attempt (or a suspension) is next."""
    phase, reason = last.status.get("phase"), last.status.get("reason")
    if phase == "Succeeded":
        return _end(ctx, now, "Succeeded")
    if phase == "Cancelled":
        # Suspended attempts are followed by others; a stop that nobody asked the Job for ends it.
        return None if reason == "Suspended" else _end(ctx, now, "Cancelled", reason=reason or "Cancelled")
    message = last.status.get("message") or "the attempt failed"
    if reason == "DeadlineExceeded":
        return _end(
            ctx, now, "Failed", reason=reason, message=f"it ran into its timeout of {ctx.job.spec.get('timeout')}"
        )
    if last.status.get("retryable") is False:
        return _end(ctx, now, "Failed", reason=reason or "Error", message=message)
    if phase == "Lost":
        if ctx.ended("Lost") > MAX_LOST:
            return _end(ctx, now, "Failed", reason="AttemptLost", message=f"{MAX_LOST} attempts were lost; {message}")
        return None
    if ctx.ended("Failed") > int(ctx.job.spec.get("backoffLimit") or 0):
        return _end(ctx, now, "Failed", reason=_limit_reason(reason), message=message)
    return None


def _limit_reason(reason: str | None) -> str:
    """Say why a Job failed when its attempts are used up: the attempt's own reason, where it has one that says more."""
    return reason if reason and reason != "Error" else "BackoffLimitExceeded"


def _decide_next(ctx: Context, last: Object | None, now: datetime) -> Outcome:
    """Make the next attempt, after a pause that grows with failures."""
    if (overdue := _overdue(ctx, now)) is not None:
        return overdue
    if last is not None and (changed := _decide_changed_image(ctx)) is not None:
        return changed
    status = _status(ctx)
    status["phase"] = "Recovering" if ctx.job.status.get("phase") in ("Running", "Recovering") else "Queued"
    if last is not None and last.status.get("phase") == "Failed":
        wait_s = _pause_s(ctx.ended("Failed")) - _seconds_since_end(last, now)
        if wait_s > 0:
            status |= {"reason": "RetryWait", "message": last.status.get("message") or "the attempt failed"}
            return Outcome(status=status, requeue_after_s=wait_s)
    epoch = int(last.spec["epoch"]) + 1 if last is not None else 1
    attempt = NewObject(
        ATTEMPT,
        f"{ctx.job.name[:57]}-{epoch}",
        {"job": ctx.job.name, "epoch": epoch, "node": ctx.node, "state": "Running"},
        labels=_labels(ctx.job),
        annotations={QUEUED_ANNOTATION: ctx.job.created_at.isoformat()},
        status={"phase": "Pending"},
    )
    status["attempts"] = _counts(ctx, extra=1)
    events = []
    if last is not None and last.status.get("phase") in ("Failed", "Lost"):
        why = last.status.get("message") or last.status.get("reason") or "it failed"
        events.append(EventNote("Warning", "Retrying", f"attempt {last.name} ended: {why}; attempt {epoch} follows"))
    return Outcome(status=status, create=[attempt], events=events)


def _decide_changed_image(ctx: Context) -> Outcome | None:
    """Hold a Job whose image is no longer what it began with, until its user accepts the new one; else None."""
    began, now = ctx.job.status.get("image"), ctx.image
    if not began or not now or began["digest"] in (now["digest"], None) or _accepts(ctx.job, now):
        return None
    return Outcome(
        status={
            **_status(ctx),
            "phase": "Suspended",
            "reason": "RuntimeChanged",
            "message": f"{now['reference']} is not what the Job began with: {began['digest']}, now {now['digest']}",
            "fix": f"To go on with the new one, annotate the Job with {ACCEPT_ANNOTATION}={now['digest']}.",
        }
    )


def _accepts(job: Object, image: dict[str, str]) -> bool:
    return job.annotations.get(ACCEPT_ANNOTATION) == image["digest"]


def _overdue(ctx: Context, now: datetime) -> Outcome | None:
    """End a Job whose time ran out between attempts."""
    started = ctx.job.status.get("startTime")
    if not started:
        return None
    left_s = memberspec.remaining_s(ctx.job, now.timestamp(), parse_rfc3339(started).timestamp())
    if left_s is None or left_s > 0:
        return None
    message = f"it ran into its timeout of {ctx.job.spec['timeout']}"
    return _end(ctx, now, "Failed", reason="DeadlineExceeded", message=message)


def _pause_s(failures: int) -> float:
    # The first retry comes at once: most single failures are a killed process.
    return 0.0 if failures <= 1 else min(RETRY_MAX_S, RETRY_BASE_S * 2.0 ** (failures - 2))


def _seconds_since_end(attempt: Object, now: datetime) -> float:
    finished = (attempt.status.get("timings") or {}).get("finishedTime")
    return (now - parse_rfc3339(finished)).total_seconds() if finished else RETRY_MAX_S


def _labels(job: Object) -> dict[str, str]:
    labels = {JOB_LABEL: job.name, RANK_LABEL: "0"}
    if memberspec.TRAINING_LABEL in job.labels:
        labels[memberspec.TRAINING_LABEL] = job.labels[memberspec.TRAINING_LABEL]
    return labels


def _counts(ctx: Context, extra: int = 0) -> dict[str, int]:
    total = len(ctx.attempts) + extra
    return {"current": total, "max": int(ctx.job.spec.get("backoffLimit") or 0) + 1, "total": total}


def _status(ctx: Context) -> dict[str, Any]:
    """Return what stays of the status from pass to pass, brought up to date."""
    status: dict[str, Any] = {
        "attempts": _counts(ctx),
        "observedGeneration": ctx.job.generation,
        "cost": {"totalUSD": "0.00", "final": False},
    }
    if "startTime" in ctx.job.status:
        status["startTime"] = ctx.job.status["startTime"]
    # The image it began with, or the one its user accepted since.
    image = ctx.image if ctx.image and _accepts(ctx.job, ctx.image) else ctx.job.status.get("image") or ctx.image
    if image is not None:
        status["image"] = image
    return status


def _end(ctx: Context, now: datetime, phase: str, *, reason: str | None = None, message: str | None = None) -> Outcome:
    """End the Job; what the newest attempt left is the Job's."""
    status = {**_status(ctx), "phase": phase, "completionTime": rfc3339(now)}
    status["cost"]["final"] = True
    last: Sequence[Object] = ctx.attempts[-1:]
    for attempt in last:
        status |= {name: attempt.status[name] for name in _COPIED if name in attempt.status and phase != "Succeeded"}
        if "exitCode" in attempt.status:
            status["exitCode"] = attempt.status["exitCode"]
        if attempt.status.get("outputs"):
            status["outputs"] = attempt.status["outputs"]
    if reason is not None:
        status["reason"] = reason
    if message is not None:
        status["message"] = message
    kind: EventType = "Warning" if phase == "Failed" else "Normal"
    return Outcome(status=status, events=[EventNote(kind, reason or phase, message or f"the Job ended: {phase}")])
