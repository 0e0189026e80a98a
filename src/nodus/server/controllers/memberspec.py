"""From a Job's spec to what a compute backend runs: pure, but for the values it is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nodus.core.durations import parse_duration
from nodus.core.kinds.resources import read_gpu, read_secret
from nodus.server.compute.base import InputFile, MemberSpec, Mount, OutputRule, StartRefused

if TYPE_CHECKING:
    from nodus.server.store.objects import Object

DEFAULT_CPU = 1.0
DEFAULT_MEMORY_BYTES = 2 << 30
OUTPUT_DIR = "/nodus/outputs"
TRAINING_LABEL = "nodus.dev/trainingjob"
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([KMGT]i?|m)?")
_FACTORS = {"": 1.0, "m": 0.001, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_FACTORS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGT", start=1)}


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
        secrets: Values of each Secret by its name.
        volumes: Host directory of each entry of ``spec.volumes``, in its order.
        state_dir: The Job's state directory on the host.
        token: The attempt's bearer token.
    """

    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    volumes: Sequence[str] = ()
    state_dir: str | None = None
    token: str = ""


def quantity(text: str | float) -> float:
    """Return the number that a quantity such as ``4``, ``500m`` or ``16Gi`` means.

    Raises:
        ValueError: When it is none.
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; write it like 4, 500m or 16Gi")
    return float(match.group(1)) * _FACTORS[match.group(2) or ""]


def request_of(job_spec: Mapping[str, Any]) -> Request:
    """Return the CPU, memory and GPUs that a Job asks for, with the defaults of one CPU and 2 GiB."""
    resources = job_spec.get("resources") or {}
    gpu = read_gpu(resources["gpu"]) if resources.get("gpu") else None
    cpu = quantity(resources["cpu"]) if resources.get("cpu") is not None else DEFAULT_CPU
    memory = int(quantity(resources["memory"])) if resources.get("memory") else DEFAULT_MEMORY_BYTES
    return Request(cpu, memory, int(gpu.get("count", 1)) if gpu else 0)


def secret_names(job_spec: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the Secrets a Job's environment needs, with the version where one is fixed."""
    found: dict[str, int | None] = {}
    for variable in job_spec.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
        if reference:
            found.setdefault(reference["name"], None)
    for given in job_spec.get("secrets") or ():
        secret = read_secret(given)
        found[secret["name"]] = secret.get("version")
    return found


def environment(job_spec: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the variables that the user asked for.

    Raises:
        StartRefused: When a Secret lacks a key that is referred to.
    """
    env: dict[str, str] = {}
    for given in job_spec.get("secrets") or ():
        env.update(secrets[read_secret(given)["name"]])
    for variable in job_spec.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
        if reference is None:
            env[variable["name"]] = str(variable.get("value") or "")
            continue
        values = secrets[reference["name"]]
        if reference["key"] not in values:
            raise StartRefused(
                f"the secret {reference['name']!r} has no key {reference['key']!r}",
                fix=f"It has: {', '.join(sorted(values)) or 'none'}.",
            )
        env[variable["name"]] = values[reference["key"]]
    return env


def build(job: Object, attempt: Object, resolved: Resolved, timeout_s: float | None) -> MemberSpec:
    """Return what the backend runs for an attempt of a Job.

    Raises:
        StartRefused: When the spec asks for what local members don't do.
    """
    spec = job.spec
    _refuse_unsupported(spec)
    request = request_of(spec)
    mounts = [
        Mount(directory, volume["mountPath"], bool(volume.get("readOnly") or volume.get("revision")))
        for directory, volume in zip(resolved.volumes, spec.get("volumes") or (), strict=True)
    ]
    inputs = [
        InputFile(str(item["blob"]).removeprefix("sha256:"), str(item["path"])) for item in spec.get("inputs") or ()
    ]
    source = (spec.get("source") or {}).get("blob")
    return MemberSpec(
        key=attempt.uid,
        command=[*spec.get("command", ()), *spec.get("args", ())],
        image=spec.get("image") or "nodus/base",
        token=resolved.token,
        env={**_own_variables(job, attempt), **environment(spec, resolved.secrets)},
        cpu=request.cpu,
        memory_bytes=request.memory_bytes,
        gpus=request.gpus,
        timeout_s=timeout_s,
        mounts=mounts,
        inputs=inputs,
        source=source.removeprefix("sha256:") if source else None,
        state_dir=resolved.state_dir,
        cwd=spec.get("workingDir") or "/workspace",
    )


def output_rules(job_spec: Mapping[str, Any]) -> list[OutputRule]:
    """Return what to collect: the declared paths, else what is in ``/nodus/outputs``.

    Files below ``/nodus/outputs`` are named by their path there, others by their output's name and their path in it.
    """
    declared = job_spec.get("outputs") or [{"name": "outputs", "path": OUTPUT_DIR}]
    return [OutputRule(_prefix(output["name"], output["path"].rstrip("/")), output["path"]) for output in declared]


def remaining_s(job: Object, now_s: float, start_s: float | None) -> float | None:
    """Return how long a Job may still run, or None when it has no timeout. All of its attempts share the time."""
    text = job.spec.get("timeout")
    if not text:
        return None
    spent_s = 0.0 if start_s is None else max(0.0, now_s - start_s)
    return max(0.0, parse_duration(text) - spent_s)


def _prefix(name: str, path: str) -> str:
    if path == OUTPUT_DIR:
        return ""
    return path[len(OUTPUT_DIR) + 1 :] if path.startswith(OUTPUT_DIR + "/") else name


def _own_variables(job: Object, attempt: Object) -> dict[str, str]:
    env = {
        "NODUS_ATTEMPT": attempt.name,
        "NODUS_ATTEMPT_EPOCH": str(attempt.spec["epoch"]),
        "NODUS_JOB": job.name,
        "NODUS_PROJECT": job.project or "",
        "NODUS_STATE_DIR": "/nodus/state",
        "NODUS_OUTPUT_DIR": OUTPUT_DIR,
        "NODUS_RUNTIME_SOCKET": "/run/nodus/api.sock",
        "NODUS_TERMINATION_DIR": "/nodus/termination",
        "NODUS_NODE_RANK": "0",
        "NODUS_NUM_NODES": "1",
    }
    if TRAINING_LABEL in job.labels:
        env["NODUS_TRAINING_JOB"] = job.labels[TRAINING_LABEL]
    return env


def _refuse_unsupported(spec: Mapping[str, Any]) -> None:
    if not spec.get("command"):
        raise StartRefused("the Job has no command", fix="Set spec.command.")
    policy = ((spec.get("network") or {}).get("egress") or {}).get("policy", "None")
    if policy not in ("None", "Deny"):
        raise StartRefused(f"network access ({policy}) isn't available on this machine", fix="Leave out spec.network.")
    for name in ("sidecars", "initCommand"):
        if spec.get(name):
            raise StartRefused(f"spec.{name} isn't supported here", fix=f"Leave out spec.{name}.")
    if (spec.get("source") or {}).get("git"):
        raise StartRefused("spec.source.git isn't supported here", fix="Upload the files: spec.source.blob.")
