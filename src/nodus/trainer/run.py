"""The run as the trainer sees it: params.json and the paths in its environment variables. Loads no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodus.core.errors import BadRequest, Invalid
from nodus.trainer.parameters import EVALUATE, GRPO_LORA, Parameter, Values, problems


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Which evaluations a run does on its held-out tasks."""

    baseline: bool = False
    """Grade the untouched model before training."""
    final: bool = False
    """Grade the trained model after training."""
    min_comparison_tasks: int = 16
    """Fewest scored tasks for which before and after may be compared."""


@dataclass(frozen=True, slots=True)
class Run:
    """Everything the compiler and the supervisor tell the trainer about one run.

    Life cycle: read once at start with ``Run.load()``, never changed.
    """

    task: str
    mode: str
    name: str
    project: str
    attempt: str
    parameters: Values
    raw_parameters: Mapping[str, Any]
    environment: Mapping[str, Any]
    evaluation: Evaluation
    model: Mapping[str, Any]
    """``uri``, ``revision`` and ``digest`` of the model, each a string or None."""
    runtime: Mapping[str, Any]
    configuration_digest: str | None
    model_dir: Path
    state_dir: Path
    output_dir: Path
    socket: Path
    world: Mapping[str, int] = field(default_factory=lambda: {"rank": 0, "size": 1})

    @property
    def is_main(self) -> bool:
        """Whether this process reports events and writes files; one of a distributed run does."""
        return self.world["rank"] == 0

    def binding(self) -> dict[str, str | None]:
        """The digests that resumable state belongs to."""
        return {
            "configuration": self.configuration_digest,
            "runtime": self.runtime.get("digest"),
            "model": self.model.get("digest"),
            "environment": self.environment.get("digest"),
        }

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Run:
        """Read ``params.json`` and the environment variables of the attempt.

        Raises:
            BadRequest: When a variable is missing or params.json can't be read.
            Invalid: When a parameter is unknown, mistyped or out of bounds; every cause carries its path.
        """
        env = os.environ if environ is None else environ
        params = _read_params(_required(env, "NODUS_INPUT_PARAMS"))
        given = params.get("parameters") or {}
        declared = declared_parameters(params)
        causes = list(problems(given, declared))
        if causes:
            raise Invalid("the parameters of this run are not valid", causes=causes, fix="correct the named fields")
        evaluation = params.get("evaluation") or {}
        runtime = params.get("runtime") or {}
        return cls(
            task=params.get("task") or "GRPO",
            mode=params.get("mode") or "Train",
            name=params.get("trainingJob") or _required(env, "NODUS_TRAINING_JOB"),
            project=params.get("project") or _required(env, "NODUS_PROJECT"),
            attempt=_required(env, "NODUS_ATTEMPT"),
            parameters=Values(given, GRPO_LORA if declared is GRPO_LORA else declared),
            raw_parameters=given,
            environment=params.get("environment") or {},
            evaluation=Evaluation(
                baseline=bool(evaluation.get("baseline")),
                final=bool(evaluation.get("final")),
                min_comparison_tasks=int(evaluation.get("minComparisonTasks") or 16),
            ),
            model={
                "uri": params.get("modelUri"),
                "revision": params.get("modelRevision"),
                "digest": params.get("modelDigest"),
            },
            runtime=runtime,
            configuration_digest=params.get("configurationDigest"),
            model_dir=Path(_required(env, "NODUS_INPUT_MODEL")),
            state_dir=Path(_required(env, "NODUS_STATE_DIR")),
            output_dir=Path(_required(env, "NODUS_OUTPUT_DIR")),
            socket=Path(_required(env, "NODUS_RUNTIME_SOCKET")),
            world={"rank": int(env.get("RANK") or 0), "size": int(env.get("WORLD_SIZE") or 1)},
        )


def declared_parameters(params: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """The declaration that a params.json is checked against, by its runtime or task."""
    name = (params.get("runtime") or {}).get("name") or ""
    return EVALUATE if name.endswith("/evaluate") or params.get("task") == "Evaluate" else GRPO_LORA


def _required(env: Mapping[str, str], name: str) -> str:
    value = env.get(name)
    if not value:
        raise BadRequest(
            f"the environment variable {name} is not set",
            fix="the trainer is started by a Nodus Job, which sets it; set it to run the trainer by hand",
        )
    return value


def _read_params(location: str) -> dict[str, Any]:
    path = Path(location)
    path = path / "params.json" if path.is_dir() else path
    try:
        params = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path} can't be read: {error}") from error
    if not isinstance(params, dict):
        raise BadRequest(f"{path} holds {type(params).__name__}, not a mapping")
    return params
