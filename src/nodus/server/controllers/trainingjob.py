"""TrainingJobs: import the model, create the Job, follow it, and say what came of it.

::

    Queued --model missing--> Provisioning (stage CachingModel) --model there--> the Job's own phase
       |                                                                    Queued, Provisioning, Running, ...
       +-- state Suspended --> Suspended --> Queued                         Succeeded | Failed | Cancelled

The Job has the TrainingJob's name and is owned by it; logs, attempts and outputs are the Job's. What the trainer
reports and the verdicts of its completions are rows that every pass reads anew: nothing here needs to be remembered.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nodus.core.clock import parse_rfc3339, rfc3339
from nodus.core.kinds import JOB, TRAINING_JOB, VOLUME
from nodus.server.billing import costs
from nodus.server.controllers import givingup
from nodus.server.controllers.runtime import (
    NOTHING,
    TERMINAL_PHASES,
    Action,
    ActionResult,
    BaseController,
    EventNote,
    NewObject,
    Outcome,
    Trouble,
    Update,
)
from nodus.server.kinds.trainingjob import provenance
from nodus.server.store import blobs, ledger, measurements, objects, volumes
from nodus.server.training import measuring, progress
from nodus.server.training.compile import JOB_LABEL, ModelPin
from nodus.server.training.models import Pin
from nodus.server.training.parameters import lookup
from nodus.server.training.plan import Inputs, Plan, make_plan

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store import Store
    from nodus.server.store.objects import Object
    from nodus.server.training.service import TrainingService

FOLLOW_INTERVAL_S = 1.0
IMPORT_INTERVAL_S = 0.5
BLOCKED_INTERVAL_S = 5.0
MODEL_VOLUME_SIZE = "200Gi"
NO_COST = ledger.Cost()
_OF_NOW = ("rateUSDPerHour", "fundedUntilTime")
"""What of a Job's cost is about this moment, and its TrainingJob's too."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a decision about a TrainingJob needs."""

    obj: Object
    job: Object | None = None
    """The Job of its name, whoever owns it."""
    volume: Object | None = None
    """The Volume of its model; read until the Job exists."""
    plan: Plan | None = None
    """Its spec, compiled; made until the Job exists."""
    report: progress.Report | None = None
    """What the trainer said and how completions were graded; read once the Job exists."""
    cost: ledger.Cost = NO_COST
    """What the books say of it."""
    result: ActionResult | None = None

    @property
    def state(self) -> str:
        """What the user wants: Running, Suspended or Cancelled."""
        return str(self.obj.spec.get("state", "Running"))

    @property
    def owns_job(self) -> bool:
        """Whether the Job of its name is its own."""
        return self.job is not None and self.obj.uid in self.job.controllers


