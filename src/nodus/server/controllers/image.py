"""Images: the build of an Environment's package, shown step by step.

::

    Pending --recipe runs--> Building --kept--> Ready
       ^        | (transient failures: again, with growing pauses)
       +--------+----------> Failed

An Environment's controller makes the Image; see ``environment.py``. A server that is killed in the middle begins the
build again. A Ready Image whose build is no longer on the disk (another machine's backup was restored) is built again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nodus.core.clock import parse_rfc3339, rfc3339
from nodus.core.kinds import IMAGE
from nodus.server.controllers.runtime import NOTHING, Action, ActionResult, BaseController, EventNote, Outcome
from nodus.server.grading.builds import Order
from nodus.server.grading.builds.base import later

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.grading.builds import Builds, BuildState
    from nodus.server.store.objects import Object

POLL_INTERVAL_S = 0.5
MAX_TRIES = 4
FIRST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Context:
    """What a decision about an Image needs."""

    obj: Object
    result: ActionResult | None = None


class ImageController(BaseController):
    """Has Images built.

    Args:
        builds: Builds them.
    """

    kind = IMAGE
    rests_in = frozenset({"Ready", "Failed"})

    def __init__(self, builds: Builds) -> None:
        self._builds = builds

    def eligible(self, obj: Object) -> bool:
        """Tell whether it is not built, or what was built is not there."""
        phase = obj.status.get("phase")
        if phase == "Ready":
            return self._builds.store.find(str(obj.status.get("digest"))) is None
        return phase != "Failed"

    def load(self, conn: Connection, obj: Object) -> Context:
        """Everything that matters is in the object."""
        return Context(obj)

    def decide(self, ctx: Context, now: datetime) -> Outcome:
        """Take the next step; see the diagram of the module."""
        obj, result = ctx.obj, ctx.result
        if obj.deleted_at is not None:
            return NOTHING
        status = obj.status
        if result is None:
            pause_s = (parse_rfc3339(status["retryTime"]) - now).total_seconds() if status.get("retryTime") else 0.0
            if pause_s > 0:
                return Outcome(requeue_after_s=pause_s)
            building = {"phase": "Building", "message": "beginning", "tries": status.get("tries")}
            return Outcome(status=_compact(building), action=Action("build", f"{obj.uid}/build"))
        if result.error is not None:
            return _failed(obj, result, now)
        if "digest" in result.value:
            return _ready(obj, result, now)
        steps = result.value["steps"]
        running = next((step for step in steps if step["phase"] == "Running"), None)
        words = f"{running['name']}: {running.get('message', '')}".rstrip(": ") if running else "waiting for its turn"
        building = {"phase": "Building", "message": words, "steps": steps, "tries": status.get("tries")}
        return Outcome(status=_compact(building), action=Action("build", f"{obj.uid}/build"))

    async def act(self, ctx: Context, action: Action) -> ActionResult:
        """Begin the build, or look how far it is."""
        obj = ctx.obj
        order = Order(obj.uid, obj.name, obj.spec["environment"], obj.spec["version"], obj.spec["package"])
        self._builds.begin(order)
        await self._builds.wait(obj.uid, POLL_INTERVAL_S)
        state = self._builds.state(obj.uid)
        if state is None:  # the server stops
            return ActionResult(action.key, action.name, {"steps": []})
        self._builds.forget(obj.uid)
        return _result(action, state)

    async def abandon(self, obj: Object) -> None:
        """Stop the build."""
        await self._builds.stop(obj.uid)

    async def gone(self, uid: str) -> None:
        """Stop the build of an Image that was deleted."""
        await self._builds.gone(uid)


def _result(action: Action, state: BuildState) -> ActionResult:
    steps = [step.to_wire() for step in state.steps]
    if state.failure is not None:
        failure = state.failure
        failed = next((step.name for step in state.steps if step.phase == "Failed"), "build")
        value = {
            "steps": steps, "reason": failure.reason, "fix": failure.fix, "transient": failure.transient,
            "logTail": state.log_tail,
        }  # fmt: skip
        return ActionResult(action.key, action.name, value, f"step {failed!r} failed: {failure.message}")
    if state.build is not None:
        build = state.build
        value = {
            "steps": steps, "digest": build.digest, "sizeBytes": build.size_bytes, "packages": dict(build.packages),
        }  # fmt: skip
        return ActionResult(action.key, action.name, value)
    return ActionResult(action.key, action.name, {"steps": steps})


def _ready(obj: Object, result: ActionResult, now: datetime) -> Outcome:
    value = result.value
    fields = ("digest", "sizeBytes", "packages", "steps")
    status = {"phase": "Ready", **{name: value[name] for name in fields}}
    reused = all(step["phase"] == "Skipped" for step in value["steps"])
    message = f"{'used again' if reused else 'built'}: {value['digest']}"
    condition = {
        "type": "Built", "status": "True", "reason": "Reused" if reused else "Built", "message": message,
        "lastTransitionTime": rfc3339(now),
    }  # fmt: skip
    return Outcome(status={**status, "conditions": [condition]}, events=(EventNote("Normal", "Built", message),))


def _failed(obj: Object, result: ActionResult, now: datetime) -> Outcome:
    value, message = result.value, str(result.error)
    tries = int(obj.status.get("tries") or 0) + 1
    status: dict[str, Any] = {
        "reason": value.get("reason"), "message": message, "fix": value.get("fix"), "steps": value.get("steps"),
        "logTail": value.get("logTail"), "tries": tries,
    }  # fmt: skip
    reason = str(value.get("reason"))
    if value.get("transient") and tries < MAX_TRIES:
        pause_s = FIRST_PAUSE_S * 2 ** (tries - 1)
        status |= {"phase": "Pending", "retryTime": later(now, pause_s)}
        note = EventNote("Warning", reason, f"{message}; trying again in {pause_s:g} s")
        return Outcome(status=_compact(status), events=(note,), requeue_after_s=pause_s)
    condition = {
        "type": "Built", "status": "False", "reason": reason, "message": message,
        "lastTransitionTime": rfc3339(now),
    }  # fmt: skip
    status |= {"phase": "Failed", "conditions": [condition]}
    return Outcome(status=_compact(status), events=(EventNote("Warning", reason, message),))


def _compact(status: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in status.items() if value not in (None, "")}
