"""From a Job's spec to what a compute backend runs: pure, but for the values it is given."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from nodus.core.durations import parse_duration
from nodus.core.kinds.resources import read_gpu, read_secret
from nodus.core.sizes import quantity
from nodus.server.compute.base import CheckpointPlan, InputFile, MemberSpec, Mount, OutputRule, StartRefused
from nodus.server.compute.programs import RUN_PROGRAM

if TYPE_CHECKING:
    from nodus.server.store.objects import Object

DEFAULT_CPU = 1.0
DEFAULT_MEMORY_BYTES = 2 << 30
OUTPUT_DIR, STATE_DIR = "/nodus/outputs", "/nodus/state"
GANG_PORT = "29500"
LEAST_INTERVAL_S = 1.0
"""Between requests for a checkpoint, whatever a Job asks for."""
LOG_LIMIT_BYTES = 64 << 20
"""How much of an attempt's output is kept: 50 MB are promised, and the newest chunk always counts as full."""
_INIT = """(
set -- {init}
{run}
) || {{
  code=$?
  [ -e /nodus/termination/message.json ] || printf '%s' {said} > /nodus/termination/message.json
  exit $code
}}
{run}
"""
SECRETS_DIR = "/run/secrets"
SecretKey = tuple[str, int | None]
"""Name of a Secret and the version asked for; None for the newest."""
TRAINING_LABEL = "nodus.dev/trainingjob"


@dataclass(frozen=True, slots=True)
class Request:
    """What a run asks of a machine."""

    cpu: float
    memory_bytes: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a Job refers to, looked up.

    Attributes:
        secrets: Values of each Secret, by its name and the version asked for.
        volumes: Host directory of each entry of ``spec.volumes``, in its order.
        state_dir: The state directory on the host.
        token: The attempt's bearer token.
        kept: Host directory of each path that is kept from attempt to attempt.
        source: Digest of the archive of a git source.
    """

    secrets: Mapping[SecretKey, Mapping[str, str]] = field(default_factory=dict)
    volumes: Sequence[str] = ()
    state_dir: str | None = None
    token: str = ""
    kept: Mapping[str, str] = field(default_factory=dict)
    source: str | None = None


def request_of(job_spec: Mapping[str, Any]) -> Request:
    """Return the CPU, memory and GPUs that a Job asks for, with the defaults of one CPU and 2 GiB."""
    resources = job_spec.get("resources") or {}
    gpu = read_gpu(resources["gpu"]) if resources.get("gpu") else None
    cpu = quantity(resources["cpu"]) if resources.get("cpu") is not None else DEFAULT_CPU
    memory = int(quantity(resources["memory"])) if resources.get("memory") else DEFAULT_MEMORY_BYTES
    return Request(cpu, memory, int(gpu.get("count", 1)) if gpu else 0)


def secret_keys(job_spec: Mapping[str, Any]) -> list[SecretKey]:
    """Return the Secrets that a Job refers to, each with the version where one is fixed."""
    found = [_reference_key(reference) for _, reference in _references(job_spec)]
    found += [_reference_key(read_secret(given)) for given in job_spec.get("secrets") or ()]
    return list(dict.fromkeys(found))


def _references(job_spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The variables that are keys of Secrets."""
    for variable in job_spec.get("env") or ():
        if reference := (variable.get("valueFrom") or {}).get("secretKeyRef"):
            yield variable["name"], reference


def _reference_key(reference: Mapping[str, Any]) -> SecretKey:
    return reference["name"], reference.get("version")


def environment(job_spec: Mapping[str, Any], secrets: Mapping[SecretKey, Mapping[str, str]]) -> dict[str, str]:
    """Return the variables that the user asked for.

    Raises:
        StartRefused: When a Secret lacks a key that is referred to.
    """
    env: dict[str, str] = {}
    for secret in map(read_secret, job_spec.get("secrets") or ()):
        if not secret.get("mount"):
            env.update(secrets[_reference_key(secret)])
    for variable in job_spec.get("env") or ():
        if not variable.get("valueFrom"):
            env[variable["name"]] = str(variable.get("value") or "")
    for name, reference in _references(job_spec):
        values = secrets[_reference_key(reference)]
        if reference["key"] not in values:
            raise StartRefused(
                f"the secret {reference['name']!r} has no key {reference['key']!r}",
                fix=f"It has: {', '.join(sorted(values)) or 'none'}.",
            )
        env[name] = values[reference["key"]]
    return env


def secret_files(job_spec: Mapping[str, Any], secrets: Mapping[SecretKey, Mapping[str, str]]) -> dict[str, str]:
    """Return the files that the keys of mounted Secrets become, path to content."""
    mounted = [secret for secret in map(read_secret, job_spec.get("secrets") or ()) if secret.get("mount")]
    return {
        f"{SECRETS_DIR}/{secret['name']}/{key}": value
        for secret in mounted
        for key, value in secrets[_reference_key(secret)].items()
    }