class TrainingJobController(BaseController):
    """Runs TrainingJobs.

    Args:
        store: for blobs, and for what an action writes.
        grading: the grading service, whose pool of a run is given back at the run's end; None where none runs.
        training: the service whose memory of a run goes then, too.
    """

    kind = TRAINING_JOB
    watches = (JOB,)

    def __init__(self, store: Store, grading: Any = None, training: TrainingService | None = None) -> None:
        self._store = store
        self._grading = grading
        self._training = training

    def load(self, conn: Connection, obj: Object) -> Context:
        """Read the Job; without one the model's Volume and the compiled spec, with one what it has reported."""
        job = objects.find(conn, JOB, obj.project, obj.name)
        if job is not None or obj.status.get("job"):
            cost = ledger.cost_of(conn, obj.uid)
            return Context(obj, job=job, report=progress.read(conn, obj), cost=cost)
        name = _pinned_model(obj).get("volume")
        volume = objects.find(conn, VOLUME, obj.project, name) if name else None
        model = _model_pin(conn, obj, volume)
        inputs = Inputs(
            name=obj.name,
            project=str(obj.project),
            spec=obj.spec,
            pin=_pin(obj),
            model=model,
            splits=obj.status.get("pinned", {}).get("splits"),
            environment_digest=lookup(obj.status, "pinned.environment.digest"),
        )
        return Context(obj, volume=volume, plan=make_plan(conn, inputs))

    def decide(self, ctx: Context, now: datetime) -> Outcome:
        """Take the next step; see the diagram of the module."""
        if ctx.obj.deleted_at is not None:
            return NOTHING
        if ctx.job is None:
            return _decide_without_job(ctx, now)
        if not ctx.owns_job:
            return _fail(
                ctx,
                now,
                "JobNameConflict",
                f"a Job named {ctx.obj.name!r} exists that is not this TrainingJob's",
                "delete that Job, or create the TrainingJob under another name",
            )
        return _decide_with_job(ctx, ctx.job, now)

    async def act(self, ctx: Context, action: Action) -> ActionResult:
        """Store `params.json`; or give the graders back, and keep what a run that succeeded took."""
        if action.name == "store-params":
            content: bytes = action.args["content"]
            sha256 = await asyncio.to_thread(self._store.blobs.put_bytes, content)
            await self._store.write(blobs.index, ctx.obj.project, sha256, len(content), "application/json")
            return ActionResult(action.key, action.name, {"sha256": sha256})
        if action.name == "release":
            await self.gone(ctx.obj.uid)
            if action.args["phase"] == "Succeeded":
                await self._keep_what_it_took(ctx.obj)
            return ActionResult(action.key, action.name)
        raise NotImplementedError(action.name)

    async def _keep_what_it_took(self, obj: Object) -> None:
        found = await self._store.read(measuring.of_run, obj)
        if found is not None:
            await self._store.write(measurements.put, obj.uid, *found)

    def give_up(self, obj: Object, ctx: Context | None, trouble: Trouble, now: datetime) -> Outcome:
        """Fail, and have its Job cancelled; graders that can't be given back are no reason to."""
        if ctx is None:
            return givingup.ended(self.kind, obj, trouble, now)
        if trouble.action is not None and trouble.action.name == "release":
            result = ActionResult(trouble.action.key, "release", error=trouble.message(now))
            return self.decide(dataclasses.replace(ctx, result=result), now)
        reason = givingup.reason_of(TRAINING_JOB, obj.status)
        failed = _fail(ctx, now, reason, trouble.message(now), givingup.FIX)
        if ctx.job is None or not ctx.owns_job or ctx.job.status.get("phase") in TERMINAL_PHASES:
            return failed
        return dataclasses.replace(failed, update=[Update(ctx.job, spec={**ctx.job.spec, "state": "Cancelled"})])

    async def abandon(self, obj: Object) -> None:
        """Give the graders back."""
        await self.gone(obj.uid)

    async def gone(self, uid: str) -> None:
        """Give the graders of a run back, and forget its tasks."""
        if self._training is not None:
            self._training.forget(uid)
        if self._grading is not None:
            await self._grading.release(uid)


def _decide_without_job(ctx: Context, now: datetime) -> Outcome:
    obj, plan = ctx.obj, ctx.plan
    if ctx.state == "Cancelled":
        return Outcome(
            status=_ended(ctx, "Cancelled", now), events=(EventNote("Normal", "Cancelled", "never started"),)
        )
    if obj.status.get("job"):
        return _fail(ctx, now, "JobDeleted", f"its Job {obj.name!r} was deleted", "create the TrainingJob again")
    if ctx.state == "Suspended":
        return Outcome(status=_status(ctx, "Suspended", message="suspended before it started"))
    assert plan is not None, "a TrainingJob without a Job is loaded with its plan"
    if plan.causes:
        what = "; ".join(f"{cause.field}: {cause.message}" for cause in plan.causes)
        return _fail(ctx, now, "Invalid", what, "create it again with these corrected")
    if _environment_changed(ctx, plan):
        return _fail(
            ctx,
            now,
            "EnvironmentChanged",
            "the environment's package changed since the TrainingJob was created",
            "create it again to train on what is there now",
        )
    if plan.blocking:
        first = plan.blocking[0]
        status = _status(ctx, "Queued", reason=first.code, message=first.message, fix=first.fix)
        return Outcome(status=status, requeue_after_s=BLOCKED_INTERVAL_S)
    pin = _pin(obj)
    if pin is not None and ctx.volume is not None and not _holds(ctx.volume, pin):
        return _fail(
            ctx,
            now,
            "ModelVolumeConflict",
            f"the Volume {ctx.volume.name!r} exists and does not come from {pin.repo} at {pin.revision}",
            f"rename or delete it: nodus delete volume/{ctx.volume.name}",
        )
    if plan.model is not None and plan.model.volume_revision is None:
        return _decide_import(ctx, now)
    return _create_job(ctx, plan)


