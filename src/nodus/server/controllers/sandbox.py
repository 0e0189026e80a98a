"""Sandboxes: one attempt after another, each a run between a start and a stop, with the same ``/workspace``.

::

    Pending -> Starting -> Running -> Stopping -> Stopped -> Pending    spec.state, an idle time-out, a lifetime,
       ^                      |                                         the end of its own command
       |                      +-> Recovering -> Running                 its supervisor or its machine was lost
       +---------- Failed <---+                                         it can't be started, or broke

What is wanted is ``spec.state``, and the annotation that asks for a start: a Sandbox that stopped by itself starts
again when it is asked to, though its state was Running all along. A Sandbox's Processes are objects it owns; how they
stand is read from the backend on every pass, as for attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nodus.core.clock import parse_rfc3339, rfc3339
from nodus.core.durations import parse_duration
from nodus.core.errors import NodusError, SandboxNotRunning, Unsupported
from nodus.core.kinds import ATTEMPT, PROCESS, SANDBOX, Kind
from nodus.server.billing import costs
from nodus.server.billing.refusals import UNFUNDED
from nodus.server.compute.local import images
from nodus.server.compute.processes import Activity
from nodus.server.controllers import funding, givingup, sandboxmember, sandboxprocesses, stopping
from nodus.server.controllers.attempt import QUEUED_ANNOTATION
from nodus.server.controllers.funding import FREE_TERMS, Terms
from nodus.server.controllers.runtime import (
    NOTHING,
    Action,
    ActionResult,
    BaseController,
    EventNote,
    NewObject,
    Outcome,
    Trouble,
    Update,
)
from nodus.server.controllers.sandboxprocesses import Known
from nodus.server.store import ledger, objects
from nodus.server.store.cascade import dependents

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.compute.local.backend import LocalBackend
    from nodus.server.store import Store
    from nodus.server.store.objects import Object

START_ANNOTATION = "nodus.dev/start-requested-at"
WATCH_INTERVAL_S = 2.0
MAX_LOST = 10
"""Attempts lost one after the other before a Sandbox fails all the same."""
STEADY_S = 600.0
"""An attempt that ran for so long before it was lost is no sign of a Sandbox that can't run."""
KEPT_ATTEMPTS = 3
TOLD_EVERY_S = 10.0
"""How coarse ``status.lastActivityTime`` is while nothing else changes."""
SETTLED = ("Stopped", "Failed")
_STOPS = ("Stopped", "Idle", "MaxLifetime", stopping.LOW_DISK)
NO_COST = ledger.Cost()


@dataclass(frozen=True, slots=True)
class Context:
    """What a decision about a Sandbox needs."""

    sandbox: Object
    attempts: tuple[Object, ...]
    """Its attempts, oldest first."""
    processes: tuple[Known, ...] = ()
    """Its processes, oldest first."""
    node: str = ""
    activity: Activity | None = None
    """Of its newest attempt, while that runs."""
    image: dict[str, str] | None = None
    low_disk: str | None = None
    """How little room the disk has, where that is too little for runs."""
    cost: ledger.Cost = NO_COST
    """What the books say of it."""
    short: dict[str, str] | None = None
    """Reason, message and fix why its start would not be funded, where its newest attempt ended for want of money."""
    result: ActionResult | None = None

    @property
    def last(self) -> Object | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def live(self) -> Object | None:
        """The newest attempt while it has not ended."""
        last = self.last
        return last if last is not None and not ATTEMPT.is_terminal(last.status.get("phase")) else None

    @property
    def wanted(self) -> str:
        """Running or Stopped."""
        return str(self.sandbox.spec.get("state") or "Running")

    @property
    def start_request(self) -> str | None:
        """The newest request to start."""
        return self.sandbox.annotations.get(START_ANNOTATION)

    def lifecycle_s(self, name: str) -> float | None:
        """Seconds of a time in ``spec.lifecycle``."""
        text = (self.sandbox.spec.get("lifecycle") or {}).get(name)
        return parse_duration(text) if text else None


@dataclass(slots=True)
class _Memory:
    """Which Sandbox an attempt is of, for whoever hears of the attempt first."""

    sandboxes: dict[str, str] = field(default_factory=dict)


