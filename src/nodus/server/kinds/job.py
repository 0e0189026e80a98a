"""Admission of Job: what can't be done here is refused, never ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodus.core.kinds import JOB, SECRET, VOLUME
from nodus.core.kinds.job import JobSpec
from nodus.server import accelerators
from nodus.server.kinds.base import Admission, Draft
from nodus.server.store import objects
from nodus.server.training import lookups
from nodus.server.training.resources import Shape, quantity

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store.objects import Object

_UNBUILT = ("sidecars", "init_command", "inputs", "recovery", "complete_by_time")
TERMINAL = ("Succeeded", "Failed", "Cancelled")


class JobAdmission(Admission[JobSpec]):
    """Checks references and refuses what no part of this installation does."""

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: JobSpec) -> None:
        """Note every reference to nothing and everything that is not built."""
        from nodus.server.compute.local.images import MANAGED, is_managed  # late: pulls in the compute package

        if not is_managed(spec.image):
            known = ", ".join(sorted(MANAGED))
            draft.reject("spec.image", f"{spec.image!r} can't be run here; managed images are {known}")
        if not spec.command and not spec.args:
            draft.reject("spec.command", "required and missing; say what to run", "FieldValueRequired")
        self._check_unbuilt(draft, spec)
        self._check_env(conn, draft, spec)
        self._check_mounts(conn, draft, spec)
        if spec.source is not None and spec.source.blob:
            draft.check_blob(conn, services, "spec.source.blob", spec.source.blob)
        if spec.resources is not None and spec.resources.gpu is not None:
            accelerators.check_gpu(draft, spec.resources.gpu, "spec.resources.gpu")
        if draft.old is None:
            draft.status = {"phase": "Queued"}
        else:
            _check_state(draft, draft.old, spec)

    @staticmethod
    def _check_unbuilt(draft: Draft, spec: JobSpec) -> None:
        for name in _UNBUILT:
            if getattr(spec, name):
                alias = type(spec).model_fields[name].alias or name
                draft.reject(f"spec.{alias}", "is not built yet; leave it out", "FieldValueNotSupported")
        if spec.source is not None and spec.source.git is not None:
            draft.reject("spec.source.git", "is not built yet; upload the files as a blob", "FieldValueNotSupported")
        if (spec.completions or 1) > 1:
            draft.reject("spec.completions", "more than 1 is not built yet", "FieldValueNotSupported")
        gang = spec.distributed
        if gang is not None and max(gang.nodes or 1, gang.total_gpus or 1) > 1:
            draft.reject("spec.distributed", "gangs are not built yet; leave it out", "FieldValueNotSupported")
        policy = (spec.network or {}).get("egress", {})
        if spec.network and (not isinstance(policy, dict) or policy.get("policy") not in (None, "Deny", "None")):
            draft.reject("spec.network", "runs have no network yet; leave it out", "FieldValueNotSupported")

    @staticmethod
    def _check_env(conn: Connection, draft: Draft, spec: JobSpec) -> None:
        wanted: dict[str, str] = {}
        for number, variable in enumerate(spec.env):
            path = f"spec.env[{number}]"
            if (variable.value is None) == (variable.value_from is None):
                draft.reject(path, "needs exactly one of value and valueFrom")
            if variable.value_from is not None:
                wanted[f"{path}.valueFrom.secretKeyRef.name"] = variable.value_from.secret_key_ref.name
        wanted |= {f"spec.secrets[{number}].name": ref.name for number, ref in enumerate(spec.secrets)}
        for path, name in wanted.items():
            if objects.find(conn, SECRET, draft.project, name) is None:
                draft.reject(path, f"there is no secret {name!r} in project {draft.project}")

    @staticmethod
    def _check_mounts(conn: Connection, draft: Draft, spec: JobSpec) -> None:
        seen: set[str] = set()
        for number, mount in enumerate(spec.volumes):
            path = f"spec.volumes[{number}]"
            if objects.find(conn, VOLUME, draft.project, mount.volume) is None:
                draft.reject(f"{path}.volume", f"there is no volume {mount.volume!r} in project {draft.project}")
            if mount.mount_path in seen:
                draft.reject(f"{path}.mountPath", f"{mount.mount_path} is used twice")
            seen.add(mount.mount_path)

    def preview(self, conn: Connection, services: Services, draft: Draft, spec: JobSpec) -> dict[str, Any]:
        """Where a run would go, what keeps it from starting, and that it costs nothing on one's own machine."""
        shapes = lookups.shapes(conn)
        gpus = spec.resources.gpu.count if spec.resources is not None and spec.resources.gpu is not None else 0
        fitting = [shape for shape in shapes if not _obstacles(spec, shape)]
        estimate: dict[str, Any] = {
            "costUSD": {"p50": "0.00", "p90": "0.00"},
            "holdUSD": "0.00",
            "startup": {"cold": {"p50": "1s", "p90": "3s"}},
            "topology": {"nodes": 1, "gpusPerNode": gpus},
            "warnings": _warnings(spec),
            "blockingReasons": [] if fitting else _blocking(spec, shapes),
        }
        if fitting:
            estimate["placementPreview"] = {"offering": fitting[0].name, "regionClass": "local", "interruptible": False}
        return {"phase": "Queued", "estimate": estimate}


def _obstacles(spec: JobSpec, shape: Shape) -> list[str]:
    """What of a request a machine does not have, as parts of a sentence."""
    wanted = spec.resources
    if wanted is None:
        return []
    found = []
    if quantity(wanted.cpu or 1) > shape.cpu:
        found.append(f"{wanted.cpu} CPUs (it has {shape.cpu:g})")
    if quantity(wanted.memory or "1Gi") > shape.memory_bytes:
        found.append(f"{wanted.memory} of memory (it has {shape.memory_bytes >> 30}Gi)")
    gpu = wanted.gpu
    if gpu is not None and gpu.count and (shape.accelerators < gpu.count or not _accepts(gpu.type, shape)):
        found.append(f"{gpu.count} x {' or '.join(gpu.type) or 'any GPU'}")
    return found


def _accepts(types: list[str], shape: Shape) -> bool:
    return not types or shape.accelerator in {accelerators.family_of(spelling) for spelling in types}


def _blocking(spec: JobSpec, shapes: list[Shape]) -> list[dict[str, str]]:
    nearest = min((_obstacles(spec, shape) for shape in shapes), key=len, default=["a machine"])
    message = f"no machine here has {', '.join(nearest)}; the Job would stay Queued"
    return [{"code": "ResourcesUnavailable", "message": message, "fix": "Ask for less under spec.resources."}]


def _warnings(spec: JobSpec) -> list[dict[str, str]]:
    given = sorted(spec.placement.model_dump(by_alias=True, exclude_none=True)) if spec.placement is not None else []
    if not given:
        return []
    names = ", ".join(f"spec.placement.{name}" for name in given)
    return [{"code": "PlacementIgnored", "message": f"{names} changes nothing: all runs are on this machine"}]


def _check_state(draft: Draft, old: Object, spec: JobSpec) -> None:
    """A finished Job stays finished: it can be read and deleted, not paused or resumed."""
    before = old.spec.get("state", "Running")
    if spec.state == before or spec.state == "Cancelled":
        return
    if old.status.get("phase") in TERMINAL:
        draft.reject("spec.state", f"the Job has {old.status['phase']}; create another to run it again")
    elif before == "Cancelled":
        draft.reject("spec.state", "a cancelled Job can't go on; create another to run it again")


ADMISSIONS = (JobAdmission(JOB),)
