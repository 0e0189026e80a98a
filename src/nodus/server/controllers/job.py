"""Jobs: tries of a command, one Attempt after another, until each index succeeded or no further try is due.

::

    Queued -> Provisioning -> Running -> Succeeded
      ^            |            |-> Recovering -> Running   a further attempt, with the same state directory
      |            |            |-> Failed                  BackoffLimitExceeded, OOMKilled, DeadlineExceeded, or the
      |            |            |                           reason that the command gave
      |            +------------+-> Suspended -> Queued     spec.state
      +-------------------------+-> Cancelled               spec.state

A failed attempt counts against ``backoffLimit``; one that was lost with its supervisor does not, up to a bound of its
own. With completions every index is tried for itself, some at a time; the first that can't be tried again ends the Job.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nodus.core.clock import Clock, parse_rfc3339, rfc3339
from nodus.core.durations import parse_duration
from nodus.core.errors import NodusError, Unsupported
from nodus.core.kinds import ATTEMPT, JOB, VOLUME, Kind
from nodus.server.compute.local import images
from nodus.server.controllers import funding, givingup, jobslots, jobstatus, memberspec, stopping
from nodus.server.controllers.attempt import QUEUED_ANNOTATION
from nodus.server.controllers.jobslots import Failure, Slot
from nodus.server.controllers.runtime import (
    NOTHING,
    Action,
    ActionResult,
    BaseController,
    EventNote,
    EventType,
    NewObject,
    Outcome,
    Trouble,
)
from nodus.server.store import ledger, objects
from nodus.server.store.cascade import dependents

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.compute.local.backend import LocalBackend
    from nodus.server.controllers.gitsource import GitSources
    from nodus.server.controllers.lookups import Lookups
    from nodus.server.store import Store
    from nodus.server.store.ledger import Cost
    from nodus.server.store.objects import Object

JOB_LABEL, RANK_LABEL, INDEX_LABEL = "nodus.dev/job", "nodus.dev/rank", "nodus.dev/index"
ACCEPT_ANNOTATION = "nodus.dev/accept-image"
"""On a Job: the digest of an image it may go on with, though it began with another."""
LATE_S = 15.0
"""How long after a Job's timeout what should have ended itself is stopped from here."""
SOURCE_INTERVAL_S = 1.0
"""How often a fetch under way is asked how it stands."""
SHORT_INTERVAL_S = 5.0
"""How often a Job that was suspended for want of money or of disk looks whether there is some."""
NO_COST = ledger.Cost()
_COPIED = ("message", "fix")


@dataclass(frozen=True, slots=True)
class Context:
    """What a decision about a Job needs."""

    job: Object
    attempts: tuple[Object, ...]
    """Its attempts, oldest first."""
    node: str
    image: dict[str, str] | None = None
    """What its image means here."""
    revisions: Mapping[str, int] = field(default_factory=dict)
    """Newest revision of each Volume that is Ready and whose revision was not fixed yet."""
    result: ActionResult | None = None
    slots: tuple[Slot, ...] = ()
    """Its indexes with their attempts."""
    low_disk: str | None = None
    """How little room the disk has, where that is too little for runs."""
    cost: Cost = NO_COST
    """What the books say of it."""
    short: Mapping[str, str] | None = None
    """Reason, message and fix why no further attempt would be funded, where one was stopped for that."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", jobslots.slots_of(self.job.spec, self.attempts))

    @property
    def spec(self) -> Mapping[str, Any]:
        """The Job's spec."""
        return self.job.spec

    @property
    def last(self) -> Object | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def wanted(self) -> str:
        """The state the user wants: Running, Suspended or Cancelled."""
        return str(self.job.spec.get("state") or "Running")