class SandboxController(BaseController):
    """Starts, stops and recovers Sandboxes, and records what becomes of their processes.

    Args:
        node: This host's id; new attempts run on it, and those of others are left alone.
        backend: Where they run.
        low_disk: Says how little room the disk has, where that is too little for runs.
        terms: On what terms this server runs what costs something.
    """

    kind = SANDBOX
    watches: tuple[Kind, ...] = (ATTEMPT, PROCESS)

    def __init__(
        self,
        node: str,
        backend: LocalBackend,
        low_disk: Callable[[], str | None] = lambda: None,
        terms: Terms = FREE_TERMS,
    ) -> None:
        self._low_disk = low_disk
        self._terms = terms
        self._node = node
        self._backend = backend
        self._memory = _Memory()

    def sandbox_of(self, attempt_uid: str) -> str | None:
        """Return the uid of the Sandbox that an attempt is of, as far as that was seen."""
        return self._memory.sandboxes.get(attempt_uid)

    def eligible(self, obj: Object) -> bool:
        """Tell whether the Sandbox is this node's, and not settled in what its user wants."""
        node = (obj.status.get("attempt") or {}).get("node")
        if node not in (None, self._node):
            return False
        return obj.status.get("phase") not in SETTLED or _wants_change(obj)

    def load(self, conn: Connection, obj: Object) -> Context:
        """Read its attempts and processes, and how those stand."""
        children = dependents(conn, obj.uid)
        attempts = sorted((c for c in children if c.kind == ATTEMPT.name), key=lambda a: int(a.spec["epoch"]))
        processes = sorted((c for c in children if c.kind == PROCESS.name), key=lambda p: int(p.spec["number"]))
        for attempt in attempts[-1:]:
            self._memory.sandboxes[attempt.uid] = obj.uid
        known = tuple(Known(process, self._state(process)) for process in processes)
        try:
            image = images.resolve(obj.spec.get("image") or "nodus/agent-tools").to_status()
        except Unsupported:
            image = None
        cost = ledger.cost_of(conn, obj.uid)
        ctx = Context(obj, tuple(attempts), known, self._node, image=image, cost=cost, low_disk=self._low_disk())
        if ctx.live is not None and ctx.live.status.get("phase") == "Running":
            ctx = replace(ctx, activity=self._backend.processes.read_activity(ctx.live.uid))
        if ctx.live is None and ctx.last is not None and ctx.last.status.get("reason") in UNFUNDED:
            ctx = replace(ctx, short=funding.shortage(conn, obj, self._node, self._terms))
        return ctx

    def _state(self, process: Object) -> Any:
        if PROCESS.is_terminal(process.status.get("phase")):
            return None
        return self._backend.processes.read_state(process.spec["attempt"], process.uid)

    def decide(self, ctx: Context, now: datetime) -> Outcome:
        """Start, follow, stop, recover."""
        if ctx.sandbox.deleted_at is not None:
            return Outcome(status={**ctx.sandbox.status, "phase": "Terminating"})
        outcome = _decide_live(ctx, ctx.live, now) if ctx.live is not None else _decide_down(ctx, now)
        return _with_processes(ctx, outcome, now)

    async def act(self, ctx: Context, action: Action) -> ActionResult:
        """Start or stop a process, or forget processes that ended long ago."""
        processes, args = self._backend.processes, action.args
        try:
            match action.name:
                case "exec":
                    known = next(known for known in ctx.processes if known.obj.uid == args["uid"])
                    spec = sandboxmember.process_spec(ctx.sandbox.spec, known.obj)
                    await processes.exec(args["attempt"], spec)
                case "cancel":
                    await processes.stop(args["attempt"], args["uid"], "Cancelled", sandboxprocesses.CANCEL_GRACE_S)
                case "forget":
                    for attempt, uid in args["processes"]:
                        await processes.forget(attempt, uid)
                case other:
                    raise NotImplementedError(other)
        except SandboxNotRunning:
            pass  # It ended meanwhile; the next pass sees that.
        except NodusError as error:
            if error.retryable:
                raise
            return ActionResult(action.key, action.name, args, error=error.message)
        return ActionResult(action.key, action.name, args)

    def give_up(self, obj: Object, ctx: Context | None, trouble: Trouble, now: datetime) -> Outcome:
        """Fail and stop; where it was about one Process, that fails and the Sandbox goes on."""
        action = trouble.action
        if ctx is None:
            return givingup.ended(self.kind, obj, trouble, now)
        if action is not None and action.name in ("exec", "forget"):
            result = ActionResult(action.key, action.name, action.args, error=trouble.message(now))
            return self.decide(replace(ctx, result=result), now)
        reason = givingup.reason_of(SANDBOX, obj.status)
        ended = _settle(ctx, now, "Failed", None, reason=reason, message=trouble.message(now), fix=givingup.FIX)
        if ctx.live is None:
            return ended
        spec = {**ctx.live.spec, "state": "Stopped", "stopReason": givingup.INTERNAL_ERROR}
        return replace(ended, update=[Update(ctx.live, spec=spec)])

    async def gone(self, uid: str) -> None:
        """Delete the files of a deleted Sandbox."""
        await self._backend.release_workspace(uid)

    async def attach(self, store: Store) -> None:
        """After a start of the server, delete the files of Sandboxes that were deleted while it was away."""
        for uid in await self._backend.workspaces():
            if await store.read(objects.find_by_uid, uid) is None:
                await self._backend.release_workspace(uid)


