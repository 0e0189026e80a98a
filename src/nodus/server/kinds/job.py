"""Admission of Job: what can't be done here is refused, never ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodus.core.kinds import JOB, SECRET, VOLUME
from nodus.core.kinds.job import JobSpec
from nodus.server.accelerators import check_gpu
from nodus.server.kinds.base import Admission, Draft
from nodus.server.store import objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services

_UNBUILT = ("sidecars", "init_command", "inputs", "recovery", "complete_by_time")
DEFAULT_IMAGE = "nodus/base"


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
        if spec.source is not None and spec.source.blob and not services.store.blobs.exists(spec.source.blob):
            draft.reject("spec.source.blob", f"there is no blob {spec.source.blob}; upload it first")
        if spec.resources is not None and spec.resources.gpu is not None:
            check_gpu(draft, spec.resources.gpu, "spec.resources.gpu")
        if draft.creating:
            draft.status = {"phase": "Queued"}

    @staticmethod
    def _check_unbuilt(draft: Draft, spec: JobSpec) -> None:
        wire = spec.model_dump(by_alias=True, exclude_none=True)
        for name in _UNBUILT:
            if getattr(spec, name):
                alias = type(spec).model_fields[name].alias or name
                draft.reject(f"spec.{alias}", "is not built yet; leave it out", "FieldValueNotSupported")
        if spec.source is not None and spec.source.git is not None:
            draft.reject("spec.source.git", "is not built yet; upload the files as a blob", "FieldValueNotSupported")
        if (spec.completions or 1) > 1:
            draft.reject("spec.completions", "more than 1 is not built yet", "FieldValueNotSupported")
        if wire.get("distributed"):
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
        """What a run on this machine costs: nothing."""
        estimate: dict[str, Any] = {
            "costUSD": {"p50": "0.00", "p90": "0.00"},
            "holdUSD": "0.00",
            "startup": {"cold": {"p50": "1s", "p90": "3s"}},
            "warnings": [],
            "blockingReasons": [],
        }
        return {"phase": "Queued", "estimate": estimate}


ADMISSIONS = (JobAdmission(JOB),)
