"""What a Job may say, rule by rule: each notes its mistakes in the draft, or what this installation does not do.

Two lists, because they are two answers: a mistake is ``Invalid``, whatever server it is sent to; a field that is right
and not built here is ``Unsupported``. Nothing is accepted and then ignored without a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from nodus.core.clock import parse_rfc3339
from nodus.core.durations import parse_duration
from nodus.core.errors import Cause, SecretValueInEnv, Unsupported
from nodus.core.kinds import SECRET, VOLUME
from nodus.core.kinds.job import JobSpec
from nodus.core.sizes import quantity
from nodus.server.kinds import sources
from nodus.server.store import objects, secret_values, volumes

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.core.kinds.resources import Distributed, EnvVar, Resources, SecretRef, VolumeMount
    from nodus.server.kinds.base import Draft
    from nodus.server.services import Services
    from nodus.server.store.objects import Object

MOST_COMPLETIONS = 1000
"""On one machine; each is a row that every look at the Job reads."""
LONGEST_S = 366 * 24 * 3600.0
LEAST_MEMORY_BYTES = 16 << 20
LONGEST_WORD_BYTES = 128 * 1024 - 1
"""Of an argument, or of a variable with its name: what Linux passes to a program."""
LAUNCHERS = ("Plain", "Torchrun", "Ray", "Verl", "Accelerate", "Deepspeed")
NETWORKS, TRANSPORTS = ("Colocated", "Regional", "Global"), ("Direct", "Auto")
PROFILES = ("Balanced", "Cost", "Speed")
WORKSPACE, OUTPUTS, STATE = "/workspace", "/nodus/outputs", "/nodus/state"
_CLOSED = ("/proc", "/dev", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/run")
_OWN = (OUTPUTS, STATE, "/nodus/termination")
_OUTPUT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
# What well-known services' keys look like; a key in plain env is shown to whoever may read the Job.
_CREDENTIAL = re.compile(
    r"nodus_[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{30,}|gh[opsu]_[A-Za-z0-9]{36,}"
    r"|github_pat_[A-Za-z0-9_]{40,}|glpat-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{20,}|AKIA[0-9A-Z]{16}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)
GANG_VARIABLES = re.compile(r"(PET|MASTER)_.*|NODE_RANK|NNODES")
"""Variables of a distributed Job that Nodus sets."""


class Findings:
    """What is wrong with a draft, and what of it is not built.

    Args:
        draft: Where mistakes go.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.unsupported: list[Cause] = []
        self.leaks: list[Cause] = []
        """Plain env values that look like credentials."""

    def reject(self, path: str, message: str, reason: str = "FieldValueInvalid") -> None:
        """Note a mistake."""
        self.draft.reject(path, message, reason)

    def refuse(self, path: str, message: str) -> None:
        """Note something that is not built here."""
        self.unsupported.append(Cause(path, "FieldValueNotSupported", message))


def raise_found(found: Findings) -> None:
    """Raise for what is not built, or leaks, where nothing else is wrong; else let it be told with the mistakes.

    Raises:
        Unsupported: Something is not built here; each field is a cause.
        SecretValueInEnv: A plain variable holds what looks like a credential.
    """
    draft = found.draft
    if draft.causes:
        draft.causes.extend([*found.unsupported, *found.leaks])
        return
    details = {"name": draft.name or "", "group": "nodus.dev", "kind": draft.kind.plural}
    if found.unsupported:
        told = "; ".join(f"{cause.field}: {cause.message}" for cause in found.unsupported[:3])
        raise Unsupported(
            f"this installation can't run the {draft.kind.name}: {told}",
            fix="Change the fields listed and send it again.",
            details=details,
            causes=[*found.unsupported, *found.leaks],
        )
    if found.leaks:
        raise SecretValueInEnv(
            "; ".join(f"{cause.field}: {cause.message}" for cause in found.leaks[:3]),
            fix="Store it: `nodus create secret NAME --from-literal KEY=VALUE`, and name the secret in spec.secrets.",
            details=details,
            causes=found.leaks,
        )


