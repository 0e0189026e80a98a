"""Environments: the build of a version, which is a check that it lists and grades.

::

    Pending --Image built, where the package needs it--> self-check in sandboxes --> Ready
       |  ^ (no sandbox can be started here: again later)
       +--+--> Failed (the step and the traceback are in the message)

A new version, or a change of what is checked, makes it Pending again. The catalog's environments were checked before
they were shipped: they become Ready at once, with the sizes they declare.

A pip package and an OCI image are built first: into an Image of their own, ``env-NAME-VERSION``, which the Environment
owns; see ``image.py``. Deleting a failed Image has it built again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nodus.core.clock import rfc3339
from nodus.core.digests import digest_of
from nodus.core.errors import NodusError
from nodus.core.kinds import ENVIRONMENT, IMAGE
from nodus.core.kinds.image import image_name
from nodus.server.controllers import givingup
from nodus.server.controllers.outcome import NewObject
from nodus.server.controllers.runtime import NOTHING, Action, ActionResult, BaseController, EventNote, Outcome, Trouble
from nodus.server.grading.environments import catalog_status
from nodus.server.grading.libraries import installed
from nodus.server.grading.selfcheck import SelfCheckFailed, check
from nodus.server.store import objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.grading import GradingService
    from nodus.server.store.objects import Object

POLL_INTERVAL_S = 0.25
NO_SANDBOX_PAUSE_S = 30.0
_CHECKED_FIELDS = ("version", "package", "graders", "requirements", "sandbox")
_BUILT = ("pip", "image")
"""Packagings that are built into an Image first."""
_WAIT_S = 2.0
_TAIL_LINES = 20
CHECKS_AT_ONCE = 2
"""Checks that run at the same time: each holds what an environment lists, four times."""
_FOUND = ("digest", "splits", "grader", "ecosystem", "episodes", "maxTurns", "tools")
"""What a check finds, as the status has it."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a decision about an Environment needs."""

    obj: Object
    image: Object | None = None
    """Its Image at this version, where its package needs one."""
    result: ActionResult | None = None


class EnvironmentController(BaseController):
    """Builds Environments.

    Args:
        grading: Runs them.
    """

    kind = ENVIRONMENT
    watches = (IMAGE,)

    def __init__(self, grading: GradingService) -> None:
        self._grading = grading
        self._checks: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._slots = asyncio.Semaphore(CHECKS_AT_ONCE)

    def eligible(self, obj: Object) -> bool:
        """Tell whether what is there now has not been checked yet."""
        phase = obj.status.get("phase")
        if phase == "Failed" and is_built(obj.spec):
            return True  # its Image may be deleted, to have it built again
        return phase not in ("Ready", "Failed") or obj.status.get("checked") != fingerprint(obj.spec)

    def load(self, conn: Connection, obj: Object) -> Context:
        """Read its Image."""
        if not is_built(obj.spec):
            return Context(obj)
        return Context(obj, objects.find(conn, IMAGE, obj.project, _image_of(obj)))

    def decide(self, ctx: Context, now: datetime) -> Outcome:
        """Take the next step; see the diagram of the module."""
        obj, result = ctx.obj, ctx.result
        if obj.deleted_at is not None:
            return NOTHING
        checked = fingerprint(obj.spec)
        if obj.spec["package"].get("catalog"):
            return Outcome(status={**catalog_status(obj.name, obj.spec), "checked": checked})
        image: dict[str, Any] = {}
        if is_built(obj.spec):
            if (outcome := _unbuilt(ctx, checked, now)) is not None:
                return outcome
            assert ctx.image is not None
            image = {"image": ctx.image.name}
            if obj.status.get("phase") == "Failed" and obj.status.get("checked") == checked:
                return NOTHING
        key = f"{obj.uid}/{checked}{ctx.image.status['digest'] if ctx.image else ''}"
        if result is None or result.key != key:
            pending = {"phase": "Pending", "message": "checking that it lists and grades", **image}
            return Outcome(status=pending, action=Action("check", key))
        if result.error is not None:
            return _failed(result, checked, now, image)
        if "splits" in result.value:
            return _ready(result, checked, now, image, str(obj.spec["version"]))
        if "waiting" in result.value:
            waiting = {"phase": "Pending", "reason": "NoSandbox", "message": str(result.value["waiting"])}
            return Outcome(status=waiting, requeue_after_s=NO_SANDBOX_PAUSE_S)
        return Outcome(requeue_after_s=POLL_INTERVAL_S)

    async def act(self, ctx: Context, action: Action) -> ActionResult:
        """Start the check, or look whether it has ended; checking again after a crash does no harm."""
        isolation = await self._grading.problem()
        if isolation is not None:
            return ActionResult(action.key, action.name, {"waiting": isolation})
        task = self._checks.get(action.key)
        if task is None:
            task = asyncio.create_task(self._check(ctx.obj, ctx.image), name=f"check {ctx.obj.name}")
            self._checks[action.key] = task
        await asyncio.wait([task], timeout=POLL_INTERVAL_S)
        if not task.done():
            return ActionResult(action.key, action.name)
        self._checks.pop(action.key, None)
        try:
            return ActionResult(action.key, action.name, task.result())
        except NodusError as error:
            message = f"{error.message}. {error.fix}" if error.fix else error.message
            return ActionResult(action.key, action.name, {"reason": error.reason}, message)

    def give_up(self, obj: Object, ctx: Context | None, trouble: Trouble, now: datetime) -> Outcome:
        """Fail the build of what is there now."""
        message = f"{trouble.message(now)}. {givingup.FIX}"
        result = ActionResult("", "check", {"reason": givingup.INTERNAL_ERROR}, message)
        return _failed(result, fingerprint(obj.spec), now)

    async def abandon(self, obj: Object) -> None:
        """Stop the check."""
        await self.gone(obj.uid)

    async def gone(self, uid: str) -> None:
        """Stop the check of an Environment that was deleted."""
        for key in [key for key in self._checks if key.startswith(f"{uid}/")]:
            self._checks.pop(key).cancel()

    async def _check(self, obj: Object, image: Object | None) -> dict[str, Any]:
        spec = obj.spec if image is None else {**obj.spec, "build": {"digest": image.status["digest"]}}
        # a key of its own: a check that was started before must not release this one's graders
        async with self._slots:
            found = await check(self._grading, obj.name, spec, f"check-{obj.uid}-{secrets.token_hex(4)}")
        return {"digest": found.digest, "splits": dict(found.splits), "grader": dict(found.grader), **found.facts}