def build(job: Object, attempt: Object, resolved: Resolved, timeout_s: float | None) -> MemberSpec:
    """Return what the backend runs for an attempt of a Job.

    Raises:
        StartRefused: When the spec asks for what local members don't do.
    """
    spec = job.spec
    _refuse_unsupported(spec)
    request = request_of(spec)
    mounts = [
        Mount(directory, volume["mountPath"].rstrip("/"), not is_writable(volume))
        for directory, volume in zip(resolved.volumes, spec.get("volumes") or (), strict=True)
    ]
    mounts += [Mount(directory, path, False) for path, directory in resolved.kept.items()]
    inputs = [
        InputFile(str(item["blob"]).removeprefix("sha256:"), str(item["path"])) for item in spec.get("inputs") or ()
    ]
    source = (spec.get("source") or {}).get("blob") or resolved.source
    return MemberSpec(
        key=attempt.uid,
        command=command(spec),
        image=spec.get("image") or "nodus/base",
        token=resolved.token,
        env={**environment(spec, resolved.secrets), **variables(job, attempt)},
        files=secret_files(spec, resolved.secrets),
        cpu=request.cpu,
        memory_bytes=request.memory_bytes,
        gpus=request.gpus,
        timeout_s=timeout_s,
        mounts=mounts,
        inputs=inputs,
        source=source.removeprefix("sha256:") if source else None,
        state_dir=resolved.state_dir,
        cwd=spec.get("workingDir") or "/workspace",
        log_limit_bytes=LOG_LIMIT_BYTES,
        checkpoint=checkpoint_plan(spec, attempt.spec),
    )


def written_volumes(job_spec: Mapping[str, Any]) -> list[str]:
    """Return the Volumes that a Job may write to."""
    return list(dict.fromkeys(mount["volume"] for mount in job_spec.get("volumes") or () if is_writable(mount)))


def is_writable(mount: Mapping[str, Any]) -> bool:
    """Whether a Job may write to a Volume that it mounts; a fixed revision never changes."""
    return not mount.get("readOnly") and not mount.get("revision")


def command(job_spec: Mapping[str, Any]) -> list[str]:
    """Return the program and arguments to run; with an ``initCommand``, a shell that runs both, one after the other.

    A failed ``initCommand`` is the attempt's failure, with its exit code.
    """
    words = [*job_spec.get("command", ()), *job_spec.get("args", ())]
    first = job_spec.get("initCommand")
    if not first:
        return words
    said = json.dumps({"message": "the initCommand failed before the command could run"})
    script = _INIT.format(init=shlex.join(first), said=shlex.quote(said), run=RUN_PROGRAM)
    return ["/bin/sh", "-c", script, "sh", *words]


def state_name(job_spec: Mapping[str, Any], attempt: Mapping[str, Any]) -> str:
    """Return where a Job keeps an attempt's state, below the Job's directory: what equals is shared.

    Each index has its own; the attempts of a Restartable run have nothing in common.
    """
    indexed = job_spec.get("completions") is not None
    if goes_on(job_spec):
        return f"states/{attempt.get('slot', 0)}" if indexed else "state"
    return f"states/{attempt.get('slot', 0)}-{attempt['epoch']}"


def goes_on(job_spec: Mapping[str, Any]) -> bool:
    """Whether an attempt goes on with what the one before it kept, rather than begin anew."""
    return (job_spec.get("recovery") or {}).get("continuity") != "Restartable"


def checkpoint_plan(job_spec: Mapping[str, Any], attempt: Mapping[str, Any]) -> CheckpointPlan:
    """Return what an attempt's checkpoints are; none of a run whose attempts have nothing in common."""
    if not goes_on(job_spec):
        return CheckpointPlan()
    policy = (job_spec.get("recovery") or {}).get("checkpoint") or {}
    paths = dict.fromkeys([*(policy.get("paths") or ()), STATE_DIR])
    interval_s = max(LEAST_INTERVAL_S, parse_duration(policy["interval"])) if policy.get("interval") else None
    return CheckpointPlan(tuple(paths), int((attempt.get("restoreFrom") or {}).get("seq") or 0), interval_s)


def kept_paths(job_spec: Mapping[str, Any]) -> list[str]:
    """Return the directories, beside the state directory, that go from attempt to attempt."""
    paths = ((job_spec.get("recovery") or {}).get("checkpoint") or {}).get("paths") or ()
    return [path.rstrip("/") for path in paths if not f"{path.rstrip('/')}/".startswith(f"{STATE_DIR}/")]


