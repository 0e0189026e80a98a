"""Admission of TrainingJobs: every reference resolved and pinned, every mistake in one answer, before anything is paid.

Runs in the API server. What is pinned (model commit, environment digest) is kept in `status.pinned`; the spec stays as
the user wrote it, so that applying the same file again changes nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodus.core.errors import NodusError, Unavailable
from nodus.core.kinds import JOB, TRAINING_JOB
from nodus.core.kinds.decode import encode
from nodus.core.kinds.training import TrainingJobSpec
from nodus.server.kinds.base import Admission, Draft
from nodus.server.kinds.terms import terms
from nodus.server.store import measurements, objects
from nodus.server.training import chattemplates, lookups, parameters
from nodus.server.training.estimate import estimate
from nodus.server.training.plan import Inputs, Plan, make_plan
from nodus.server.training.references import LIBRARY, BadReference, HubModel, parse_model

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store.objects import Object
    from nodus.server.training.models import Pin

NAME_LIMIT = 63


@dataclass(frozen=True, slots=True)
class _Find:
    """Finds what runs took here, in a transaction."""

    conn: Connection

    def runs(self, key: measurements.Key) -> measurements.Recent:
        return measurements.recent(self.conn, key)

    def grading(self, environment: str) -> tuple[int, ...]:
        return measurements.recent_grading(self.conn, environment)


class TrainingJobAdmission(Admission[TrainingJobSpec]):
    """Checks TrainingJobs; see the module."""

    def __init__(self) -> None:
        super().__init__(TRAINING_JOB)

    async def resolve(self, services: Services, draft: Draft, spec: TrainingJobSpec) -> None:
        """Pin the model at the hub or library; look at the environment's tasks where the store does not say enough."""
        if not draft.creating:
            return
        wire = dict(encode(spec))
        await asyncio.gather(self._pin_model(services, draft, wire), self._look_at_tasks(services, draft, wire))
        await self._look_at_template(services, draft, wire)

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: TrainingJobSpec) -> None:
        """Check against the store and set the first status; an update only has its state looked at."""
        if draft.old is not None:
            _check_state(draft, draft.old, spec)
            return
        plan = self._plan(conn, draft, spec)
        draft.causes.extend(plan.causes)
        draft.status = {"phase": "Queued", "pinned": pinned(plan, draft.resolved.get("pin"))}
        if draft.resolved.get("splits") is not None:
            draft.status["pinned"]["splits"] = draft.resolved["splits"]
        _check_name(conn, draft)
        if plan.compiled is not None:
            draft.status["provenance"] = provenance(plan)
            if not plan.causes:
                draft.status["estimate"] = self._estimate(conn, services, draft, spec, plan)

    def preview(self, conn: Connection, services: Services, draft: Draft, spec: TrainingJobSpec) -> dict[str, Any]:
        """The Job it would create and what it would take; the same for every name that is generated from one prefix."""
        if draft.old is not None:
            return {}
        plan = self._plan(conn, draft, spec)
        if plan.compiled is None:
            return {}
        return {"compiledJob": plan.compiled.job, "estimate": self._estimate(conn, services, draft, spec, plan)}

    def _estimate(
        self, conn: Connection, services: Services, draft: Draft, spec: TrainingJobSpec, plan: Plan
    ) -> dict[str, Any]:
        return estimate(plan, encode(spec), terms(conn, services, draft), draft.project or "", _Find(conn))

    def _plan(self, conn: Connection, draft: Draft, spec: TrainingJobSpec) -> Plan:
        return make_plan(
            conn,
            Inputs(
                name=draft.generate_name or draft.name or "",
                project=draft.project or "",
                spec=dict(encode(spec)),
                pin=draft.resolved.get("pin"),
                splits=draft.resolved.get("splits"),
                environment_digest=draft.resolved.get("environment_digest"),
            ),
        )

    async def _pin_model(self, services: Services, draft: Draft, spec: dict[str, Any]) -> None:
        uri = parameters.lookup(spec, "model.uri")
        if not isinstance(uri, str):
            return
        try:
            ref = parse_model(uri)
        except BadReference:
            return  # The plan reports it, with everything else that is wrong.
        secret = parameters.lookup(spec, "model.secret")
        token = None
        if isinstance(secret, str) and isinstance(ref, HubModel) and ref.revision is None:
            token = await services.store.read(lookups.hub_token, services, draft.project or "", secret)
        try:
            draft.resolved["pin"] = await services.models.pin(ref, token)
        except NodusError as error:
            fix = f"; {error.fix[0].lower()}{error.fix[1:].rstrip('.')}" if error.fix else ""
            draft.reject("spec.model.uri", f"{error.message}{fix}")

    async def _look_at_tasks(self, services: Services, draft: Draft, spec: dict[str, Any]) -> None:
        """Count what a `taskFilter` leaves, and find the digest of a version that is not the newest."""
        name = parameters.lookup(spec, "environment.name")
        wanted = parameters.lookup(spec, "parameters.taskFilter")
        if not isinstance(name, str) or services.training is None:
            return
        try:
            found = await services.store.read(lookups.environment, draft.project or "", name)
        except BadReference:
            return  # The plan reports it.
        seed = parameters.lookup(spec, "environment.seed")
        try:
            if not found.current:
                draft.resolved["environment_digest"] = await services.training.digest_of(found)
            if isinstance(wanted, dict) and wanted:
                draft.resolved["splits"] = await services.training.count_tasks(found, seed, wanted)
        except Unavailable:
            raise
        except NodusError as error:
            draft.reject(error.causes[0].field if error.causes else "spec.environment.name", error.message)

    async def _look_at_template(self, services: Services, draft: Draft, spec: dict[str, Any]) -> None:
        """Refuse a model whose chat template has no place for the tools of the environment, where that is known."""
        name, volume = parameters.lookup(spec, "environment.name"), parameters.lookup(spec, "model.volume.name")
        pin: Pin | None = draft.resolved.get("pin")
        if not isinstance(name, str) or (pin is None and not isinstance(volume, str)):
            return
        try:
            found = await services.store.read(lookups.environment, draft.project or "", name)
        except BadReference:
            return  # The plan reports it.
        if not found.current or found.object.status.get("tools") is not True:
            return
        entry = next((entry for entry in LIBRARY if pin is not None and entry.name == pin.library), None)
        takes = entry.tools if entry is not None else await self._takes_tools(services, draft, spec, pin)
        if takes is False:
            path = "spec.model.uri" if pin is not None else "spec.model.volume.name"
            draft.reject(
                path,
                f"the tasks of {found.ref} offer tools, and the chat template of {_model_of(spec)} has no place for "
                "them; pick a model whose chat template supports tools, such as hf://Qwen/Qwen3-0.6B",
            )

    async def _takes_tools(
        self, services: Services, draft: Draft, spec: dict[str, Any], pin: Pin | None
    ) -> bool | None:
        """Look into the Volume that holds the model; None where there is none yet."""
        revision = parameters.lookup(spec, "model.volume.revision") if pin is None else None
        volume = parameters.lookup(spec, "model.volume.name") if pin is None else pin.volume
        files = await services.store.read(chattemplates.files_of, draft.project or "", str(volume), revision)
        places = {path: services.store.blobs.path(digest) for path, digest in files.items()}
        return await asyncio.to_thread(chattemplates.takes_tools, places)