def check_unbuilt(found: Findings, spec: JobSpec) -> None:
    """Refuse what later versions will do."""
    if spec.image_ref is not None:
        found.refuse("spec.imageRef", "built images are not here yet; name a managed image as spec.image")
    if spec.sidecars:
        found.refuse("spec.sidecars", "helper processes are not built yet; start them in the command")
    egress = spec.network.egress if spec.network is not None else None
    if egress is not None and egress.policy not in (None, "Deny"):
        found.refuse("spec.network.egress.policy", f"{egress.policy}: runs here have no network; leave it out, or Deny")
    for name in ("allow", "presets"):
        if egress is not None and getattr(egress, name):
            found.refuse(f"spec.network.egress.{name}", "runs here have no network; leave it out")
    for number, output in enumerate(spec.outputs):
        if output.sink is not None:
            found.refuse(f"spec.outputs[{number}].sink", "outputs go to the server's own store; leave it out")
        if output.from_ranks not in (None, "0", "All"):
            found.refuse(f"spec.outputs[{number}].fromRanks", f"{output.from_ranks!r}: a run here has rank 0 only")
    if spec.placement is not None and spec.placement.pool is not None:
        found.refuse("spec.placement.pool", "there are no pools here; leave it out")


def check_offerings(found: Findings, spec: JobSpec, known: list[str]) -> None:
    """Check that one of the offerings that the Job may use is here."""
    wanted = spec.placement.offerings if spec.placement is not None else None
    if wanted and not set(wanted) & set(known):
        there = ", ".join(known) or "none"
        found.reject("spec.placement.offerings", f"{', '.join(wanted)[:200]} is not here; offerings are {there}")


def check_resources(found: Findings, resources: Resources | None) -> None:
    """Check amounts of CPU and memory that no machine could give."""
    if resources is None:
        return
    if resources.cpu is not None:
        try:
            cores = quantity(resources.cpu)
        except ValueError:
            cores = 0.0
        if not 0 < cores < math.inf:
            shown = str(resources.cpu)[:40]
            found.reject("spec.resources.cpu", f"{shown!r} is no amount of CPU; write it like 2, 0.5 or 500m")
    if resources.memory is not None and quantity(resources.memory) < LEAST_MEMORY_BYTES:
        message = f"{resources.memory!r} is too little for any program; {LEAST_MEMORY_BYTES >> 20}Mi is the least"
        found.reject("spec.resources.memory", message)


def check_counts(found: Findings, spec: JobSpec) -> None:
    """Check completions and parallelism together."""
    if spec.completions is not None and spec.completions > MOST_COMPLETIONS:
        found.refuse("spec.completions", f"{spec.completions} are too many for one machine; {MOST_COMPLETIONS} are not")
    if spec.parallelism is not None and spec.completions is None and spec.parallelism > 1:
        found.reject("spec.parallelism", "says how many indexes run at once; set spec.completions too")
    if spec.completions is not None and spec.distributed is not None:
        found.refuse("spec.completions", "together with spec.distributed is not built; use one of them")


def check_distributed(found: Findings, gang: Distributed | None, gpus: int) -> None:
    """Take a gang of one node, and refuse a larger one.

    Args:
        found: Where to note.
        gang: ``spec.distributed``.
        gpus: GPUs of one node that ``spec.resources`` asks for.
    """
    if gang is None:
        return
    path = "spec.distributed"
    if (gang.nodes is None) == (gang.total_gpus is None):
        found.reject(path, "needs exactly one of nodes and totalGPUs")
    for name, value, known in (
        ("launcher", gang.launcher, LAUNCHERS),
        ("network", gang.network, NETWORKS),
        ("transport", gang.transport, TRANSPORTS),
    ):
        if value is not None and value not in known:
            found.reject(f"{path}.{name}", f"{value!r} is not one of {', '.join(known)}")
    if gang.launcher in LAUNCHERS[2:]:
        found.refuse(f"{path}.launcher", f"{gang.launcher} is not built yet; use Plain or Torchrun")
    if (gang.nodes or 1) > 1:
        found.refuse(f"{path}.nodes", f"{gang.nodes} nodes: this installation has one; use 1")
    elif (gang.total_gpus or 0) > 8 or (gang.gpus_per_node and (gang.total_gpus or 0) > gang.gpus_per_node):
        found.refuse(f"{path}.totalGPUs", f"{gang.total_gpus} GPUs need several nodes; this installation has one")
    if gang.total_gpus is not None and gpus and gang.total_gpus != gpus and gang.total_gpus <= 8:
        found.reject(f"{path}.totalGPUs", f"is {gang.total_gpus}, and spec.resources.gpu asks for {gpus}")
    if gang.gpus_per_node is not None and gang.total_gpus is None and gang.gpus_per_node != gpus:
        found.reject(f"{path}.gpusPerNode", f"is {gang.gpus_per_node}, and spec.resources.gpu asks for {gpus}")
    for name in ("startup_timeout", "max_assembly_retries"):
        if getattr(gang, name) is not None:
            alias = type(gang).model_fields[name].alias
            found.refuse(f"{path}.{alias}", "bounds the assembly of several nodes; this installation has one")


