"""Attempts: one member on the compute backend each, followed from waiting for capacity to its end.

::

    Pending --start--> Starting --> Running --collect--> Succeeded | Failed | Cancelled | Lost
       |                                                     ^
       +------------- spec.state: Stopped -------------------+

Where an attempt stands is read from the backend on every pass; the database only records it. So a server that was
killed between starting a member and writing that down finds it running, and one that comes back finds what ended
meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nodus.core.clock import Clock, parse_rfc3339, rfc3339
from nodus.core.errors import NodusError
from nodus.core.kinds import ATTEMPT, JOB, SANDBOX
from nodus.server import outputlists
from nodus.server.billing.refusals import UNFUNDED, told
from nodus.server.compute.base import NOTHING_SAID, Collected, MemberSpec, MemberState, Reported
from nodus.server.controllers import funding, givingup, memberspec, sandboxmember, stopping
from nodus.server.controllers.runtime import (
    Action,
    ActionResult,
    BaseController,
    EventNote,
    EventType,
    Outcome,
    Payment,
    Trouble,
)
from nodus.server.store import blobs, objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.compute.local.backend import LocalBackend
    from nodus.server.controllers.lookups import Lookups
    from nodus.server.store import Store
    from nodus.server.store.objects import Object

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 2.0
QUEUE_INTERVAL_S = 1.0
UNSCHEDULABLE, WAITING = "Unschedulable", "Waiting"
"""Reasons of a pending attempt that is out of the line: it never fits here, or something it needs isn't there yet."""
QUEUED_ANNOTATION = "nodus.dev/queued-at"
"""On an attempt: since when its run waits, so that a run keeps its place in line over its attempts."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a decision about an attempt needs."""

    obj: Object
    job: Object | None
    """The Job that it is a try of, or the Sandbox that it is a run of."""
    member: MemberState
    line: tuple[str, ...] = ()
    """Uids of the attempts that wait for capacity, the next one first; read only while this one waits."""
    result: ActionResult | None = None
    said: Reported = NOTHING_SAID
    """What its command has reported."""
    place: funding.Place | None = None
    """Where it runs or would run."""
    account: funding.Account | None = None
    """Its books, where it costs something."""

    @property
    def slices(self) -> int:
        """How many slices of funding it has taken."""
        return int((self.obj.status.get("funding") or {}).get("slices") or 0)


