"""Compile a TrainingJob into the Job that runs it and the `params.json` that its trainer reads.

Pure: the same spec, runtime, environment, model and resources always give the same Job, parameters and digests. Used at
admission (dry runs show the Job) and by the TrainingJob controller (which creates it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodus.core.digests import canonical_json, digest_of, sha256_hex
from nodus.server.training import parameters
from nodus.server.training.resources import Chosen

DEFAULT_SEED = 42
DEFAULT_MIN_COMPARISON_TASKS = 16
DEFAULT_TRAIN_TASKS = 256
DEFAULT_HELD_OUT_TASKS = 64
BACKOFF_LIMIT = 3
"""Further attempts after a trainer died; each resumes from the newest checkpoint."""
PARAMS_DIRECTORY = "/nodus/inputs/params"
MODEL_PATH = "/nodus/inputs/model"
STATE_PATH = "/nodus/state"
OUTPUT_PATH = "/nodus/outputs"
MANAGED_IMAGES = "nodus/"
"""Prefix of the images that this installation provides, which have Nodus in them."""
TORCHRUN_MODULE = "nodus.trainer.torchrun"
"""torchrun as every managed image has it: it ends as the trainer ended, and leaves the trainer the last word."""
JOB_LABEL = "nodus.dev/trainingjob"
BOUND = ("task", "mode", "parameters", "environment", "evaluation", "modelUri", "modelRevision")
"""Keys of `params.json` that the configuration digest covers."""


@dataclass(frozen=True, slots=True)
class RuntimePin:
    """The runtime as it is when the run is compiled."""

    name: str
    """As referred to: `nodus/grpo-lora`."""
    spec: Mapping[str, Any]
    digest: str
    """Digest of the trainer's sources and its pinned stack."""


@dataclass(frozen=True, slots=True)
class EnvironmentPin:
    """The environment version as fixed at admission."""

    name: str
    """As referred to, without the version: `nodus/arithmetic`."""
    version: str
    digest: str
    graders: tuple[Mapping[str, Any], ...] = ()
    train_size: int | None = None
    """Tasks of the train split after `taskFilter`; None while not known."""
    test_size: int | None = None
    episodes: bool | None = None
    """Whether it answers the model's replies; None while not known."""


@dataclass(frozen=True, slots=True)
class ModelPin:
    """The model as fixed at admission; the digest and Volume are known once it is imported."""

    uri: str
    """As the user wrote it."""
    revision: str
    """Commit, or the library's own revision."""
    repo: str = ""
    """Hub repository that presets match."""
    volume: str | None = None
    volume_revision: int | None = None
    digest: str | None = None
    """Digest of the Volume revision's files."""
    source: Mapping[str, Any] | None = None
    """Where the files come from, as the import noted it."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a TrainingJob comes to."""

    job: dict[str, Any]
    """Spec of the Job, in wire form."""
    params: dict[str, Any]
    """Content of `params.json`."""
    params_bytes: bytes
    """`params.json` as delivered."""
    parameters_sha256: str
    configuration_digest: str
    """Digest of everything that a checkpoint is bound to, beside runtime, model and environment."""


def held_out(spec: Mapping[str, Any], environment: EnvironmentPin | None) -> int:
    """Tasks that an evaluation scores: as asked for, else none when training and a capped default when evaluating."""
    asked = parameters.lookup(spec, "environment.heldOutTasks")
    if isinstance(asked, int):
        return asked
    if spec.get("mode", "Train") == "Evaluate" and environment is not None:
        return _capped(DEFAULT_HELD_OUT_TASKS, environment.test_size)
    return 0


def train_tasks(spec: Mapping[str, Any], environment: EnvironmentPin | None) -> int:
    """Tasks that a run trains on: as asked for, else a default capped by the split; none when only evaluating."""
    if spec.get("mode", "Train") == "Evaluate":
        return 0
    asked = parameters.lookup(spec, "environment.trainTasks")
    if isinstance(asked, int):
        return asked
    return _capped(DEFAULT_TRAIN_TASKS, environment.train_size if environment else None)


def evaluation(spec: Mapping[str, Any], held_out_tasks: int) -> dict[str, Any]:
    """`evaluation` with its defaults: both passes where there are held-out tasks, the final one alone to evaluate."""
    given = spec.get("evaluation") or {}
    training = spec.get("mode", "Train") == "Train"
    wanted = held_out_tasks > 0
    return {
        "baseline": bool(_or(given.get("baseline"), wanted)) and training,
        "final": bool(_or(given.get("final"), wanted)) or not training,
        "minComparisonTasks": _or(given.get("minComparisonTasks"), DEFAULT_MIN_COMPARISON_TASKS),
    }