def _decide_import(ctx: Context, now: datetime) -> Outcome:
    """The model is not here yet: have it imported into the project's Volume of that revision."""
    obj, volume, pin = ctx.obj, ctx.volume, _pin(ctx.obj)
    if pin is None:
        return _fail(ctx, now, "Invalid", "the model was not pinned at creation", "create the TrainingJob again")
    secret = (obj.spec.get("model") or {}).get("secret")
    if volume is None:
        child = NewObject(
            VOLUME,
            pin.volume,
            {"accessMode": "ReadOnlyMany", "size": MODEL_VOLUME_SIZE, "source": pin.source(secret)},
            labels={"nodus.dev/model": "true"},
            status={"phase": "Pending", "revision": 0},
            owned=False,
        )
        status = _status(ctx, "Provisioning", stage="CachingModel", message=f"importing {obj.spec['model']['uri']}")
        note = EventNote("Normal", "CachingModel", f"importing {pin.repo} at {pin.revision} into Volume {pin.volume}")
        return Outcome(status=status, create=(child,), events=(note,), requeue_after_s=IMPORT_INTERVAL_S)
    if volume.status.get("phase") == "Failed":
        if _failed_before(volume, obj.created_at):
            # Left over from an earlier run: this one is a new wish for the model, and tries again.
            return Outcome(delete=(volume,), requeue_after_s=0.0)
        reason = str(volume.status.get("reason") or "ModelImportFailed")
        return _fail(ctx, now, reason, str(volume.status.get("message")), str(volume.status.get("fix") or ""))
    message = str(volume.status.get("message") or f"importing {pin.repo}")
    status = _status(ctx, "Provisioning", stage="CachingModel", message=message)
    return Outcome(status=status, requeue_after_s=IMPORT_INTERVAL_S)


def _create_job(ctx: Context, plan: Plan) -> Outcome:
    obj, compiled = ctx.obj, plan.compiled
    assert compiled is not None, "a plan without causes is compiled"
    key = f"{obj.uid}/params/{compiled.job['inputs'][0]['blob']}"
    if ctx.result is None or ctx.result.key != key:
        return Outcome(action=Action("store-params", key, {"content": compiled.params_bytes}))
    job = NewObject(
        JOB, obj.name, compiled.job, labels={**_labels(obj), JOB_LABEL: obj.name}, status={"phase": "Queued"}
    )
    status = _status(ctx, "Queued") | {"job": obj.name, "provenance": provenance(plan)}
    note = EventNote("Normal", "JobCreated", f"created Job {obj.name}")
    return Outcome(status=status, create=(job,), events=(note,))


def _decide_with_job(ctx: Context, job: Object, now: datetime) -> Outcome:
    """Pass the user's wishes on to the Job, and its state back."""
    obj = ctx.obj
    update = _wishes(ctx, job)
    phase = str(job.status.get("phase") or "Queued")
    ends = phase in TERMINAL_PHASES or phase == "Suspended"
    release = Action("release", f"{obj.uid}/release/{phase}", {"phase": phase})
    if ends and obj.status.get("phase") != phase and (ctx.result is None or ctx.result.key != release.key):
        # Graders first: once the phase is terminal, no pass looks at this run again.
        return Outcome(update=update, action=release)
    status = _follow(ctx, job, phase)
    if phase in TERMINAL_PHASES:
        status.setdefault("completionTime", rfc3339(now))
        return Outcome(status=status, events=(_ending(obj, status),))
    return Outcome(status=status, update=update, requeue_after_s=FOLLOW_INTERVAL_S)


def _follow(ctx: Context, job: Object, phase: str) -> dict[str, Any]:
    """The status of a run that has a Job: the Job's own, and what the trainer's reports and verdicts say."""
    obj = ctx.obj
    status = {key: value for key, value in obj.status.items() if key not in ("reason", "message", "fix")}
    status |= {"phase": phase, "job": job.name}
    for key in ("reason", "message", "fix", "attempts", "startTime", "completionTime"):
        if job.status.get(key) is not None:
            status[key] = job.status[key]
    # The bill is its own: grading is on it too.
    now = {name: job.status["cost"][name] for name in _OF_NOW if name in (job.status.get("cost") or {})}
    status["cost"] = costs.to_wire(ctx.cost, obj.spec.get("maxCostUSD"), final=phase in TERMINAL_PHASES) | now
    if job.status.get("outputs"):
        status["outputs"] = [
            {"name": output["name"], "sizeBytes": output.get("size", output.get("sizeBytes"))}
            for output in job.status["outputs"]
        ]
    status |= progress.of_job(job.status.get("progress"))
    if ctx.report is not None:
        status |= progress.status_of(obj, ctx.report, finished=phase in TERMINAL_PHASES)
    return status