class AttemptController(BaseController):
    """Runs the attempts of this node.

    Args:
        store: For look-ups when a member is started.
        backend: Where members run.
        lookups: Secrets, volumes and tokens.
        node: This host's id; attempts of other nodes are left alone.
        clock: Where time comes from.
        terms: On what terms runs cost something.

    Attributes:
        wake: Called with the uid of an attempt that may have become next in line for capacity.
    """

    kind = ATTEMPT

    def __init__(
        self,
        store: Store,
        backend: LocalBackend,
        lookups: Lookups,
        node: str,
        clock: Clock,
        terms: funding.Terms = funding.FREE_TERMS,
    ) -> None:
        self.wake: Callable[[str], None] = lambda uid: None
        self._line: tuple[str, ...] = ()
        self._store = store
        self._backend = backend
        self._lookups = lookups
        self._node = node
        self._clock = clock
        self._terms = terms

    def eligible(self, obj: Object) -> bool:
        """Tell whether the attempt is this node's and hasn't ended, or was left behind without its owner."""
        if obj.spec.get("node") not in (None, self._node):
            return False
        return not obj.controllers or not self.kind.is_terminal(obj.status.get("phase"))

    def load(self, conn: Connection, obj: Object) -> Context:
        """Read the Job, where the member stands and, while it waits, who is in line."""
        member = self._backend.read_state(obj.uid)
        line: tuple[str, ...] = ()
        if member.phase == "Absent":
            live = objects.list_(conn, ATTEMPT, None, fields="status.phase in (Pending,Starting,Running)").items
            line = self._line = waiting_line(a for a in live if a.spec.get("node") in (None, self._node))
        owner = _owner(conn, obj)
        place, account = (None, None) if owner is None else funding.load(conn, obj, owner, self._node, self._terms)
        said = self._backend.reported(obj.uid)
        return Context(obj, owner, member, line, said=said, place=place, account=account)

    def decide(self, ctx: Context, now: datetime) -> Outcome:
        """Follow the member."""
        if ctx.job is None:
            # Its owner was deleted without it (`propagationPolicy: Orphan`): nobody could stop it, or pay for it.
            return Outcome(delete=[ctx.obj])
        match ctx.member.phase:
            case "Absent":
                return _decide_absent(ctx, now)
            case "Exited" | "Lost":
                return _decide_ended(ctx, now)
            case phase:
                return _decide_live(ctx, phase, now)

    async def act(self, ctx: Context, action: Action) -> ActionResult:
        """Start, stop or collect."""
        uid = ctx.obj.uid
        match action.name:
            case "reserve":
                return await self._reserve_all(ctx, action)
            case "give-back":
                await self._backend.finish(uid)
                self._wake_next(uid)
                return ActionResult(action.key, action.name)
            case "start":
                return await self._start(ctx, action)
            case "fund":
                await self._backend.fund(uid, **action.args)
                return ActionResult(action.key, action.name)
            case "stop":
                reason = action.args["reason"]
                await self._backend.stop(uid, reason, checkpoint_s=stopping.checkpoint_s(reason))
                return ActionResult(action.key, action.name)
            case "collect":
                return await self._collect(ctx, action)
            case other:
                raise NotImplementedError(other)

    async def gone(self, uid: str) -> None:
        """Stop a deleted attempt, charge it for what it used, and delete its directory."""
        await self._settle(uid)
        await self._backend.release(uid)

    async def settle_left_over(self) -> None:
        """Settle the holds of attempts that are gone or ended without: a crash, or a pass that was given up."""
        for uid in await self._store.read(funding.left_over):
            await self._settle(uid)

    async def _settle(self, uid: str) -> None:
        if not await self._store.read(funding.holds_money, uid):
            return
        rate, item = await self._backend.funded_at(uid)
        member = await self._backend.state(uid)
        if member.phase == "Lost":
            rate = 0  # As at the end of any that was lost: what it used since its last charge nobody knows.
        ran = funding.ran_us(member, self._clock.now())
        await self._store.write(funding.settle_left_over, uid, rate, item, ran)

    def give_up(self, obj: Object, ctx: Context | None, trouble: Trouble, now: datetime) -> Outcome:
        """Fail, for good: another attempt would run into the same."""
        outcome = givingup.ended(self.kind, obj, trouble, now)
        return replace(outcome, status={**(outcome.status or {}), "retryable": False})

    async def abandon(self, obj: Object) -> None:
        """Stop the member, whatever it does, and give its capacity back."""
        for step in (self._backend.stop(obj.uid, "InternalError", grace_s=0), self._backend.finish(obj.uid)):
            try:
                await step
            except Exception:  # it may be what fails; the other step is due all the same
                log.exception("attempt %s: not everything that it held could be given back", obj.name)
        self._wake_next(obj.uid)

    async def attach(self) -> list[str]:
        """Find the members that are there after a start of the server; return the uids of those to look at.

        Members whose attempt was deleted while no server ran are stopped and removed; those whose attempt was given
        up meanwhile are stopped.
        """
        states = await self._backend.attach()
        phases = await self._store.read(_phases, [state.key for state in states])
        # First: how long they ran stands in their directories.
        await self.settle_left_over()
        for state in states:
            if state.key not in phases:
                log.info("attempt %s was deleted; its member is removed", state.key)
                await self._backend.release(state.key)
            elif not state.ended and self.kind.is_terminal(phases[state.key]):
                await self._backend.stop(state.key, "Superseded", grace_s=0)
                await self._backend.finish(state.key)
        return sorted(phases)

    async def _reserve(self, ctx: Context, action: Action) -> ActionResult:
        assert ctx.job is not None
        request = memberspec.request_of(ctx.job.spec)
        missing = await self._backend.reserve(ctx.obj.uid, request.cpu, request.memory_bytes, request.gpus)
        if missing is None:
            return ActionResult(action.key, action.name)
        reason = "Queued" if missing.startswith("waiting") else UNSCHEDULABLE
        return ActionResult(action.key, action.name, {"reason": reason}, error=missing)

    async def _reserve_all(self, ctx: Context, action: Action) -> ActionResult:
        """Reserve capacity and look for what it needs, so that no money is held while it waits for one of them."""
        assert ctx.job is not None
        reserved = await self._reserve(ctx, action)
        if reserved.error is not None:
            return reserved
        try:
            await self._store.read(self._lookups.check, ctx.job)
        except NodusError as error:
            if error.retryable:
                await self._backend.finish(ctx.obj.uid)
                return ActionResult(action.key, action.name, {"reason": WAITING}, error=error.message)
        return reserved  # What is wrong for good is told by the start.

    async def _start(self, ctx: Context, action: Action) -> ActionResult:
        assert ctx.job is not None
        uid = ctx.obj.uid
        reserved = await self._reserve(ctx, action)
        if reserved.error is not None:
            return reserved
        try:
            if ctx.account is not None:
                await self._backend.fund(uid, **funding.to_supervisor(ctx.account))
            if memberspec.written_volumes(ctx.job.spec):
                await self._store.write(self._lookups.hold, ctx.job, ctx.obj)
            found = await self._store.read(self._lookups.find, ctx.job)
            resolved = await asyncio.to_thread(self._lookups.prepare, ctx.job, ctx.obj, found)
            started = ctx.job.status.get("startTime")
            start_s = parse_rfc3339(started).timestamp() if started else None
            timeout_s = memberspec.remaining_s(ctx.job, self._clock.now().timestamp(), start_s)
            await self._backend.start(self._member(ctx.job, ctx.obj, resolved, timeout_s))
        except NodusError as error:
            await self._backend.finish(uid)
            if error.retryable:
                return ActionResult(action.key, action.name, {"reason": WAITING}, error=error.message)
            await self._backend.refuse(uid, error.message, error.fix)
            return ActionResult(action.key, action.name)
        except OSError as error:
            # A full disk, or no process to be had: the machine's trouble, which passes.
            await self._backend.finish(uid)
            log.warning("attempt %s can't be started now: %s", ctx.obj.name, error)
            return ActionResult(
                action.key, action.name, {"reason": WAITING}, error=f"waiting for this machine: {error}"
            )
        self._wake_next(uid)
        return ActionResult(action.key, action.name)

    def _member(
        self, owner: Object, attempt: Object, resolved: memberspec.Resolved, timeout_s: float | None
    ) -> MemberSpec:
        if owner.kind == JOB.name:
            return memberspec.build(owner, attempt, resolved, timeout_s)
        workspace = self._backend.workspace_directory(owner.uid)
        return sandboxmember.build(owner, attempt, resolved, str(workspace))

    def _wake_next(self, but: str) -> None:
        """Let the next in line look for capacity now; it would by itself within a second or more."""
        for uid in self._line:
            if uid != but:
                self.wake(uid)
                return

    async def _collect(self, ctx: Context, action: Action) -> ActionResult:
        uid = ctx.obj.uid
        found: list[Collected] = []
        error = None
        if ctx.job is not None and ctx.job.kind == JOB.name and ctx.member.phase == "Exited":
            try:
                found = await self._backend.collect(uid, memberspec.output_rules(ctx.job.spec))
                await self._store.write(_index, ctx.job.project, found)
            except NodusError as failure:
                if failure.retryable:
                    raise
                error = failure.message
        await self._backend.finish(uid)
        self._wake_next(uid)
        told = await self._tell(ctx.job, found) if ctx.job is not None else {}
        return ActionResult(action.key, action.name, told, error=error)

    async def _tell(self, job: Object, found: Sequence[Collected]) -> dict[str, Any]:
        """Return what the status tells of outputs; a list too long for it is kept as a blob."""
        items = [{"name": f.name, "path": f.path, "sha256": f.sha256, "size": f.size_bytes} for f in found]
        told, kept = outputlists.status_of(items, memberspec.written_outputs(job.spec, [f.path for f in found]))
        if kept is not None:
            sha256 = await asyncio.to_thread(self._store.blobs.put_bytes, kept)
            await self._store.write(blobs.index, job.project, sha256, len(kept), outputlists.MEDIA_TYPE)
            told["outputsTotal"]["digest"] = sha256
        return told