def _wants_change(sandbox: Object) -> bool:
    """Tell whether a Sandbox that is down is to start, or its stop is to be its user's from now on."""
    status, stopped_by_user = sandbox.status, sandbox.status.get("stopReason") == "Stopped"
    if sandbox.deleted_at is not None:
        return True
    if (sandbox.spec.get("state") or "Running") == "Stopped":
        return not stopped_by_user
    return stopped_by_user or sandbox.annotations.get(START_ANNOTATION) != status.get("observedStart")


def _decide_live(ctx: Context, attempt: Object, now: datetime) -> Outcome:
    """An attempt waits, starts or runs: mirror it, and tell it to stop when that is due."""
    status = _status(ctx)
    if attempt.spec.get("state") == "Stopped":
        status |= {"phase": "Stopping", "reason": attempt.spec.get("stopReason")}
        return Outcome(status=status, requeue_after_s=WATCH_INTERVAL_S)
    status |= {"observedStart": ctx.start_request, **_mirror(ctx, attempt)}
    events: list[EventNote] = []
    if status["phase"] == "Running":
        status |= _seen(ctx, _began(attempt))
        if ctx.sandbox.status.get("phase") != "Running":
            events.append(EventNote("Normal", "Started", f"attempt {attempt.name} runs"))
    status = {key: value for key, value in status.items() if value is not None}
    reason, left_s = _due_stop(ctx, attempt, now)
    if reason is None:
        return Outcome(status=status, events=events, requeue_after_s=min(WATCH_INTERVAL_S, left_s))
    if reason == "Idle" and (ctx.sandbox.spec.get("lifecycle") or {}).get("onIdle") == "Delete":
        return Outcome(delete=[ctx.sandbox])
    spec = {**attempt.spec, "state": "Stopped", "stopReason": reason}
    status |= {"phase": "Stopping", "reason": reason}
    events.append(EventNote("Normal", "Stopping", _why_stopped(ctx, reason)))
    return Outcome(status=status, update=[Update(attempt, spec=spec)], events=events)


def _mirror(ctx: Context, attempt: Object) -> dict[str, Any]:
    """Return phase, reason and message while an attempt is alive."""
    phase = attempt.status.get("phase")
    if phase == "Running":
        return {"phase": "Running", "reason": None, "message": None}
    again = ctx.sandbox.status.get("phase") in ("Running", "Recovering")
    told = {name: attempt.status.get(name) for name in ("reason", "message")}
    return {"phase": "Recovering" if again else "Starting" if phase == "Starting" else "Pending", **told}