def fingerprint(spec: Mapping[str, Any]) -> str:
    """Return the digest of what the check is about: fields of the spec, and the libraries that grade.

    Another Python or library may grade otherwise, or lack what a reward imports: then an environment is checked again.
    What was built brings its own.
    """
    fields = {name: spec.get(name) or None for name in _CHECKED_FIELDS}
    if spec["package"].get("catalog") or is_built(spec):
        return digest_of(fields)
    return digest_of({**fields, "grader": installed()})


def is_built(spec: Mapping[str, Any]) -> bool:
    """Tell whether an Environment's package is built into an Image."""
    return any(spec["package"].get(name) for name in _BUILT)


def _image_of(obj: Object) -> str:
    return image_name(obj.name, str(obj.spec["version"]))


def _unbuilt(ctx: Context, checked: str, now: datetime) -> Outcome | None:
    """What to do about an Environment whose Image is not Ready; None where it is."""
    obj, image, name = ctx.obj, ctx.image, _image_of(ctx.obj)
    pending = {"phase": "Pending", "image": name}
    if image is None or image.deleted_at is not None:
        status = {**pending, "message": f"building image {name}"}
        if image is not None:
            return Outcome(status=status, requeue_after_s=_WAIT_S)
        version = str(obj.spec["version"])
        spec = {"environment": obj.name, "version": version, "package": obj.spec["package"]}
        return Outcome(status=status, create=[NewObject(IMAGE, name, spec, status={"phase": "Pending"})])
    if image.spec.get("package") != obj.spec["package"]:  # of a manifest that was corrected since
        return Outcome(status={**pending, "message": f"building image {name}"}, delete=[image])
    phase, message = image.status.get("phase"), str(image.status.get("message") or "")
    if phase == "Ready":
        return None
    if phase == "Failed":
        if obj.status.get("phase") == "Failed" and obj.status.get("checked") == checked:
            return NOTHING
        fix = str(image.status.get("fix") or "")
        what = f"image {name}: {message}{f'. {fix}' if fix else ''}"
        tail = "\n".join(str(image.status.get("logTail") or "").strip().splitlines()[-_TAIL_LINES:])
        value = {"reason": image.status.get("reason")}
        where = f"All of it: nodus logs image/{name}"
        return _failed(ActionResult("", "build", value, f"{what}\n{tail}\n{where}"), checked, now, {"image": name})
    return Outcome(status={**pending, "message": f"building image {name}: {message or 'waiting'}"})


def _ready(result: ActionResult, checked: str, now: datetime, image: Mapping[str, Any], version: str) -> Outcome:
    value = result.value
    verified = {
        "type": "Verified",
        "status": "True",
        "reason": "SelfChecked",
        "message": "listed the same tasks twice; graded an answer and an empty reply",
        "lastTransitionTime": rfc3339(now),
    }
    status = {"phase": "Ready", "conditions": [verified], **{key: value[key] for key in _FOUND if key in value}}
    sizes = ", ".join(f"{count} {split}" for split, count in value["splits"].items())
    return Outcome(
        status={**status, **image, "published": version, "checked": checked},
        events=(EventNote("Normal", "Verified", f"lists {sizes} tasks"),),
    )


def _failed(result: ActionResult, checked: str, now: datetime, image: Mapping[str, Any] | None = None) -> Outcome:
    reason, message = str(result.value.get("reason") or SelfCheckFailed.reason), str(result.error)
    verified = {
        "type": "Verified",
        "status": "False",
        "reason": reason,
        "message": message.splitlines()[0],
        "lastTransitionTime": rfc3339(now),
    }
    status = {"phase": "Failed", "reason": reason, "message": message, "conditions": [verified], "checked": checked}
    status |= image or {}
    return Outcome(status=status, events=(EventNote("Warning", reason, message.splitlines()[0]),))