def _owner(conn: Connection, attempt: Object) -> Object | None:
    sandbox = attempt.spec.get("sandbox")
    kind, name = (JOB, attempt.spec["job"]) if sandbox is None else (SANDBOX, sandbox)
    owner = objects.find(conn, kind, attempt.project, name)
    # Not another one that has the name since.
    return owner if owner is not None and owner.uid in attempt.controllers else None


def waiting_line(live: Iterable[Object]) -> tuple[str, ...]:
    """Return the uids of waiting attempts, next first: the oldest run of the project with the fewest running ones.

    An attempt that can never run on this machine, or waits for something else than capacity, holds up nobody.
    """
    items = list(live)
    running: dict[str | None, int] = {}
    for item in items:
        if item.status.get("phase") != "Pending":
            running[item.project] = running.get(item.project, 0) + 1
    pending = [item for item in items if item.status.get("phase") == "Pending"]
    waiting = [item for item in pending if item.status.get("reason") not in (UNSCHEDULABLE, WAITING)]
    waiting.sort(key=lambda item: (running.get(item.project, 0), _queued_at(item), item.resource_version))
    return tuple(item.uid for item in waiting)


def _queued_at(attempt: Object) -> str:
    return attempt.annotations.get(QUEUED_ANNOTATION) or attempt.created_at.isoformat()


