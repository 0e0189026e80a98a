"""The managed runtimes' catalog files and reference page, generated from the declared parameters.

python -m nodus.trainer.runtimes          # write them into the source tree this module stands in
python -m nodus.trainer.runtimes --check  # exit 1 and name the files that are not current
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from nodus.trainer.parameters import EVALUATE, GRPO_LORA, Parameter, defaults, json_schema

GRPO_LORA_IMAGE = "nodus/grpo-lora:2.0.0"
EVALUATE_IMAGE = "nodus/evaluate:1.0.0"
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
CPU = "CPU"
"""The key of an estimate that holds for a run without an accelerator."""

_SMALL = ("RTX-4090", "L40S", "RTX-A6000")
_LARGE = ("L40S", "RTX-A6000", "A100-80G")

_PRESETS: tuple[tuple[str, str, str | None, tuple[str, ...]], ...] = (
    ("Qwen/Qwen3-0.6B", "LoRA", None, _SMALL),
    ("Qwen/Qwen3-1.7B", "LoRA", None, _SMALL),
    ("Qwen/Qwen3-4B", "QLoRA", "nf4", _SMALL),
    ("Qwen/Qwen3-4B", "LoRA", None, _LARGE),
    ("Qwen/Qwen3-8B", "QLoRA", "nf4", _LARGE),
)

_SECONDS_PER_STEP: dict[str, float] = {"A100-80G": 0.7, "H100": 0.45, "L40S": 1, "RTX-4090": 1.2, "RTX-A6000": 1.3}
"""A step with the runtime's defaults."""
_CPU_SECONDS_PER_STEP = 8.0
_CPU_SECONDS_PER_TASK = 0.25
_CPU_REFERENCE: dict[str, Any] = {
    "model": SMOLLM2,
    "batchSize": 8,
    "gradientAccumulation": 4,
    "maxCompletionLength": 12,
}
"""What the CPU's seconds are of, on two cores; measured by bench/grpo_overhead.py."""

_CPU_RESOURCES = {"cpu": "2", "memory": "6Gi"}


def _gpu(types: tuple[str, ...]) -> dict[str, Any]:
    return {"gpu": {"type": list(types), "count": 1}}


def _preset(model: str, method: str, quantization: str | None, resources: dict[str, Any]) -> dict[str, Any]:
    preset: dict[str, Any] = {"model": model, "method": method}
    if quantization:
        preset["quantization"] = quantization
    return {**preset, "resources": resources}


def _runtime(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "nodus.dev/v1beta1",
        "kind": "TrainingRuntime",
        "metadata": {"name": name},
        "spec": spec,
    }


_SHARED: dict[str, Any] = {
    "command": ["python", "-m", "nodus.trainer"],
    "launcher": "Torchrun",
    "outputs": [{"name": "outputs", "path": "/nodus/outputs"}],
    "requires": {"model": True, "data": False, "environment": True, "teacher": False},
    "checkpointing": {"path": "/nodus/state", "strategy": "HFTrainer"},
    "environmentTasks": "AttemptAPI",
}


def grpo_lora() -> dict[str, Any]:
    """The TrainingRuntime object of ``nodus/grpo-lora``."""
    presets = [_preset(model, method, quantization, _gpu(types)) for model, method, quantization, types in _PRESETS]
    presets.append(_preset(SMOLLM2, "LoRA", None, _CPU_RESOURCES))
    return _runtime(
        "grpo-lora",
        {
            "image": GRPO_LORA_IMAGE,
            "task": "GRPO",
            "modes": ["Train", "Evaluate"],
            **_SHARED,
            "parameters": json_schema(GRPO_LORA),
            "defaults": {
                "parameters": defaults(GRPO_LORA),
                "resources": _gpu(("RTX-4090", "L40S", "RTX-A6000", "A100-80G")),
            },
            "presets": presets,
            "estimate": {
                "secondsPerStep": {**_SECONDS_PER_STEP, CPU: _CPU_SECONDS_PER_STEP},
                "secondsPerTask": {CPU: _CPU_SECONDS_PER_TASK},
                "reference": {CPU: _CPU_REFERENCE},
            },
        },
    )