class JobController(BaseController):
    """Turns Jobs into Attempts.

    Args:
        node: This host's id; new attempts run on it.
        backend: Where the state of Jobs is kept.
        clock: Where time comes from.
        store: Where what Jobs wrote to Volumes is committed.
        lookups: What they wrote.
        sources: Fetches git sources; without it Jobs that have one fail.
        terms: On what terms runs cost something.
        low_disk: Says how little room the disk has, where that is too little for runs.
    """

    kind = JOB
    watches: tuple[Kind, ...] = (ATTEMPT,)

    def __init__(
        self,
        node: str,
        backend: LocalBackend,
        clock: Clock,
        store: Store,
        lookups: Lookups,
        sources: GitSources | None = None,
        terms: funding.Terms = funding.FREE_TERMS,
        low_disk: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._terms = terms
        self._low_disk = low_disk
        self._sources = sources
        self._node = node
        self._backend = backend
        self._clock = clock
        self._store = store
        self._lookups = lookups

    def eligible(self, obj: Object) -> bool:
        """Tell whether the Job hasn't ended, or ended so long ago that it is to be deleted."""
        return not self.kind.is_terminal(obj.status.get("phase")) or _outlived(obj, self._clock.now())

    def load(self, conn: Connection, obj: Object) -> Context:
        """Read the attempts, and the Volumes whose revision is not fixed yet."""
        attempts = [child for child in dependents(conn, obj.uid) if child.kind == ATTEMPT.name]
        attempts.sort(key=lambda attempt: (int(attempt.spec["epoch"]), int(attempt.spec.get("slot") or 0)))
        try:
            image = images.resolve(obj.spec.get("image") or "nodus/base").to_status()
        except Unsupported:
            image = None
        cost = ledger.cost_of(conn, obj.uid)
        ctx = Context(
            obj, tuple(attempts), self._node, image, _revisions(conn, obj), cost=cost, low_disk=self._low_disk()
        )
        stopped = [slot.last for slot in ctx.slots if slot.last is not None and slot.unfunded]
        if not stopped:
            return ctx
        return dataclasses.replace(ctx, short=funding.shortage(conn, obj, self._node, self._terms, stopped))

    def decide(self, ctx: Context, now: datetime) -> Outcome:
        """Start, follow, retry or end."""
        if ctx.job.deleted_at is not None:
            return NOTHING
        if self.kind.is_terminal(ctx.job.status.get("phase")):
            return Outcome(delete=[ctx.job]) if _outlived(ctx.job, now) else NOTHING
        outcome = _decide(ctx, now)
        return dataclasses.replace(outcome, status=_pinned(ctx, outcome.status)) if outcome.status else outcome

    async def act(self, ctx: Context, action: Action) -> ActionResult:
        """Fetch the source, or commit what the Job wrote to Volumes."""
        match action.name:
            case "source":
                return await self._fetch(ctx.job, action)
            case "commit":
                return await self._commit(ctx.job, action)
            case other:
                raise NotImplementedError(other)

    async def _fetch(self, job: Object, action: Action) -> ActionResult:
        if self._sources is None:
            return ActionResult(action.key, action.name, {"reason": "SourceUnsupported"}, error="no source is fetched")
        state = await self._sources.ask(job)
        if state.reason is not None:
            return ActionResult(action.key, action.name, {"reason": state.reason, "fix": state.fix}, state.message)
        return ActionResult(action.key, action.name, {"source": state.source, "message": state.message})

    async def _commit(self, job: Object, action: Action) -> ActionResult:
        try:
            for volume, tree in await asyncio.to_thread(self._lookups.written, job):
                await self._store.write(self._lookups.commit, job, volume, tree)
        except NodusError as error:
            if error.retryable:
                raise
            return ActionResult(action.key, action.name, error=error.message)
        return ActionResult(action.key, action.name)

    def give_up(self, obj: Object, ctx: Context | None, trouble: Trouble, now: datetime) -> Outcome:
        """Fail, and stop what is alive of it."""
        if ctx is None:
            return givingup.ended(self.kind, obj, trouble, now)
        ended = _end(ctx, now, "Failed", reason=givingup.reason_of(JOB, obj.status), message=trouble.message(now))
        alive = [slot.last for slot in ctx.slots if slot.live and slot.last is not None]
        stops = [stop for attempt in alive if (stop := stopping.stop(attempt, givingup.INTERNAL_ERROR))]
        return dataclasses.replace(_with_fix(ended, givingup.FIX), update=stops)

    async def gone(self, uid: str) -> None:
        """Delete the state that a deleted Job kept."""
        if self._sources is not None:
            await self._sources.forget(uid)
        await self._backend.release_state(uid)


def _outlived(job: Object, now: datetime) -> bool:
    """Tell whether an ended Job's time to live is over; one that somebody owns lives as long as its owner."""
    ttl_s, ended = job.spec.get("ttlSecondsAfterFinished"), job.status.get("completionTime")
    if ttl_s is None or not ended or job.controllers:
        return False
    return (now - parse_rfc3339(ended)).total_seconds() >= float(ttl_s)


def _revisions(conn: Connection, job: Object) -> dict[str, int]:
    known = (job.status.get("pinned") or {}).get("volumes") or {}
    found = {}
    for mount in job.spec.get("volumes") or ():
        if mount.get("revision") or mount["volume"] in known:
            continue
        volume = objects.find(conn, VOLUME, job.project, mount["volume"])
        if volume is not None and volume.status.get("phase") == "Ready":
            found[volume.name] = int(volume.status.get("revision") or 0)
    return found


def _pinned(ctx: Context, status: dict[str, Any]) -> dict[str, Any]:
    """Return a status with the revisions fixed that were not when the Job was created."""
    if not ctx.revisions:
        return status
    pinned = dict(status.get("pinned") or {})
    pinned["volumes"] = {**ctx.revisions, **(pinned.get("volumes") or {})}
    return {**status, "pinned": pinned}


# Decisions ----------------------------------------------------------------------------------------------------


def _decide(ctx: Context, now: datetime) -> Outcome:
    live = [slot for slot in ctx.slots if slot.live]
    failed = next(((slot, failure) for slot in ctx.slots if (failure := slot.failure(ctx.spec)) is not None), None)
    if live:
        return _decide_live(ctx, live, failed, now)
    if ctx.wanted == "Cancelled":
        return _end(ctx, now, "Cancelled", reason="Cancelled", message="cancelled by its user")
    if failed is not None:
        return _fail(ctx, now, *failed)
    stopped = next((slot for slot in ctx.slots if slot.stopped), None)
    if stopped is not None:
        return _end(ctx, now, "Cancelled", reason=stopped.reason or "Cancelled", decisive=stopped)
    if all(slot.done for slot in ctx.slots):
        return _succeed(ctx, now)
    if (pause := _pause_reason(ctx)) is not None:
        return _suspended(ctx, pause)
    if ctx.short is not None:
        return Outcome(status={**_status(ctx), "phase": "Suspended", **ctx.short}, requeue_after_s=SHORT_INTERVAL_S)
    return _decide_next(ctx, now)


def _decide_live(ctx: Context, live: list[Slot], failed: tuple[Slot, Failure] | None, now: datetime) -> Outcome:
    """Attempts wait or run: mirror them, tell them to stop when that is wanted, and give the next indexes theirs."""
    status = {**_status(ctx), **_mirror(ctx, live)}
    events: list[EventNote] = []
    running = next((slot.last for slot in live if slot.phase == "Running"), None)
    if running is not None and "startTime" not in status:
        status["startTime"] = rfc3339(now)
        events.append(EventNote("Normal", "Started", f"attempt {running.name} runs"))
    reason, again_s = _stop_reason(ctx, failed, now)
    if reason is not None:
        updates = [stop for slot in live if slot.last and (stop := stopping.stop(slot.last, reason))]
        if reason in stopping.PAUSES and status["phase"] == "Running":
            status |= {"reason": "Suspending", "message": "its command is asked for a checkpoint, then stopped"}
        return Outcome(status=status, update=updates, events=events)
    if jobslots.is_indexed(ctx.spec) and _decide_changed_image(ctx) is None:
        return _more(ctx, status, len(live), events, again_s, now)
    return Outcome(status=status, events=events, requeue_after_s=again_s)


def _pause_reason(ctx: Context) -> str | None:
    """Return why the Job is to be suspended, with a checkpoint, or None: one of ``stopping.PAUSES``."""
    if ctx.wanted == "Suspended":
        return stopping.SUSPENDED
    return stopping.LOW_DISK if ctx.low_disk is not None else None


def _suspended(ctx: Context, reason: str) -> Outcome:
    status = {**_status(ctx), "phase": "Suspended", "reason": reason}
    if reason != stopping.LOW_DISK:
        return Outcome(status=status)
    told = {"message": ctx.low_disk, "fix": "Make room on the server's disk; the Job then goes on by itself."}
    return Outcome(status=status | told, requeue_after_s=SHORT_INTERVAL_S)


def _stop_reason(ctx: Context, failed: tuple[Slot, Failure] | None, now: datetime) -> tuple[str | None, float | None]:
    """Return why what is alive must stop, if it must; else after how many seconds it may have to."""
    if ctx.wanted == "Cancelled":
        return "Cancelled", None
    if (pause := _pause_reason(ctx)) is not None:
        return pause, None
    if failed is not None:
        return stopping.SIBLING_FAILED, None
    left_s = _left_s(ctx, now)
    if left_s is not None:
        # Supervisors watch the clock themselves; this is for those that wait for room, or are out of order.
        return ("DeadlineExceeded", None) if left_s + LATE_S <= 0 else (None, left_s + LATE_S)
    queue = (ctx.spec.get("placement") or {}).get("queueTimeout")
    if queue and "startTime" not in ctx.job.status and ctx.job.status.get("phase") == "Queued":
        left_s = parse_duration(queue) - (now - ctx.job.created_at).total_seconds()
        return ("QueueTimeout", None) if left_s <= 0 else (None, left_s)
    return None, None


def _mirror(ctx: Context, live: list[Slot]) -> dict[str, Any]:
    """Return the Job's phase, reason and message while attempts are alive."""
    phases = {slot.phase for slot in live}
    before = ctx.job.status.get("phase")
    if "Running" in phases or (jobslots.is_indexed(ctx.spec) and before == "Running"):
        return {"phase": "Running"}
    recovering = before in ("Running", "Recovering")
    phase = "Recovering" if recovering else "Provisioning" if "Starting" in phases else "Queued"
    first = live[0].last
    told = {name: first.status[name] for name in ("reason", "message") if first and first.status.get(name)}
    return {"phase": phase, **told}


def _decide_next(ctx: Context, now: datetime) -> Outcome:
    """Nothing is alive: make the next attempts, after a pause that grows with failures."""
    left_s = _left_s(ctx, now)
    if left_s is not None and left_s <= 0:
        message = f"it ran into its timeout of {ctx.spec['timeout']}"
        return _end(ctx, now, "Failed", reason="DeadlineExceeded", message=message)
    if ctx.last is not None and (changed := _decide_changed_image(ctx)) is not None:
        return changed
    if (ctx.spec.get("source") or {}).get("git") and "source" not in (ctx.job.status.get("pinned") or {}):
        return _decide_source(ctx, now)
    status = _status(ctx)
    before = ctx.job.status.get("phase")
    if jobslots.is_indexed(ctx.spec) and before == "Running":
        status["phase"] = "Running"
    else:
        status["phase"] = "Recovering" if before in ("Running", "Recovering") else "Queued"
    return _more(ctx, status, 0, [], None, now)


def _decide_source(ctx: Context, now: datetime) -> Outcome:
    """Fetch the git source before the first attempt, and fix it: all attempts run the same files."""
    result = ctx.result
    if result is None or result.name != "source":
        return Outcome(action=Action("source", f"{ctx.job.uid}/source"))
    if result.error is not None:
        ended = _end(ctx, now, "Failed", reason=result.value["reason"], message=result.error)
        return _with_fix(ended, result.value.get("fix"))
    status = {**_status(ctx), "phase": "Queued"}
    if result.value["source"] is None:
        status |= {"reason": "FetchingSource", "message": result.value["message"]}
        return Outcome(status=status, requeue_after_s=SOURCE_INTERVAL_S)
    commit = str(result.value["source"].get("commit"))
    status["pinned"] = {**(status.get("pinned") or {}), "source": dict(result.value["source"])}
    note = EventNote("Normal", "SourceFixed", f"the source is fixed to commit {commit[:12]}")
    return Outcome(status=status, events=[note], requeue_after_s=0.0)


def _more(
    ctx: Context, status: dict[str, Any], live: int, events: list[EventNote], again_s: float | None, now: datetime
) -> Outcome:
    """Make attempts for the next indexes, as many as may be alive at once; those that failed just now wait."""
    created: list[NewObject] = []
    places = jobslots.room(ctx.spec, live) if ctx.short is None else 0
    for slot in ctx.slots:
        if slot.live or slot.done or len(created) >= places:
            continue
        wait_s = slot.pause_s(now)
        if wait_s > 0:
            again_s = wait_s if again_s is None else min(again_s, wait_s)
            if not live and slot.last is not None:
                status |= {"reason": "RetryWait", "message": slot.last.status.get("message") or "the attempt failed"}
            continue
        created.append(_attempt(ctx, slot))
        events += _told(slot)
    if created:
        status.pop("reason", None)
        status.pop("message", None)
        status["attempts"] = _status(ctx, len(created))["attempts"]
    return Outcome(status=status, create=created, events=events, requeue_after_s=None if created else again_s)


def _attempt(ctx: Context, slot: Slot) -> NewObject:
    spec = {"job": ctx.job.name, "epoch": slot.next_epoch, "node": ctx.node, "state": "Running"}
    labels = {JOB_LABEL: ctx.job.name, RANK_LABEL: "0"}
    if memberspec.TRAINING_LABEL in ctx.job.labels:
        labels[memberspec.TRAINING_LABEL] = ctx.job.labels[memberspec.TRAINING_LABEL]
    if jobslots.is_indexed(ctx.spec):
        spec["slot"] = slot.index
        labels[INDEX_LABEL] = str(slot.index)
    if slot.checkpoint is not None and memberspec.goes_on(ctx.spec):
        spec["restoreFrom"] = {name: slot.checkpoint[name] for name in ("attempt", "seq")}
    return NewObject(
        ATTEMPT,
        jobslots.attempt_name(ctx.job, slot),
        spec,
        labels=labels,
        annotations={QUEUED_ANNOTATION: ctx.job.created_at.isoformat()},
        status={"phase": "Pending"},
    )


def _told(slot: Slot) -> list[EventNote]:
    last = slot.last
    if last is None or slot.phase not in ("Failed", "Lost"):
        return []
    why = last.status.get("message") or last.status.get("reason") or "it failed"
    return [EventNote("Warning", "Retrying", f"attempt {last.name} ended: {why}; attempt {slot.next_epoch} follows")]


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


def _left_s(ctx: Context, now: datetime) -> float | None:
    """Return how long the Job may still run; None without a timeout, or before its first attempt ran."""
    started = ctx.job.status.get("startTime")
    if not started or not ctx.spec.get("timeout"):
        return None
    return parse_duration(ctx.spec["timeout"]) - (now - parse_rfc3339(started)).total_seconds()


def _status(ctx: Context, new: int = 0) -> dict[str, Any]:
    # The image it began with, or the one its user accepted since.
    image = ctx.image if ctx.image and _accepts(ctx.job, ctx.image) else ctx.job.status.get("image") or ctx.image
    return jobstatus.basic(ctx.job, ctx.slots, image, ctx.cost, new)


# Ends ---------------------------------------------------------------------------------------------------------


def _succeed(ctx: Context, now: datetime) -> Outcome:
    """Every index succeeded: commit what was written to Volumes, then end."""
    if any(memberspec.is_writable(mount) for mount in ctx.spec.get("volumes") or ()):
        if ctx.result is None or ctx.result.name != "commit":
            return Outcome(action=Action("commit", f"{ctx.job.uid}/commit"))
        if ctx.result.error is not None:
            return _end(ctx, now, "Failed", reason="VolumeNotCommitted", message=ctx.result.error)
    ended = _end(ctx, now, "Succeeded")
    return dataclasses.replace(ended, events=(*ended.events, *jobstatus.missing_outputs(ctx.job, ctx.slots)))


def _fail(ctx: Context, now: datetime, slot: Slot, failure: Failure) -> Outcome:
    message = f"index {slot.index}: {failure.message}" if jobslots.is_indexed(ctx.spec) else failure.message
    ended = _end(ctx, now, "Failed", reason=failure.reason, message=message, decisive=slot)
    return _with_fix(ended, failure.fix)


def _with_fix(ended: Outcome, fix: str | None) -> Outcome:
    return dataclasses.replace(ended, status={**(ended.status or {}), "fix": fix}) if fix else ended


def _end(
    ctx: Context,
    now: datetime,
    phase: str,
    *,
    reason: str | None = None,
    message: str | None = None,
    decisive: Slot | None = None,
) -> Outcome:
    """End the Job; what the newest attempts left is the Job's.

    Args:
        ctx: The Job.
        now: The present.
        phase: Succeeded, Failed or Cancelled.
        reason: Why.
        message: For people.
        decisive: The index whose newest attempt's exit code and advice are the Job's. None where none of several is:
            an index that succeeded does not say how the Job failed.
    """
    status = {**_status(ctx), "phase": phase, "completionTime": rfc3339(now)}
    status["cost"]["final"] = True
    if decisive is None and (phase == "Succeeded" or not jobslots.is_indexed(ctx.spec)):
        decisive = ctx.slots[-1]
    last = decisive.last if decisive is not None else None
    if last is not None:
        status |= {name: last.status[name] for name in _COPIED if name in last.status and phase != "Succeeded"}
        if "exitCode" in last.status:
            status["exitCode"] = last.status["exitCode"]
    status |= jobstatus.outputs(ctx.job, ctx.slots)
    if reason is not None:
        status["reason"] = reason
    if message is not None:
        status["message"] = message
    kind: EventType = "Warning" if phase == "Failed" else "Normal"
    return Outcome(status=status, events=[EventNote(kind, reason or phase, message or f"the Job ended: {phase}")])
