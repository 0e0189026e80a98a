"""Admission of Sandbox and Process."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from nodus.core.durations import parse_duration
from nodus.core.errors import Conflict
from nodus.core.kinds import PROCESS, SANDBOX
from nodus.core.kinds.job import JobSpec
from nodus.core.kinds.sandbox import ProcessSpec, SandboxSpec
from nodus.server import accelerators
from nodus.server.kinds import jobrules
from nodus.server.kinds.base import Admission, Draft
from nodus.server.kinds.jobestimate import estimate
from nodus.server.kinds.terms import terms
from nodus.server.training import lookups

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store.objects import Object

LONGEST_S = 366 * 86400.0
LONGEST_NAME = 50
"""So that the names of its processes, ``sb-NAME-NUMBER``, are names too."""
MOST_COMMAND_BYTES = 128 * 1024


class SandboxAdmission(Admission[SandboxSpec]):
    """Checks references and refuses what no part of this installation does."""

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: SandboxSpec) -> None:
        """Note every mistake; set the first status.

        Raises:
            Unsupported: Everything is right and something is not built here; each field is a cause.
            SecretValueInEnv: A plain variable holds what looks like a credential.
        """
        found = jobrules.Findings(draft)
        _check_lifecycle(found, spec)
        if draft.old is None:
            if len(draft.name or draft.generate_name or "") > LONGEST_NAME:
                draft.reject("metadata.name", f"is over {LONGEST_NAME} characters, and processes are named after it")
            _check_new(conn, found, spec)
            jobrules.raise_found(found)
            draft.status = {"phase": "Pending" if spec.state == "Running" else "Stopped"}
            if spec.state == "Stopped":
                draft.status["stopReason"] = "Stopped"
            return
        jobrules.raise_found(found)

    def preview(self, conn: Connection, services: Services, draft: Draft, spec: SandboxSpec) -> dict[str, Any]:
        """Where it would run, what keeps it from starting, and what an hour of it costs."""
        asked = JobSpec(command=["true"], resources=spec.resources)
        expected = estimate(asked, lookups.shapes(conn), terms(conn, services, draft), open_ended=True)
        for reason in expected["blockingReasons"]:
            reason["message"] = reason["message"].replace("the Job would stay Queued", "the Sandbox would stay Pending")
        return {"phase": "Pending", "estimate": expected}


def _check_new(conn: Connection, found: jobrules.Findings, spec: SandboxSpec) -> None:
    """Check what can't change later."""
    from nodus.server.compute.local.images import MANAGED, is_managed  # late: pulls in the compute package

    if not is_managed(spec.image):
        known = ", ".join(sorted(MANAGED))
        found.reject("spec.image", f"{spec.image[:200]!r} can't be run here; managed images are {known}")
    if spec.args and not spec.command:
        found.reject("spec.command", "required and missing; spec.args are added to it", "FieldValueRequired")
    _check_directory(found, spec.working_dir)
    jobrules.check_env(conn, found, spec.env, spec.secrets)
    if spec.resources is not None:
        jobrules.check_resources(found, spec.resources)
        if spec.resources.gpu is not None:
            accelerators.check_gpu(found.draft, spec.resources.gpu, "spec.resources.gpu")
        if (spec.resources.nodes or 1) > 1:
            found.refuse("spec.resources.nodes", "a Sandbox is on one machine; leave it out")
    egress = spec.network.egress if spec.network is not None else None
    if egress is not None and egress.policy not in (None, "Deny"):
        found.refuse("spec.network.egress.policy", f"{egress.policy}: sandboxes here have no network; leave it out")
    for name in ("allow", "presets"):
        if egress is not None and getattr(egress, name):
            found.refuse(f"spec.network.egress.{name}", "sandboxes here have no network; leave it out")
    if spec.continuity is not None and spec.continuity.mode not in (None, "Workspace"):
        found.refuse(
            "spec.continuity.mode", f"{spec.continuity.mode[:40]!r}: a stop keeps the files in /workspace; leave it out"
        )


def _check_lifecycle(found: jobrules.Findings, spec: SandboxSpec) -> None:
    lifecycle = spec.lifecycle
    if lifecycle is None:
        return
    for name, text in (("idleTimeout", lifecycle.idle_timeout), ("maxLifetime", lifecycle.max_lifetime)):
        if text is not None and not 1 <= parse_duration(text) <= LONGEST_S:
            found.reject(f"spec.lifecycle.{name}", f"{text} is not from 1s to a year")
    if lifecycle.on_idle == "Delete" and lifecycle.idle_timeout is None:
        found.reject("spec.lifecycle.idleTimeout", "required with onIdle: Delete", "FieldValueRequired")


def _check_directory(found: jobrules.Findings, path: str | None) -> None:
    if path is not None and (".." in PurePosixPath(path).parts or len(path) > 1000):
        found.reject("spec.workingDir", f"{path[:200]!r} must be short and have no '..' in it")


class ProcessAdmission(Admission[ProcessSpec]):
    """Processes are started through their Sandbox; afterwards they can be cancelled, and deleted when they ended."""

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: ProcessSpec) -> None:
        """Note every mistake of a new Process, and what can't be asked of one that is there."""
        if draft.old is None:
            _check_process(conn, draft, spec)
        elif spec.state == "Running" and draft.old.spec.get("state") == "Cancelled":
            draft.reject("spec.state", "a cancelled process can't go on; start another")
        elif spec.state == "Cancelled" and draft.old.spec.get("state") != "Cancelled":
            phase = draft.old.status.get("phase")
            if PROCESS.is_terminal(phase):
                draft.reject("spec.state", f"the process has {phase}; there is nothing to cancel")

    def deleting(self, conn: Connection, services: Services, obj: Object) -> None:
        """Keep a process that runs: its deletion would not end it.

        Raises:
            Conflict: It runs.
        """
        if not PROCESS.is_terminal(obj.status.get("phase")):
            raise Conflict(f"process {obj.name} still runs", fix=f"Cancel it first: nodus cancel process/{obj.name}.")


def _check_process(conn: Connection, draft: Draft, spec: ProcessSpec) -> None:
    found = jobrules.Findings(draft)
    if not spec.command or not spec.command[0]:
        draft.reject("spec.command", "required and missing; say what to run", "FieldValueRequired")
    size = sum(len(word.encode()) for word in spec.command)
    if size > MOST_COMMAND_BYTES:
        draft.reject("spec.command", f"is {size} bytes long; at most {MOST_COMMAND_BYTES}: put long input into a file")
    _check_directory(found, spec.working_dir)
    jobrules.check_env(conn, found, spec.env, ())
    for number, variable in enumerate(spec.env):
        if variable.value_from is not None:
            draft.reject(f"spec.env[{number}].valueFrom", "takes no Secret; name it in the Sandbox's spec.secrets")
    if spec.timeout is not None and not 0 < parse_duration(spec.timeout) <= LONGEST_S:
        draft.reject("spec.timeout", f"{spec.timeout} is not a time of at most a year")
    for name in ("sandbox", "attempt", "number"):
        if getattr(spec, name) is not None:
            draft.reject(f"spec.{name}", "is set by the server; leave it out", "FieldValueForbidden")
    if spec.state != "Running":
        draft.reject("spec.state", "a process begins Running; leave it out")
    jobrules.raise_found(found)


ADMISSIONS = (SandboxAdmission(SANDBOX), ProcessAdmission(PROCESS))