def compile_job(
    *,
    name: str,
    project: str,
    spec: Mapping[str, Any],
    runtime: RuntimePin,
    environment: EnvironmentPin | None,
    model: ModelPin | None,
    chosen: Chosen,
) -> Compiled:
    """Compile one TrainingJob.

    Args:
        name: the TrainingJob's name, which the Job takes over.
        project: its project.
        spec: its spec as stored.
        runtime: the runtime, pinned.
        environment: the environment, pinned; None for a runtime without one.
        model: the model, pinned; its digest and Volume may still be unknown (dry run).
        chosen: resources of the run.
    """
    merged = parameters.merge(runtime.spec, spec.get("parameters"))
    params: dict[str, Any] = {
        "task": spec.get("task") or runtime.spec["task"],
        "mode": spec.get("mode", "Train"),
        "trainingJob": name,
        "project": project,
        "parameters": merged,
        "runtime": {"name": runtime.name, "image": runtime.spec["image"], "digest": runtime.digest},
    }
    if environment is not None:
        params["environment"] = _environment(spec, environment)
        params["evaluation"] = evaluation(spec, params["environment"]["heldOutTasks"])
    if model is not None:
        params |= {"modelUri": model.uri, "modelRevision": model.revision}
        if model.digest:
            params["modelDigest"] = model.digest
    bound = {key: params[key] for key in BOUND if key in params}
    params["configurationDigest"] = digest_of(bound)
    content = (canonical_json(params) + "\n").encode()
    return Compiled(
        job=_job(spec, runtime, model, chosen, sha256_hex(content)),
        params=params,
        params_bytes=content,
        parameters_sha256=digest_of(merged).removeprefix("sha256:"),
        configuration_digest=params["configurationDigest"],
    )


def _environment(spec: Mapping[str, Any], environment: EnvironmentPin) -> dict[str, Any]:
    seed = parameters.lookup(spec, "environment.seed")
    return {
        "name": environment.name,
        "version": environment.version,
        "digest": environment.digest,
        "trainTasks": train_tasks(spec, environment),
        "heldOutTasks": held_out(spec, environment),
        "seed": _or(seed, DEFAULT_SEED),
        "graders": [{"name": grader["name"], "kind": grader["kind"]} for grader in environment.graders],
    }


def _job(
    spec: Mapping[str, Any], runtime: RuntimePin, model: ModelPin | None, chosen: Chosen, params_sha256: str
) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = []
    if model is not None and model.volume is not None:
        mount: dict[str, Any] = {"volume": model.volume, "mountPath": MODEL_PATH, "readOnly": True}
        volumes.append(mount | ({"revision": model.volume_revision} if model.volume_revision else {}))
    job: dict[str, Any] = {
        "image": runtime.spec["image"],
        "command": _command(runtime.spec, chosen.gpus),
        "env": _env(model),
        "inputs": [
            {"name": "params", "path": f"{PARAMS_DIRECTORY}/params.json", "blob": f"sha256:{params_sha256}"},
        ],
        "volumes": volumes,
        "outputs": [dict(output) for output in runtime.spec.get("outputs") or []]
        or [{"name": "outputs", "path": OUTPUT_PATH}],
        "resources": chosen.resources,
        "recovery": {"checkpoint": {"paths": [_state_path(runtime.spec)], "format": _format(runtime.spec)}},
        "backoffLimit": BACKOFF_LIMIT,
    }
    for key in ("maxCostUSD", "expectedDuration", "placement"):
        if spec.get(key) is not None:
            job[key] = spec[key]
    return job


def _command(runtime_spec: Mapping[str, Any], gpus: int) -> list[str]:
    """The runtime's command, for a Torchrun runtime started by torchrun: one process a GPU, or one without any."""
    command = list(runtime_spec.get("command") or ["python", "-m", "nodus.trainer"])
    if runtime_spec.get("launcher") != "Torchrun" or command[0] == "torchrun":
        return command
    managed = str(runtime_spec["image"]).startswith(MANAGED_IMAGES)
    launcher = ["python", "-m", TORCHRUN_MODULE] if managed else ["torchrun"]
    # A sandbox has loopback only, and its host name resolves to nothing. Restarts are Nodus's: a new Attempt.
    launcher += ["--standalone", f"--nproc-per-node={max(1, gpus)}", "--local-addr=localhost", "--max-restarts=0"]
    # torchrun reads its workers' arguments as templates, in which `$$` is a dollar.
    arguments = [argument.replace("$", "$$") for argument in command[1:]]
    if command[0] == "python" and arguments and (arguments[0] == "-m" or not arguments[0].startswith("-")):
        return [*launcher, *arguments]
    return [*launcher, "--no-python", command[0], *arguments]


def _env(model: ModelPin | None) -> list[dict[str, str]]:
    values = {
        "NODUS_INPUT_PARAMS": PARAMS_DIRECTORY,
        "NODUS_STATE_DIR": STATE_PATH,
        "NODUS_OUTPUT_DIR": OUTPUT_PATH,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "PYTHONHASHSEED": "0",
    }
    if model is not None:
        values["NODUS_INPUT_MODEL"] = MODEL_PATH
    return [{"name": name, "value": value} for name, value in sorted(values.items())]


def _state_path(runtime_spec: Mapping[str, Any]) -> str:
    return str((runtime_spec.get("checkpointing") or {}).get("path") or STATE_PATH)


def _format(runtime_spec: Mapping[str, Any]) -> str:
    return str((runtime_spec.get("checkpointing") or {}).get("strategy") or "HFTrainer")


def _capped(default: int, size: int | None) -> int:
    return default if size is None else min(default, size)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