def check_env(
    conn: Connection, found: Findings, env: Sequence[EnvVar], secrets: Sequence[SecretRef], *, gang: bool = False
) -> None:
    """Check variables and every Secret that they or ``spec.secrets`` refer to, down to key and version.

    Args:
        conn: A read transaction.
        found: Where mistakes go.
        env: ``spec.env``.
        secrets: ``spec.secrets``.
        gang: Whether Nodus also sets the variables of a distributed Job.
    """
    seen: set[str] = set()
    for number, variable in enumerate(env):
        path = f"spec.env[{number}]"
        if (variable.value is None) == (variable.value_from is None):
            found.reject(path, "needs exactly one of value and valueFrom")
        if variable.name in seen:
            found.reject(f"{path}.name", f"{variable.name} is set twice")
        seen.add(variable.name)
        if variable.name.startswith("NODUS_") or (gang and GANG_VARIABLES.fullmatch(variable.name)):
            found.reject(f"{path}.name", f"{variable.name} is one of those that Nodus sets; use another name")
        if len(f"{variable.name}={variable.value}".encode()) > LONGEST_WORD_BYTES:
            found.reject(f"{path}.value", f"is longer than the {LONGEST_WORD_BYTES} bytes of a variable: use a file")
        if variable.value is not None and _CREDENTIAL.fullmatch(variable.value.strip()):
            message = f"the value of {variable.name} looks like a credential, and everybody who reads it sees it"
            found.leaks.append(Cause(f"{path}.value", "FieldValueForbidden", message))
        if variable.value_from is not None:
            reference = variable.value_from.secret_key_ref
            secret = _secret(conn, found, f"{path}.valueFrom.secretKeyRef.name", reference.name)
            keys = secret.status.get("keys") if secret is not None else None
            if secret is not None and reference.version is not None:
                _check_version(conn, found, f"{path}.valueFrom.secretKeyRef.version", secret, reference.version)
            elif keys is not None and reference.key not in keys:
                there = ", ".join(keys) or "none"
                found.reject(
                    f"{path}.valueFrom.secretKeyRef.key", f"{reference.name} has no {reference.key!r}: {there}"
                )
    for number, given in enumerate(secrets):
        secret = _secret(conn, found, f"spec.secrets[{number}].name", given.name)
        if secret is not None and given.version is not None:
            _check_version(conn, found, f"spec.secrets[{number}].version", secret, given.version)


def _check_version(conn: Connection, found: Findings, path: str, secret: Object, version: int) -> None:
    known = [number for number, _ in secret_values.versions(conn, secret.uid)]
    if version not in known:
        found.reject(path, f"{secret.name} has no version {version}; it has {', '.join(map(str, known))}")


def _secret(conn: Connection, found: Findings, path: str, name: str) -> Object | None:
    secret = objects.find(conn, SECRET, found.draft.project, name)
    if secret is None:
        found.reject(path, f"there is no secret {name!r} in project {found.draft.project}")
    return secret


