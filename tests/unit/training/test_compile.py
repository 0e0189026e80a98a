"""A TrainingJob, its Job and its params.json, whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nodus.core.digests import sha256_hex
from nodus.server.training.compile import Compiled, EnvironmentPin, ModelPin, RuntimePin, compile_job
from nodus.server.training.resources import Chosen

RUNTIME = RuntimePin(
    "nodus/grpo-lora",
    {
        "image": "nodus/grpo-lora:2.0.0",
        "task": "GRPO",
        "modes": ["Train", "Evaluate"],
        "launcher": "Torchrun",
        "command": ["python", "-m", "nodus.trainer"],
        "outputs": [{"name": "outputs", "path": "/nodus/outputs"}],
        "checkpointing": {"path": "/nodus/state", "strategy": "HFTrainer"},
        "parameters": {
            "type": "object",
            "properties": {
                "steps": {"type": "integer", "default": 50},
                "seed": {"type": "integer", "default": 42},
                "lora": {"type": "object", "properties": {"r": {"type": "integer", "default": 8}}},
            },
        },
    },
    "sha256:" + "1" * 64,
)
ENVIRONMENT = EnvironmentPin(
    "nodus/arithmetic",
    "2.0.0",
    "sha256:" + "2" * 64,
    ({"name": "last-integer", "kind": "ExactMatch", "description": "the last integer"},),
    train_size=297,
    test_size=64,
)
MODEL = ModelPin("hf://acme/tiny", "c" * 40, "acme/tiny", "model-tiny", 1, "sha256:" + "3" * 64)
SPEC: dict[str, Any] = {
    "runtime": "nodus/grpo-lora",
    "model": {"uri": "hf://acme/tiny"},
    "environment": {"name": "nodus/arithmetic@2.0.0", "heldOutTasks": 32},
    "parameters": {"steps": 4},
    "maxCostUSD": "5.00",
}
TORCHRUN = ["python", "-m", "nodus.trainer.torchrun", "--standalone"]
LOOPBACK = ["--local-addr=localhost", "--max-restarts=0"]
CHOSEN = Chosen({"cpu": 2, "memory": "6Gi"}, 0, None)


def compiled(spec: dict[str, Any] | None = None, name: str = "run", **changes: Any) -> Compiled:
    given: dict[str, Any] = {"runtime": RUNTIME, "environment": ENVIRONMENT, "model": MODEL, "chosen": CHOSEN}
    return compile_job(name=name, project="default", spec=spec or SPEC, **(given | changes))


def test_job_and_params_are_these() -> None:
    result = compiled()
    assert result.params == {
        "task": "GRPO",
        "mode": "Train",
        "trainingJob": "run",
        "project": "default",
        "parameters": {"steps": 4, "seed": 42, "lora": {"r": 8}},
        "runtime": {"name": "nodus/grpo-lora", "image": "nodus/grpo-lora:2.0.0", "digest": RUNTIME.digest},
        "environment": {
            "name": "nodus/arithmetic",
            "version": "2.0.0",
            "digest": ENVIRONMENT.digest,
            "trainTasks": 256,
            "heldOutTasks": 32,
            "seed": 42,
            "graders": [{"name": "last-integer", "kind": "ExactMatch"}],
        },
        "evaluation": {"baseline": True, "final": True, "minComparisonTasks": 16},
        "modelUri": "hf://acme/tiny",
        "modelRevision": "c" * 40,
        "modelDigest": MODEL.digest,
        "configurationDigest": result.configuration_digest,
    }
    assert result.job == {
        "image": "nodus/grpo-lora:2.0.0",
        "command": [*TORCHRUN, "--nproc-per-node=1", *LOOPBACK, "-m", "nodus.trainer"],
        "env": [
            {"name": "HF_DATASETS_OFFLINE", "value": "1"},
            {"name": "HF_HUB_OFFLINE", "value": "1"},
            {"name": "NODUS_INPUT_MODEL", "value": "/nodus/inputs/model"},
            {"name": "NODUS_INPUT_PARAMS", "value": "/nodus/inputs/params"},
            {"name": "NODUS_OUTPUT_DIR", "value": "/nodus/outputs"},
            {"name": "NODUS_STATE_DIR", "value": "/nodus/state"},
            {"name": "PYTHONHASHSEED", "value": "0"},
        ],
        "inputs": [
            {
                "name": "params",
                "path": "/nodus/inputs/params/params.json",
                "blob": f"sha256:{sha256_hex(result.params_bytes)}",
            }
        ],
        "volumes": [{"volume": "model-tiny", "mountPath": "/nodus/inputs/model", "readOnly": True, "revision": 1}],
        "outputs": [{"name": "outputs", "path": "/nodus/outputs"}],
        "resources": {"cpu": 2, "memory": "6Gi"},
        "recovery": {"checkpoint": {"paths": ["/nodus/state"], "format": "HFTrainer"}},
        "backoffLimit": 3,
        "maxCostUSD": "5.00",
    }
    assert json.loads(result.params_bytes) == result.params


def test_configuration_digest_is_of_what_a_checkpoint_depends_on() -> None:
    base = compiled().configuration_digest
    assert compiled(name="other").configuration_digest == base
    assert compiled(chosen=Chosen({"cpu": 1}, 0, None)).configuration_digest == base
    assert compiled(SPEC | {"maxCostUSD": "9.00"}).configuration_digest == base
    assert compiled(SPEC | {"parameters": {"steps": 4, "lora": {"r": 8}}}).configuration_digest == base
    assert compiled(SPEC | {"parameters": {"steps": 5}}).configuration_digest != base
    assert compiled(SPEC | {"evaluation": {"final": False}}).configuration_digest != base
    assert compiled(model=replace(MODEL, revision="d" * 40)).configuration_digest != base
    assert compiled(environment=replace(ENVIRONMENT, digest="sha256:" + "9" * 64)).configuration_digest != base


@pytest.mark.parametrize(("gpus", "processes"), [(0, 1), (1, 1), (4, 4)])
def test_torchrun_starts_a_process_for_each_gpu_and_one_without(gpus: int, processes: int) -> None:
    command = compiled(chosen=Chosen({}, gpus, None)).job["command"]
    assert command == [*TORCHRUN, f"--nproc-per-node={processes}", *LOOPBACK, "-m", "nodus.trainer"]


@pytest.mark.parametrize(
    ("command", "launched"),
    [
        (["python", "train.py", "--cost", "$5"], ["train.py", "--cost", "$$5"]),  # torchrun makes it $5 again
        (["python", "-O", "train.py"], ["--no-python", "python", "-O", "train.py"]),
        (["bash", "train.sh"], ["--no-python", "bash", "train.sh"]),
    ],
)
def test_torchrun_runs_any_command_as_written(command: list[str], launched: list[str]) -> None:
    own = replace(RUNTIME, spec={**RUNTIME.spec, "command": command})
    assert compiled(runtime=own).job["command"] == [*TORCHRUN, "--nproc-per-node=1", *LOOPBACK, *launched]


def test_image_of_others_has_its_own_torchrun_and_other_launchers_get_none() -> None:
    foreign = replace(RUNTIME, spec={**RUNTIME.spec, "image": "acme/trainer:1"})
    assert compiled(runtime=foreign).job["command"][:2] == ["torchrun", "--standalone"]
    for change in ({"launcher": "Plain"}, {"command": ["torchrun", "--standalone", "train.py"]}):
        own = replace(RUNTIME, spec={**RUNTIME.spec, **change})
        assert compiled(runtime=own).job["command"] == own.spec["command"]


def test_no_held_out_tasks_means_no_evaluation() -> None:
    spec = SPEC | {"environment": {"name": "nodus/arithmetic@2.0.0"}}
    params = compiled(spec).params
    assert params["environment"]["heldOutTasks"] == 0
    assert params["evaluation"] == {"baseline": False, "final": False, "minComparisonTasks": 16}


def test_evaluation_mode_scores_once_and_trains_on_nothing() -> None:
    spec = SPEC | {"mode": "Evaluate", "environment": {"name": "nodus/arithmetic@2.0.0"}}
    params = compiled(spec).params
    assert (params["environment"]["trainTasks"], params["environment"]["heldOutTasks"]) == (0, 64)
    assert params["evaluation"] == {"baseline": False, "final": True, "minComparisonTasks": 16}


def test_unknown_model_digest_is_left_out_of_a_preview() -> None:
    result = compiled(model=replace(MODEL, volume=None, volume_revision=None, digest=None))
    assert "modelDigest" not in result.params
    assert result.job["volumes"] == []