def _seen(ctx: Context, began: datetime | None) -> dict[str, Any]:
    seen, told = ctx.activity, ctx.sandbox.status
    at = began if seen is None else datetime.fromtimestamp(seen.at, UTC)
    activity = "Active" if seen is not None and seen.busy else "Idle"
    before = told.get("lastActivityTime")
    if before and at and activity == told.get("activity"):
        # Not a write for every call.
        at = at if (at - parse_rfc3339(before)).total_seconds() >= TOLD_EVERY_S else parse_rfc3339(before)
    return {
        "activity": activity,
        "startTime": rfc3339(began) if began is not None else None,
        "lastActivityTime": rfc3339(at) if at is not None else None,
    }


def _began(attempt: Object) -> datetime | None:
    text = (attempt.status.get("timings") or {}).get("commandStartedTime")
    return parse_rfc3339(text) if text else None


def _due_stop(ctx: Context, attempt: Object, now: datetime) -> tuple[str | None, float]:
    """Return why the Sandbox is to stop now, if it is, and else in how many seconds that may change."""
    if ctx.wanted == "Stopped":
        return "Stopped", 0.0
    if ctx.low_disk is not None:
        return stopping.LOW_DISK, 0.0
    began = _began(attempt)
    if attempt.status.get("phase") != "Running" or began is None:
        return None, WATCH_INTERVAL_S
    left_s = [WATCH_INTERVAL_S]
    lifetime_s = ctx.lifecycle_s("maxLifetime")
    if lifetime_s is not None:
        left_s.append(lifetime_s - (now - began).total_seconds())
        if left_s[-1] <= 0:
            return "MaxLifetime", 0.0
    idle_s, seen = ctx.lifecycle_s("idleTimeout"), ctx.activity
    if idle_s is not None and not (seen is not None and seen.busy):
        since = max(began.timestamp(), seen.at if seen is not None else 0.0)
        left_s.append(idle_s - (now.timestamp() - since))
        if left_s[-1] <= 0:
            return "Idle", 0.0
    return None, max(0.05, min(left_s))


def _why_stopped(ctx: Context, reason: str) -> str:
    lifecycle = ctx.sandbox.spec.get("lifecycle") or {}
    if reason == stopping.LOW_DISK:
        return str(ctx.low_disk)
    if reason == "Idle":
        return f"nothing went on for {lifecycle.get('idleTimeout')}"
    return f"it ran for {lifecycle.get('maxLifetime')}" if reason == "MaxLifetime" else "stopped by its user"


def _decide_down(ctx: Context, now: datetime) -> Outcome:
    """No attempt, or the newest one ended: start another, or say why none follows."""
    last, told = ctx.last, ctx.sandbox.status
    if ctx.wanted == "Stopped":
        return _settle(ctx, now, "Stopped", "Stopped")
    ended = (last.status.get("reason") if last is not None else None) or ""
    by_user = told.get("stopReason") == "Stopped" or ended == "Stopped"
    if last is None or by_user or ctx.start_request != told.get("observedStart"):
        return _start(ctx, recoveries=0)
    if told.get("phase") in SETTLED:
        return NOTHING
    if last.status.get("phase") == "Lost":
        return _recover(ctx, last, now)
    if last.status.get("phase") == "Cancelled" and ended in UNFUNDED:
        # The attempt says what it lacked to go on; after its last charge the books say what a start needs.
        why: Mapping[str, Any] = ctx.short or last.status
        return _settle(ctx, now, "Stopped", ended, message=why.get("message"), fix=why.get("fix"))
    if ended in _STOPS:
        return _settle(ctx, now, "Stopped", ended)
    code = last.status.get("exitCode")
    if ctx.sandbox.spec.get("command") and code is not None and ended in ("", "Error"):
        return _settle(ctx, now, "Stopped", "CommandExited", exit_code=int(code))
    if not ctx.sandbox.spec.get("command") and ended in ("", "Error"):
        # Something in it asked process one to end: a shutdown from inside.
        return _settle(ctx, now, "Stopped", "CommandExited")
    message = last.status.get("message") or "the sandbox ended unexpectedly"
    return _settle(ctx, now, "Failed", None, reason=ended, message=message, fix=last.status.get("fix"))