def _decide_absent(ctx: Context, now: datetime) -> Outcome:
    """Nothing runs and nothing ran: start it when it is its turn, or end it."""
    obj, result = ctx.obj, ctx.result
    if obj.spec.get("state") == "Stopped":
        # The backend notes that it is never to begin, whatever a start that is under way comes to.
        return Outcome(action=_stop(obj))
    if result is not None and result.name == "start":
        return _decide_started(ctx, result)
    if obj.uid in ctx.line[1:]:
        ahead = ctx.line.index(obj.uid)
        message = f"waiting for {ahead} older run{'s' if ahead != 1 else ''} to start"
        status = {**_base(ctx), "phase": "Pending", "reason": "Queued", "message": message}
        # The one before wakes it when it starts; looking again is for when that one can't or won't start.
        return Outcome(status=status, requeue_after_s=QUEUE_INTERVAL_S * min(10, ahead))
    status = obj.status if obj.status.get("phase") else {**_base(ctx), "phase": "Pending"}
    if ctx.account is not None and ctx.account.open is None:
        return _decide_unfunded(ctx, ctx.account, status)
    return Outcome(status=status, action=Action("start", obj.uid))


def _decide_unfunded(ctx: Context, account: funding.Account, status: dict[str, Any]) -> Outcome:
    """It costs something: have room set aside first, then its first slice, so that money is held only where it runs."""
    obj, result = ctx.obj, ctx.result
    refusal = funding.refusal_of(result)
    if refusal is not None:
        why = told(refusal)
        note = EventNote("Warning", why["reason"], why["message"])
        return Outcome(status={**status, **why}, action=_stop(obj, why["reason"]), events=(note,))
    if result is None or result.name != "reserve":
        return Outcome(status=status, action=Action("reserve", f"{obj.uid}/reserve"))
    if result.error is not None:
        return _decide_started(ctx, result)
    status = {**status, "placement": funding.placement(account.place), "funding": {"slices": ctx.slices + 1}}
    return Outcome(status=status, payment=funding.begin(account, ctx.slices), requeue_after_s=0.0)


def _decide_started(ctx: Context, result: ActionResult) -> Outcome:
    if result.error is None:
        # Forked, and not yet at its lock: it shows in a moment.
        return Outcome(status={**_base(ctx), "phase": "Starting"}, requeue_after_s=0.05)
    status = {**_base(ctx), "phase": "Pending", "reason": result.value["reason"], "message": result.error}
    if ctx.account is not None and ctx.account.open is not None:
        # It does not begin now: its money is for others until it does.
        return Outcome(status=status, payment=Payment(settle=ctx.account.open), requeue_after_s=QUEUE_INTERVAL_S)
    return Outcome(status=status, requeue_after_s=QUEUE_INTERVAL_S)


def _decide_live(ctx: Context, phase: str, now: datetime) -> Outcome:
    """The member starts or runs: record it, keep it funded, and stop it when that is asked for."""
    obj, result = ctx.obj, ctx.result
    status = {**_base(ctx), "phase": phase}
    stopped = result is not None and result.name == "stop"
    if obj.spec.get("state") == "Stopped":
        return Outcome(status=status, requeue_after_s=1.0) if stopped else Outcome(status=status, action=_stop(obj))
    if obj.status.get("reason") in UNFUNDED:
        told: dict[str, Any] = {name: obj.status[name] for name in ("reason", "message", "fix") if name in obj.status}
        action = None if stopped else _stop(obj, told["reason"])
        return Outcome(status={**status, **told}, action=action, requeue_after_s=1.0)
    if ctx.account is not None and phase == "Running":
        return _decide_funding(ctx, ctx.account, status, now)
    return Outcome(status=status, requeue_after_s=1.0 if phase == "Starting" else WATCH_INTERVAL_S)


def _decide_funding(ctx: Context, account: funding.Account, status: dict[str, Any], now: datetime) -> Outcome:
    """Tell the supervisor what is funded, take the next slice when it is due, stop the run when there is none."""
    obj = ctx.obj
    if account.funded_s != ctx.member.funded_s:
        action = Action("fund", f"{obj.uid}/fund/{ctx.slices}", funding.to_supervisor(account))
        return Outcome(status=status, action=action)
    due = funding.follow(account, ctx.slices, funding.ran_us(ctx.member, now), ctx.result)
    if due.payment is not None:
        status["funding"] = {"slices": ctx.slices + 1}
        return Outcome(status=status, payment=due.payment, requeue_after_s=0.0)
    if due.short is not None:
        note = EventNote("Warning", due.short["reason"], due.short["message"])
        return Outcome(status={**status, **due.short}, events=(note,), requeue_after_s=0.0)
    return Outcome(status=status, requeue_after_s=min(WATCH_INTERVAL_S, due.again_s or WATCH_INTERVAL_S))


