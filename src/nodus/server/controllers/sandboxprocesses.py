"""What a Sandbox's controller does about its Processes: record ends, cancel, start what was forgotten, tidy up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from nodus.core.clock import rfc3339
from nodus.core.kinds import PROCESS
from nodus.server.compute.processes import ProcessState
from nodus.server.controllers.outcome import Action, ActionResult, Update

if TYPE_CHECKING:
    from nodus.server.store.objects import Object

CANCEL_GRACE_S = 5.0
FORGOTTEN_S = 5.0
"""A process that was recorded and not started after so long was forgotten by a server that died in between."""
NON_ZERO = "NonZeroExitCode"
MOST_ENDED = 100
"""Processes that ended are kept up to this number."""
TIDY_STEP = 20


class Known(NamedTuple):
    """A Process with how it stands; None for one that ended and is recorded so."""

    obj: Object
    state: ProcessState | None


@dataclass(slots=True)
class Steps:
    """What is to be done."""

    updates: list[Update] = field(default_factory=list)
    deletes: list[Object] = field(default_factory=list)
    action: Action | None = None


def decide(processes: Sequence[Known], live: Object | None, result: ActionResult | None, now: datetime) -> Steps:
    """Decide about all processes of a Sandbox; pure.

    Args:
        processes: Oldest first.
        live: The attempt that runs, if one does.
        result: What the last action came to.
        now: The present.
    """
    steps = Steps()
    for known in processes:
        if known.state is None:
            continue
        status = _status(known.obj, known.state, live, result, now)
        if status != known.obj.status:
            steps.updates.append(Update(known.obj, status=status))
        if steps.action is None and not PROCESS.is_terminal(status.get("phase")):
            steps.action = _action(known, live, result, now)
    _tidy(processes, result, steps)
    return steps


def _status(
    obj: Object, state: ProcessState, live: Object | None, result: ActionResult | None, now: datetime
) -> dict[str, Any]:
    """Return the status of a Process that was not recorded as ended."""
    if state.phase == "Running":
        return {**obj.status, "phase": "Running", **_times(state)}
    if state.ended:
        return {**obj.status, **how_it_ended(obj, state), **_times(state)}
    refused = result is not None and result.name == "exec" and result.error is not None
    if refused and result is not None and result.value.get("uid") == obj.uid:
        return {"phase": "Failed", "reason": "StartFailed", "message": result.error, "completionTime": rfc3339(now)}
    if live is None or live.uid != obj.spec.get("attempt"):
        message = "the sandbox ended before it could begin"
        return {"phase": "Failed", "reason": "SandboxStopped", "message": message, "completionTime": rfc3339(now)}
    return dict(obj.status)


def how_it_ended(obj: Object, state: ProcessState) -> dict[str, Any]:
    """Return phase, reason, exit code and message of a process that ended."""
    status: dict[str, Any] = {"exitCode": state.exit_code, "reason": state.reason, "message": state.message}
    if state.reason == "Cancelled":
        status["phase"] = "Cancelled"
    elif state.reason is not None:
        status["phase"] = "Failed"
    elif state.exit_code == 0:
        status["phase"] = "Succeeded"
    else:
        status |= {"phase": "Failed", "reason": NON_ZERO}
    return {key: value for key, value in status.items() if value is not None}


def _times(state: ProcessState) -> dict[str, str]:
    names = {"started": "startTime", "finished": "completionTime"}
    return {names[name]: rfc3339(datetime.fromtimestamp(at, UTC)) for name, at in state.times.items() if name in names}


def _action(known: Known, live: Object | None, result: ActionResult | None, now: datetime) -> Action | None:
    obj, state = known
    if live is None or live.uid != obj.spec.get("attempt") or live.status.get("phase") != "Running" or state is None:
        return None
    args = {"uid": obj.uid, "attempt": live.uid}
    if obj.spec.get("state") == "Cancelled" and not (result is not None and result.name == "cancel"):
        return Action("cancel", f"{obj.uid}/cancel", args)
    forgotten = state.phase == "Absent" and (now - obj.created_at).total_seconds() >= FORGOTTEN_S
    return Action("exec", f"{obj.uid}/exec", args) if forgotten else None


def _tidy(processes: Sequence[Known], result: ActionResult | None, steps: Steps) -> None:
    """Let go of the oldest processes that ended, files first."""
    ended = [known.obj for known in processes if known.state is None]
    old = ended[: max(0, len(ended) - MOST_ENDED)][:TIDY_STEP]
    if not old:
        return
    if result is not None and result.name == "forget":
        forgotten = {uid for _, uid in result.value["processes"]}
        steps.deletes += [obj for obj in old if obj.uid in forgotten]
    elif steps.action is None:
        pairs = [(obj.spec["attempt"], obj.uid) for obj in old]
        steps.action = Action("forget", f"{old[-1].uid}/forget", {"processes": pairs})