def check_command(found: Findings, spec: JobSpec) -> None:
    """Require something to run that can be passed to a program."""
    if not spec.command and not spec.args:
        found.reject("spec.command", "required and missing; say what to run", "FieldValueRequired")
    for name, words in (("command", spec.command), ("args", spec.args), ("initCommand", spec.init_command or [])):
        for number, word in enumerate(words):
            if len(word.encode()) > LONGEST_WORD_BYTES:
                message = f"has {len(word.encode())} bytes; an argument has at most {LONGEST_WORD_BYTES}: use a file"
                found.reject(f"spec.{name}[{number}]", message)
    for name, words in (("command", spec.command), ("initCommand", spec.init_command or [])):
        if words[:1] == [""]:
            found.reject(f"spec.{name}[0]", "is empty; name a program")
    if spec.init_command == []:
        found.reject("spec.initCommand", "is empty; leave it out or say what to run first")


def check_working_dir(found: Findings, spec: JobSpec) -> None:
    """Check that the working directory can be there."""
    if spec.working_dir is None:
        return
    where = PurePosixPath(spec.working_dir)
    there = [WORKSPACE, OUTPUTS, STATE, "/tmp", *(path for _, path in _mounted(spec))]
    if ".." in where.parts:
        found.reject("spec.workingDir", f"{spec.working_dir[:80]!r} must not have '..' in it")
    elif not any(where.is_relative_to(path) for path in there):
        known = ", ".join(dict.fromkeys(there))
        found.reject("spec.workingDir", f"{spec.working_dir[:80]!r} is not there in the run; use one of {known}")


def pin_volumes(conn: Connection, found: Findings, spec: JobSpec) -> dict[str, int]:
    """Check the Volumes, and return the revision of each that is read or started from: its newest now.

    A Volume that is still being imported has none yet; its revision is fixed when it is Ready.
    """
    pinned: dict[str, int] = {}
    for number, mount in enumerate(spec.volumes):
        path = f"spec.volumes[{number}]"
        volume = objects.find(conn, VOLUME, found.draft.project, mount.volume)
        if volume is None:
            found.reject(f"{path}.volume", f"there is no volume {mount.volume!r} in project {found.draft.project}")
            continue
        if volume.status.get("phase") == "Failed":
            why = volume.status.get("message") or "see nodus describe"
            found.reject(f"{path}.volume", f"volume {mount.volume!r} has failed: {why}")
        if mount.revision is not None:
            known = [revision.revision for revision in volumes.list_(conn, volume.uid)]
            if mount.revision not in known:
                there = f"1 to {known[-1]}" if known else "none"
                found.reject(f"{path}.revision", f"{mount.volume} has no revision {mount.revision}; it has {there}")
        elif not mount.read_only and volume.spec.get("accessMode") == "ReadOnlyMany":
            found.reject(
                f"{path}.readOnly", f"volume {mount.volume!r} is ReadOnlyMany; mount it read-only (NAME:/path:ro)"
            )
        if mount.revision is None and volume.status.get("phase") == "Ready":
            pinned[mount.volume] = int(volume.status.get("revision") or 0)
    return pinned


def check_paths(found: Findings, spec: JobSpec) -> None:
    """Check every path inside the run: where volumes and inputs appear, what is kept, what is collected."""
    taken: dict[str, str] = {}
    for path, value in _mounted(spec):
        if (why := _unfit(value)) is not None:
            found.reject(path, why)
            continue
        inside = next((other for other in taken if _overlap(other, value)), None)
        if inside is not None:
            found.reject(path, f"{value} overlaps {inside} ({taken[inside]}); mount them beside each other")
        taken[value.rstrip("/")] = path
    if spec.source is not None and any(mount.mount_path.rstrip("/") == WORKSPACE for mount in spec.volumes):
        found.reject(
            "spec.source", f"would be hidden by the volume at {WORKSPACE}; mount it elsewhere, or send no source"
        )
    _check_outputs(found, spec)