def _model_of(spec: dict[str, Any]) -> str:
    return str(parameters.lookup(spec, "model.uri") or f"Volume {parameters.lookup(spec, 'model.volume.name')!r}")


def pinned(plan: Plan, pin: Pin | None) -> dict[str, Any]:
    """`status.pinned`: what a later look must not change about the run."""
    result: dict[str, Any] = {}
    if plan.environment is not None:
        result["environment"] = {
            "name": plan.environment.name,
            "version": plan.environment.version,
            "digest": plan.environment.digest,
        }
    if plan.compiled is not None and "environment" in plan.compiled.params:
        counts = plan.compiled.params["environment"]
        result |= {"trainTasks": counts["trainTasks"], "heldOutTasks": counts["heldOutTasks"], "seed": counts["seed"]}
    if pin is not None:
        result["model"] = {"repo": pin.repo, "revision": pin.revision, "volume": pin.volume}
        if pin.library is not None:
            result["model"]["library"] = pin.library
    elif plan.model is not None and plan.model.volume_revision is not None:
        result["model"] = {"volume": plan.model.volume, "volumeRevision": plan.model.volume_revision}
    return result


def provenance(plan: Plan) -> dict[str, Any]:
    """`status.provenance`, as far as it is known before the model is imported."""
    if plan.runtime is None or plan.compiled is None:
        return {}
    result: dict[str, Any] = {
        "managed": plan.runtime.name.startswith("nodus/"),
        "runtimeDigest": plan.runtime.digest,
        "parametersSHA256": plan.compiled.parameters_sha256,
        "configurationDigest": plan.compiled.configuration_digest,
    }
    if plan.environment is not None:
        result["environmentDigest"] = plan.environment.digest
    if plan.model is not None:
        result["modelRevision"] = plan.model.revision
        if plan.model.digest:
            result["modelDigest"] = plan.model.digest
        if plan.model.source:
            result["modelSource"] = dict(plan.model.source)
    return result


def _check_name(conn: Connection, draft: Draft) -> None:
    """The Job takes the name over, and the name is a label's value."""
    if draft.name is None:
        return
    if len(draft.name) > NAME_LIMIT:
        draft.reject(
            "metadata.name", f"has {len(draft.name)} characters; a TrainingJob's name has at most {NAME_LIMIT}"
        )
    job = objects.find(conn, JOB, draft.project, draft.name)
    if job is not None and "TrainingJob" not in {ref["kind"] for ref in job.owner_references if ref.get("controller")}:
        draft.reject("metadata.name", f"a Job named {draft.name!r} exists, and the TrainingJob's Job takes its name")


def _check_state(draft: Draft, old: Object, spec: TrainingJobSpec) -> None:
    """A finished run stays finished: it can be read and deleted, not paused or resumed."""
    phase = old.status.get("phase")
    if TRAINING_JOB.is_terminal(phase) and spec.state != old.spec.get("state", "Running") and spec.state != "Cancelled":
        draft.reject("spec.state", f"the TrainingJob has {phase}; create another to run it again")
    if old.spec.get("state") == "Cancelled" and spec.state != "Cancelled":
        draft.reject("spec.state", "a cancelled TrainingJob can't go on; create another to run it again")


ADMISSIONS = (TrainingJobAdmission(),)
