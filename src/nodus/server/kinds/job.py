"""Admission of Job: every reference found and fixed, every mistake in one answer, and nothing ignored in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodus.core.kinds import JOB
from nodus.core.kinds.job import JobSpec
from nodus.server import accelerators
from nodus.server.kinds import jobrules
from nodus.server.kinds.base import Admission, Draft
from nodus.server.kinds.jobestimate import estimate, gpu_count
from nodus.server.kinds.terms import terms
from nodus.server.training import lookups

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store.objects import Object


class JobAdmission(Admission[JobSpec]):
    """Checks a new Job whole; of a stored one only what may still change."""

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: JobSpec) -> None:
        """Note every mistake; pin Volumes; set the first status.

        Raises:
            Unsupported: Everything is right and something is not built here; each field is a cause.
            SecretValueInEnv: A plain variable holds what looks like a credential.
        """
        found = jobrules.Findings(draft)
        now = services.clock.now()
        jobrules.check_counts(found, spec)
        jobrules.check_times(found, spec, now.timestamp())
        if draft.old is not None:
            _check_state(draft, draft.old, spec)
        else:
            shapes = lookups.shapes(conn)
            pinned = _check_new(conn, services, found, spec)
            jobrules.check_offerings(found, spec, [shape.name for shape in shapes])
            jobrules.raise_found(found)
            if not draft.causes:
                draft.status = {"phase": "Queued", "estimate": estimate(spec, shapes, terms(conn, services, draft))}
                draft.status |= {"pinned": pinned} if pinned else {}
                draft.status |= {"topology": _topology(spec)} if spec.distributed is not None else {}
            return
        jobrules.raise_found(found)

    def preview(self, conn: Connection, services: Services, draft: Draft, spec: JobSpec) -> dict[str, Any]:
        """Where a run would go, what keeps it from starting, and what it costs."""
        return {"phase": "Queued", "estimate": estimate(spec, lookups.shapes(conn), terms(conn, services, draft))}


def _check_new(conn: Connection, services: Services, found: jobrules.Findings, spec: JobSpec) -> dict[str, Any]:
    """Check what can't change later; return what is fixed now."""
    from nodus.server.compute.local.images import MANAGED, is_managed  # late: pulls in the compute package

    if not is_managed(spec.image):
        known = ", ".join(sorted(MANAGED))
        found.reject("spec.image", f"{spec.image[:200]!r} can't be run here; managed images are {known}")
    jobrules.check_command(found, spec)
    jobrules.check_working_dir(found, spec)
    jobrules.check_resources(found, spec.resources)
    jobrules.check_unbuilt(found, spec)
    jobrules.check_distributed(found, spec.distributed, gpu_count(spec))
    jobrules.check_env(conn, found, spec.env, spec.secrets, gang=spec.distributed is not None)
    jobrules.check_paths(found, spec)
    jobrules.check_inputs(conn, services, found, spec)
    if spec.resources is not None:
        if spec.resources.gpu is not None:
            accelerators.check_gpu(found.draft, spec.resources.gpu, "spec.resources.gpu")
        if (spec.resources.nodes or 1) > 1:
            found.refuse("spec.resources.nodes", "this installation has one machine; leave it out")
    revisions = jobrules.pin_volumes(conn, found, spec)
    return {"volumes": revisions} if revisions else {}


def _topology(spec: JobSpec) -> dict[str, Any]:
    """The shape of the gang of one node that a distributed Job is here."""
    gang, gpus = spec.distributed, gpu_count(spec)
    assert gang is not None
    resolved_from = "totalGPUs" if gang.total_gpus is not None else "nodes"
    network = gang.network or "Colocated"
    return {"nodes": 1, "gpusPerNode": gpus, "totalGPUs": gpus, "network": network, "resolvedFrom": resolved_from}


def _check_state(draft: Draft, old: Object, spec: JobSpec) -> None:
    """A finished Job stays finished: it can be read and deleted, not paused or resumed."""
    before = old.spec.get("state", "Running")
    if spec.state == before or spec.state == "Cancelled":
        return
    if JOB.is_terminal(old.status.get("phase")):
        draft.reject("spec.state", f"the Job has {old.status['phase']}; create another to run it again")
    elif before == "Cancelled":
        draft.reject("spec.state", "a cancelled Job can't go on; create another to run it again")


ADMISSIONS = (JobAdmission(JOB),)