def evaluate() -> dict[str, Any]:
    """The TrainingRuntime object of ``nodus/evaluate``."""
    return _runtime(
        "evaluate",
        {
            "image": EVALUATE_IMAGE,
            "task": "Evaluate",
            "modes": ["Evaluate"],
            **_SHARED,
            "parameters": json_schema(EVALUATE),
            "defaults": {
                "parameters": defaults(EVALUATE),
                "resources": _gpu(("RTX-4090", "L40S", "RTX-A6000", "A100-80G")),
            },
            "presets": [_preset(SMOLLM2, "LoRA", None, _CPU_RESOURCES)],
            "estimate": {
                "secondsPerTask": {CPU: _CPU_SECONDS_PER_TASK},
                "reference": {CPU: {name: _CPU_REFERENCE[name] for name in ("model", "maxCompletionLength")}},
            },
        },
    )


_HEADER = (
    "# Generated from src/nodus/trainer/parameters.py by `python -m nodus.trainer.runtimes`; do not edit by hand.\n"
)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Repeat shared values instead of writing anchors, which readers of a catalog file stumble over."""
        return True


def catalog_text(runtime: dict[str, Any]) -> str:
    """The YAML text of a runtime's catalog file."""
    return _HEADER + yaml.dump(runtime, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=118)


def _allowed(parameter: Parameter) -> str:
    if parameter.enum:
        return ", ".join(parameter.enum)
    if parameter.max_properties is not None:
        return f"at most {parameter.max_properties} keys"
    if parameter.minimum is None or parameter.maximum is None:
        return ""
    return f"{_plain(parameter.minimum)} to {_plain(parameter.maximum)}"


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return str(value)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


_NOTES = """\
## What the trainer makes of them

* A step samples `batchSize * gradientAccumulation` completions on each device unless `generationBatchSize` says
  otherwise; both have to be whole groups of `numGenerations`, and there have to be enough training tasks for one batch.
  A `generationBatchSize` above a step's own share spans several updates; checkpoints then wait for its last update.
* `precision: Auto` is fp32 on a CPU. `QLoRA`, `fp16`, FSDP, ZeRO and `flash_attention_2` are refused on a CPU.
* An `InfrastructureFailure` has no reward: the completion is left out of its group's mean and deviation and out of the
  loss and the loss's normaliser. It is never a reward of 0.
* Prompts that are one string become one user message of the model's chat template, with `enable_thinking: false` for
  the templates that know it.
* Metrics are recorded every step; `loggingSteps` governs the log and trackers. With `beta` 0 the KL is measured with
  the adapter off on as many completions as a group has, without gradient; its time is shown apart as `klSeconds`.
* Completions of one group share the computation of their prompt, in sampling and in the loss, on models whose layers
  all have full attention. The loss is TRL's; adapter dropout on the prompt's tokens is then drawn once a group.
  Groups without contrast and with `beta` 0 have a gradient of exactly zero and are not computed.
* `evalSteps` grades the held-out tasks every so many steps; the rows have the phase `Evaluation` and that step.
* With `maxTurns` above 1 the model and the Environment take turns, in training, baseline and evaluation. The tokens a
  model sampled stay as they are; between its replies stands what the chat template puts there. Loss, entropy, lengths
  and KL are of the model's own tokens alone. An episode ends when the Environment ends it, after `maxTurns` replies, or
  where `maxEpisodeTokens` (unset: the model's positions) would not leave a token for the next reply; it is graded as it
  stands. One whose Environment fails on the way has no reward. A step's event then has `turns`, `environmentTokens`,
  `maxTurnsShare`, `maxEpisodeTokensShare` and `environmentFailures`. Keys and values of earlier turns are kept.
* `maxLength` bounds the prompt with one reply; the longest prompt and `maxEpisodeTokens` have to fit the model.
* A task's tools are offered by the chat template; one that has no place for them is refused. Episodes and tasks with
  tools run on replicas of the model (Auto, DDP), not on shards of it (FSDP, ZeRO).
* The same seed on the same CPU and number of threads gives the same adapter, also through a resume.
"""