def _decide_ended(ctx: Context, now: datetime) -> Outcome:
    """The member ended: collect what it left, then say how it went."""
    obj, member, result = ctx.obj, ctx.member, ctx.result
    if result is None or result.name != "collect":
        return Outcome(action=Action("collect", f"{obj.uid}/collect"))
    status = {**_base(ctx), **how_it_ended(member)}
    status |= {name: result.value[name] for name in ("outputs", "outputsTotal") if result.value.get(name)}
    if status.get("reason") in UNFUNDED:
        status |= {name: obj.status[name] for name in ("message", "fix") if name in obj.status}
    if result.error and status["phase"] == "Succeeded":
        status |= {"phase": "Failed", "reason": "OutputsNotCollected", "message": result.error}
    kind: EventType = "Normal" if status["phase"] in ("Succeeded", "Cancelled") else "Warning"
    message = status.get("message") or f"exit code {member.exit_code}"
    payment = None
    if ctx.account is not None:
        payment = funding.finish(ctx.account, member, funding.ran_us(member, now))
        status["cost"] = funding.final_cost(ctx.account, payment)
    note = EventNote(kind, status.get("reason") or status["phase"], message)
    return Outcome(status=status, payment=payment, events=(note,))


def how_it_ended(member: MemberState) -> dict[str, Any]:
    """Return phase, reason, message and the like of an attempt whose member ended."""
    status: dict[str, Any] = {
        "exitCode": member.exit_code,
        "signal": member.signal,
        "message": member.message,
        "fix": member.fix,
        "retryable": member.retryable,
        "peakMemoryBytes": member.peak_memory_bytes,
    }
    if member.phase == "Lost":
        status |= {"phase": "Lost", "reason": member.reason}
    elif member.reason in stopping.STOP_REASONS:
        # The code is that of being stopped, and says nothing of the command.
        status |= {"phase": "Cancelled", "reason": member.reason, "exitCode": None}
    elif member.exit_code == 0 and member.reason is None:
        status |= {"phase": "Succeeded"}
    else:
        status |= {"phase": "Failed", "reason": member.reason or "Error"}
    return {key: value for key, value in status.items() if value is not None}


def _base(ctx: Context) -> dict[str, Any]:
    """Return the part of the status that all phases share: the times, and where and how isolated it runs."""
    names = {"created": "acquiredTime", "started": "commandStartedTime", "finished": "finishedTime"}
    timings = {"queuedTime": rfc3339(ctx.obj.created_at)}
    for name, moment in ctx.member.times.items():
        if name in names:
            timings[names[name]] = rfc3339(datetime.fromtimestamp(moment, UTC))
    base: dict[str, Any] = {"timings": timings}
    placement = _placement(ctx)
    if placement is not None:
        base["placement"] = placement
    # What was said stays known, even if the machine lost the file in which it stood.
    if progress := ctx.said.progress or ctx.obj.status.get("progress"):
        base["progress"] = dict(progress)
    if checkpoints := ctx.said.checkpoint or ctx.obj.status.get("checkpoints"):
        base["checkpoints"] = dict(checkpoints)
    if taken := ctx.obj.status.get("funding"):
        base["funding"] = {**taken, **(funding.until(ctx.account, ctx.member) if ctx.account is not None else {})}
    return base


def _placement(ctx: Context) -> dict[str, Any] | None:
    """Where it runs, at what price, and how isolated: known once it began, and kept when it has ended."""
    known = ctx.obj.status.get("placement") or {}
    isolation = ctx.member.isolation or known.get("isolation")
    if isolation is None:
        return known or None
    return {
        **(funding.placement(ctx.place) if ctx.place is not None else {"rateUSDPerHour": "0.00"}),
        "node": ctx.obj.spec.get("node"),
        "isolation": isolation,
        "regionClass": "local",
        "interruptible": False,
    }


def _stop(obj: Object, reason: str | None = None) -> Action:
    return Action("stop", f"{obj.uid}/stop", {"reason": reason or obj.spec.get("stopReason") or "Cancelled"})


def _phases(conn: Connection, uids: list[str]) -> dict[str, str | None]:
    found = (objects.find_by_uid(conn, uid) for uid in uids)
    return {attempt.uid: attempt.status.get("phase") for attempt in found if attempt is not None}


def _index(conn: Connection, project: str | None, found: list[Collected]) -> None:
    for item in found:
        blobs.index(conn, project, item.sha256, item.size_bytes)