def output_rules(job_spec: Mapping[str, Any]) -> list[OutputRule]:
    """Return what to collect: the declared paths, else what is in ``/nodus/outputs``.

    Files of ``/nodus/outputs`` as a whole are named by their path there, others by their output's name and their path
    in it.
    """
    declared = job_spec.get("outputs") or [{"name": "outputs", "path": OUTPUT_DIR}]
    return [
        OutputRule("" if output["path"].rstrip("/") == OUTPUT_DIR else output["name"], output["path"])
        for output in declared
    ]


def written_outputs(job_spec: Mapping[str, Any], paths: Iterable[str]) -> list[str]:
    """Return the names of the declared outputs that one of the paths is, or is below."""
    there = {str(parent) for path in paths for parent in (PurePosixPath(path), *PurePosixPath(path).parents)}
    return [output["name"] for output in job_spec.get("outputs") or () if str(PurePosixPath(output["path"])) in there]


def remaining_s(job: Object, now_s: float, start_s: float | None) -> float | None:
    """Return how long a Job may still run, or None when it has no timeout. All of its attempts share the time."""
    text = job.spec.get("timeout")
    if not text:
        return None
    spent_s = 0.0 if start_s is None else max(0.0, now_s - start_s)
    return max(0.0, parse_duration(text) - spent_s)


def variables(job: Object, attempt: Object) -> dict[str, str]:
    """Return the variables that tell a command what it is."""
    spec, own = job.spec, attempt.spec
    recovery = spec.get("recovery") or {}
    env = {
        "NODUS_ATTEMPT": attempt.name,
        "NODUS_ATTEMPT_EPOCH": str(own["epoch"]),
        "NODUS_JOB": job.name,
        "NODUS_PROJECT": job.project or "",
        "NODUS_STATE_DIR": STATE_DIR,
        "NODUS_CHECKPOINT_DIR": next(iter((recovery.get("checkpoint") or {}).get("paths") or ()), STATE_DIR),
        "NODUS_OUTPUT_DIR": OUTPUT_DIR,
        "NODUS_RUNTIME_SOCKET": "/run/nodus/api.sock",
        "NODUS_EVENTS_SOCKET": "/run/nodus/events.sock",
        "NODUS_TERMINATION_DIR": "/nodus/termination",
        "NODUS_NODE_RANK": "0",
        "NODUS_NUM_NODES": "1",
    }
    if int(own["epoch"]) > 1 and goes_on(spec):
        env["NODUS_RESTORED"] = "1"
    if (recovery.get("checkpoint") or {}).get("format"):
        env["NODUS_CHECKPOINT_FORMAT"] = recovery["checkpoint"]["format"]
    if spec.get("completions") is not None:
        env |= {"NODUS_INDEX": str(own.get("slot", 0)), "NODUS_COMPLETIONS": str(spec["completions"])}
    if TRAINING_LABEL in job.labels:
        env["NODUS_TRAINING_JOB"] = job.labels[TRAINING_LABEL]
    return env | _gang_variables(job, attempt)


def _gang_variables(job: Object, attempt: Object) -> dict[str, str]:
    """Return what a gang's launcher reads, for the gang of one node that is all there is here."""
    gang = job.spec.get("distributed")
    if not gang:
        return {}
    gpus = request_of(job.spec).gpus
    env = {
        "NODE_RANK": "0",
        "NNODES": "1",
        "NODUS_GPUS_PER_NODE": str(gpus),
        "NODUS_NODE_IPS": "127.0.0.1",
        "NODUS_GANG_EPOCH": str(attempt.spec["epoch"]),
        "NODUS_GANG_TRANSPORT": "private",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": GANG_PORT,
    }
    if (gang.get("launcher") or "Plain") == "Plain":
        return env | {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1"}
    return env | {
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": str(max(1, gpus)),
        "PET_MAX_RESTARTS": "0",  # restarts are the Job's
        "PET_RDZV_ID": attempt.name,
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{GANG_PORT}",
        "PET_LOCAL_ADDR": "127.0.0.1",
    }


def _refuse_unsupported(spec: Mapping[str, Any]) -> None:
    """Refuse what admission refuses, for Jobs that did not pass it."""
    if not spec.get("command") and not spec.get("args"):
        raise StartRefused("the Job has no command", fix="Set spec.command.")
    policy = ((spec.get("network") or {}).get("egress") or {}).get("policy", "Deny")
    if policy != "Deny":
        raise StartRefused(f"network access ({policy}) isn't available on this machine", fix="Leave out spec.network.")
    if spec.get("sidecars"):
        raise StartRefused("spec.sidecars isn't supported here", fix="Leave out spec.sidecars.")
    if int((spec.get("distributed") or {}).get("nodes") or 1) > 1:
        raise StartRefused("several nodes aren't supported here", fix="Leave out spec.distributed.")