def _start(ctx: Context, *, recoveries: int) -> Outcome:
    """Make the next attempt."""
    sandbox, last = ctx.sandbox, ctx.last
    epoch = int(last.spec["epoch"]) + 1 if last is not None else 1
    # Not a name that an attempt of a Job can have by chance.
    name = f"sb-{sandbox.name[:50]}-{sandbox.uid[:4]}-{epoch}"
    attempt = NewObject(
        ATTEMPT,
        name,
        {"sandbox": sandbox.name, "epoch": epoch, "node": ctx.node, "state": "Running"},
        labels={sandboxmember.SANDBOX_LABEL: sandbox.name},
        annotations={QUEUED_ANNOTATION: sandbox.created_at.isoformat()},
        status={"phase": "Pending"},
    )
    status = _status(ctx)
    status |= {"phase": "Recovering" if recoveries else "Pending", "recoveries": recoveries}
    status["attempt"] = {"name": name, "epoch": epoch, "node": ctx.node}
    if ctx.start_request is not None:
        status["observedStart"] = ctx.start_request
    old = [attempt for attempt in ctx.attempts[: 1 - KEPT_ATTEMPTS] if ATTEMPT.is_terminal(attempt.status.get("phase"))]
    return Outcome(status=status, create=[attempt], delete=old)


def _recover(ctx: Context, last: Object, now: datetime) -> Outcome:
    """The attempt was lost with its supervisor: another one takes the files over."""
    began = _began(last)
    steady = began is not None and (now - began).total_seconds() >= STEADY_S
    recoveries = 1 if steady else int(ctx.sandbox.status.get("recoveries") or 0) + 1
    if recoveries > MAX_LOST:
        message = f"{MAX_LOST} attempts were lost one after the other"
        return _settle(ctx, now, "Failed", None, reason="AttemptLost", message=message)
    outcome = _start(ctx, recoveries=recoveries)
    why = last.status.get("message") or "it was lost"
    event = EventNote("Warning", "Recovering", f"attempt {last.name} ended: {why}; another one follows")
    return replace(outcome, events=(event,))


def _settle(
    ctx: Context,
    now: datetime,
    phase: str,
    stop_reason: str | None,
    *,
    exit_code: int | None = None,
    reason: str | None = None,
    message: str | None = None,
    fix: str | None = None,
) -> Outcome:
    """Say that the Sandbox is down and why."""
    told = ctx.sandbox.status
    status = {**_status(ctx), "phase": phase, "activity": "Idle"}
    status |= {"stopReason": stop_reason, "reason": reason or stop_reason, "message": message, "fix": fix}
    status |= {"exitCode": exit_code, "observedStart": told.get("observedStart"), "lastActivityTime": None}
    was_down = told.get("phase") in SETTLED
    status["stopTime"] = told.get("stopTime") if was_down else rfc3339(now)
    status = {key: value for key, value in status.items() if value is not None}
    if was_down:
        return Outcome(status=status)
    if phase == "Failed":
        event = EventNote("Warning", reason or "Failed", message or "the sandbox failed")
    else:
        event = EventNote("Normal", "Stopped", f"stopped: {stop_reason}")
    return Outcome(status=status, events=(event,))


def _status(ctx: Context) -> dict[str, Any]:
    """Return what stays of the status from pass to pass, brought up to date."""
    told = ctx.sandbox.status
    kept = ("attempt", "processCount", "recoveries", "startTime", "observedStart")
    status: dict[str, Any] = {name: told[name] for name in kept if told.get(name) is not None}
    status["observedGeneration"] = ctx.sandbox.generation
    running = [ctx.live] if ctx.live is not None and ctx.live.status.get("phase") == "Running" else []
    status["cost"] = costs.to_wire(ctx.cost, ctx.sandbox.spec.get("maxCostUSD"), running)
    if ctx.image is not None:
        status["image"] = ctx.image
    return status


def _with_processes(ctx: Context, outcome: Outcome, now: datetime) -> Outcome:
    """Add what is to be done about the processes."""
    steps = sandboxprocesses.decide(ctx.processes, ctx.live, ctx.result, now)
    return replace(
        outcome,
        update=(*outcome.update, *steps.updates),
        delete=(*outcome.delete, *steps.deletes),
        action=outcome.action or steps.action,
    )