_ESTIMATES = """\
A dry run multiplies these by the run's steps and tasks. A step with the runtime's defaults takes the seconds of its
accelerator; one of another `batchSize`, `gradientAccumulation`, `maxCompletionLength` or `maxTurns` as much longer as
their product is larger, an evaluated task as `maxCompletionLength` times `maxTurns` is. The CPU's were measured on two
cores, with {reference}.
Runs that succeeded on the installation count instead, where there are any; see
[estimates](../../concepts/training-jobs.md#estimates).
"""


def _reference_words(reference: dict[str, Any]) -> str:
    return ", ".join(f"`{name}` {value}" if name != "model" else str(value) for name, value in reference.items())


def reference_page() -> str:
    """The Markdown reference page of ``nodus/grpo-lora``."""
    runtime = grpo_lora()["spec"]
    rows = [
        (
            p.path,
            p.type,
            _plain(p.default),
            _allowed(p),
            p.description,
            f"`{p.maps_to}`" if "." in p.maps_to else p.maps_to,
        )
        for p in GRPO_LORA
    ]
    presets = [
        (p["model"], p["method"], p.get("quantization", "none"), _resources_words(p["resources"]))
        for p in runtime["presets"]
    ]
    estimates = [
        (accelerator, _plain(value), name)
        for name in ("secondsPerStep", "secondsPerTask")
        for accelerator, value in runtime["estimate"][name].items()
    ]
    lines = [
        "<!-- Generated from src/nodus/trainer/parameters.py by `python -m nodus.trainer.runtimes`. -->",
        "# grpo-lora",
        "",
        "GRPO reinforcement learning with a LoRA adapter over an Environment, graded by the platform.",
        "",
        *_table(
            ("Field", "Value"),
            [
                ("Reference", "nodus/grpo-lora"),
                ("Image", runtime["image"]),
                ("Task", runtime["task"]),
                ("Modes", ", ".join(runtime["modes"])),
                ("Launcher", runtime["launcher"]),
                ("Requires", "model yes, data no, environment yes"),
                ("Checkpoints", "/nodus/state (HFTrainer)"),
            ],
        ),
        "",
        "## Parameters",
        "",
        "Set under `spec.parameters`; the server validates them against this schema, and unset parameters take the",
        "runtime default.",
        "",
        *_table(("Parameter", "Type", "Default", "Allowed", "Description", "Sets"), rows),
        "",
        *_NOTES.splitlines(),
        "",
        "## Outputs",
        "",
        "`outputs` at `/nodus/outputs`: the adapter with its tokenizer under `adapter/` (`model/` for the method",
        "Full), `results.json`, `provenance.json` and `manifest.json` with the sha256 of every file.",
        "",
        "## Presets",
        "",
        *_table(("Model", "Method", "Quantization", "Resources"), presets),
        "",
        f"Default resources: {_resources_words(runtime['defaults']['resources'])}.",
        "",
        "## Estimates",
        "",
        *_table(("Accelerator", "Seconds", "Per"), estimates),
        "",
        *_ESTIMATES.format(reference=_reference_words(_CPU_REFERENCE)).splitlines(),
    ]
    return "\n".join(lines) + "\n"


def _resources_words(resources: dict[str, Any]) -> str:
    if "gpu" in resources:
        return f"{resources['gpu']['count']} x " + " or ".join(resources["gpu"]["type"])
    return f"{resources['cpu']} CPU cores, {resources['memory']}"


def files() -> dict[str, str]:
    """Every generated file: path from the repository's root to text."""
    return {
        "src/nodus/catalog/runtimes/grpo-lora.yaml": catalog_text(grpo_lora()),
        "src/nodus/catalog/runtimes/evaluate.yaml": catalog_text(evaluate()),
        "docs/reference/runtimes/grpo-lora.md": reference_page(),
    }


def main(arguments: list[str]) -> int:
    """Write the files, or with ``--check`` report those that are not current."""
    root = Path(__file__).resolve().parents[3]
    stale = []
    for name, text in files().items():
        path = root / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale and "--check" in arguments:
        sys.stderr.write("not current: " + ", ".join(stale) + "; run python -m nodus.trainer.runtimes\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