def _wishes(ctx: Context, job: Object) -> tuple[Update, ...]:
    """State and cap, where the Job's differ. A Job that was cancelled by its own name stays cancelled."""
    changes: dict[str, Any] = {}
    now = job.spec.get("state", "Running")
    if job.status.get("phase") not in TERMINAL_PHASES and now not in (ctx.state, "Cancelled"):
        changes["state"] = ctx.state
    cap = ctx.obj.spec.get("maxCostUSD")
    if cap is not None and cap != job.spec.get("maxCostUSD"):
        changes["maxCostUSD"] = cap
    return (Update(job, spec={**job.spec, **changes}),) if changes else ()


def _ending(obj: Object, status: Mapping[str, Any]) -> EventNote:
    comparison = (status.get("summary") or {}).get("comparison") or {}
    if status["phase"] == "Succeeded" and comparison.get("comparable"):
        return EventNote("Normal", "Succeeded", f"pass rate changed by {comparison['changePP']} points")
    reason, message = str(status.get("reason") or status["phase"]), str(status.get("message") or status["phase"])
    return EventNote("Warning" if status["phase"] == "Failed" else "Normal", reason, message)


def _fail(ctx: Context, now: datetime, reason: str, message: str, fix: str) -> Outcome:
    status = _ended(ctx, "Failed", now) | {"reason": reason, "message": message}
    if fix:
        status["fix"] = fix
    return Outcome(status=status, events=(EventNote("Warning", reason, message),))


def _ended(ctx: Context, phase: str, now: datetime) -> dict[str, Any]:
    return _status(ctx, phase) | {"completionTime": rfc3339(now)}


def _status(ctx: Context, phase: str, *, stage: str | None = None, **words: str) -> dict[str, Any]:
    """The status before a Job exists: what was fixed at creation, the phase, and why."""
    kept = {key: value for key, value in ctx.obj.status.items() if key not in ("reason", "message", "fix", "progress")}
    status = kept | {"phase": phase} | {key: value for key, value in words.items() if value}
    return status | {"progress": {"stage": stage}} if stage else status


def _environment_changed(ctx: Context, plan: Plan) -> bool:
    pinned = (ctx.obj.status.get("pinned") or {}).get("environment") or {}
    return plan.environment is not None and bool(pinned) and pinned.get("digest") != plan.environment.digest


def _pinned_model(obj: Object) -> Mapping[str, Any]:
    return (obj.status.get("pinned") or {}).get("model") or {}


def _pin(obj: Object) -> Pin | None:
    pinned = _pinned_model(obj)
    if not pinned.get("revision"):
        return None
    return Pin(str(pinned["revision"]), str(pinned["repo"]), pinned.get("library"))


def _model_pin(conn: Connection, obj: Object, volume: Object | None) -> ModelPin | None:
    """The model as a mount, once its Volume has the revision; None until then, and where none is pinned."""
    pinned = _pinned_model(obj)
    if volume is None or volume.status.get("phase") != "Ready":
        return None
    revision = int(pinned.get("volumeRevision") or 1)
    committed = {found.revision: found.snapshot for found in volumes.list_(conn, volume.uid)}
    if revision not in committed:
        return None
    uri = (obj.spec.get("model") or {}).get("uri") or f"volume://{volume.name}@{revision}"
    return ModelPin(
        uri=uri,
        revision=str(pinned.get("revision") or revision),
        repo=str(pinned.get("repo") or ""),
        volume=volume.name,
        volume_revision=revision,
        digest=committed[revision],
        source=lookup(volume.status, "import.provenance"),
    )


def _holds(volume: Object, pin: Pin) -> bool:
    """Whether a Volume comes from what was pinned, by whatever Secret."""
    source = dict(volume.spec.get("source") or {})
    hub = {key: value for key, value in (source.get("huggingface") or {}).items() if key in ("repo", "revision")}
    wanted = pin.source()
    return source.get("library") == wanted.get("library") and hub == wanted.get("huggingface", {})


def _failed_before(volume: Object, moment: datetime) -> bool:
    failed = (volume.status.get("import") or {}).get("failedTime")
    return isinstance(failed, str) and parse_rfc3339(failed) < moment.replace(microsecond=0)


def _labels(obj: Object) -> dict[str, str]:
    return {key: value for key, value in obj.labels.items() if key.startswith("nodus.dev/")}