def _mounted(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for number, mount in enumerate(spec.volumes):
        yield f"spec.volumes[{number}].mountPath", mount.mount_path
    for number, item in enumerate(spec.inputs):
        yield f"spec.inputs[{number}].path", item.path
    for number, kept in enumerate(checkpoint_paths(spec)):
        if not PurePosixPath(kept).is_relative_to(STATE):
            yield f"spec.recovery.checkpoint.paths[{number}]", kept


def checkpoint_paths(spec: JobSpec) -> list[str]:
    """Directories that a Job asks to be kept from attempt to attempt."""
    return spec.recovery.checkpoint.paths if spec.recovery is not None and spec.recovery.checkpoint is not None else []


def _unfit(value: str) -> str | None:
    """Why nothing can be mounted at a path, or None."""
    path = PurePosixPath(value)
    if not path.is_absolute() or ".." in path.parts or len(value) > 500 or value == "/":
        return f"{value[:80]!r} is not a path below /, without '..'"
    if any(path.is_relative_to(closed) for closed in (*_CLOSED, *_OWN)):
        return f"{value} belongs to the system or to the run itself; mount it elsewhere, such as /data"
    if any(PurePosixPath(own).is_relative_to(path) for own in _OWN):
        return f"{value} would hide the run's own directories; mount it elsewhere, such as /data"
    return None


def _overlap(one: str, other: str) -> bool:
    a, b = PurePosixPath(one), PurePosixPath(other)
    return a.is_relative_to(b) or b.is_relative_to(a)


def _check_outputs(found: Findings, spec: JobSpec) -> None:
    roots = [WORKSPACE, OUTPUTS, STATE, *checkpoint_paths(spec), *(m.mount_path for m in spec.volumes if _writable(m))]
    names: set[str] = set()
    for number, output in enumerate(spec.outputs):
        path = f"spec.outputs[{number}]"
        if not _OUTPUT_NAME.fullmatch(output.name) or len(output.name) > 200:
            found.reject(
                f"{path}.name", f"{output.name[:80]!r} is not a name; use letters, digits, '.', '_', '-' and '/'"
            )
        if output.name in names:
            found.reject(f"{path}.name", f"{output.name!r} is used twice")
        names.add(output.name)
        where = PurePosixPath(output.path)
        if ".." in where.parts:
            found.reject(f"{path}.path", f"{output.path!r} must not have '..' in it")
        elif not any(where.is_relative_to(root) for root in roots):
            kept = ", ".join(dict.fromkeys(roots))
            found.reject(f"{path}.path", f"{output.path!r} is gone when the command ends; write below one of {kept}")


def _writable(mount: VolumeMount) -> bool:
    return not mount.read_only and mount.revision is None


def check_times(found: Findings, spec: JobSpec, now_s: float) -> None:
    """Check the bounds on the run's time, and the time to be done by."""
    queue = spec.placement.queue_timeout if spec.placement is not None else None
    for path, text in (
        ("spec.timeout", spec.timeout),
        ("spec.expectedDuration", spec.expected_duration),
        ("spec.placement.queueTimeout", queue),
    ):
        if text is not None and not 0 < parse_duration(text) <= LONGEST_S:
            found.reject(path, f"{text[:40]!r} is not between 0 and a year")
    if spec.complete_by_time is None:
        return
    try:
        due = parse_rfc3339(spec.complete_by_time)
    except ValueError:
        found.reject(
            "spec.completeByTime", f"{spec.complete_by_time[:60]!r} is no time; write it like 2030-01-31T18:00:00Z"
        )
        return
    if due.timestamp() <= now_s and found.draft.creating:
        found.reject("spec.completeByTime", f"{spec.complete_by_time} has passed")


def check_inputs(conn: Connection, services: Services, found: Findings, spec: JobSpec) -> None:
    """Check that every blob the Job names is one of the project's."""
    if spec.source is not None:
        if (spec.source.blob is None) == (spec.source.git is None):
            found.reject("spec.source", "needs exactly one of blob and git")
        if spec.source.git is not None:
            sources.check_repository(found.draft, spec.source.git.repo, spec.source.git.ref, spec.source.git.path)
        if spec.source.blob is not None:
            found.draft.check_blob(conn, services, "spec.source.blob", spec.source.blob)
    for number, item in enumerate(spec.inputs):
        found.draft.check_blob(conn, services, f"spec.inputs[{number}].blob", item.blob)
