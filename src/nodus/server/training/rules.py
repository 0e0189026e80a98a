"""Rules of a TrainingJob that no JSON Schema can state: batches that divide, devices a setting needs, task counts.

Pure functions from merged parameters and chosen resources to causes, each with the path of the field to change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from nodus.core.durations import parse_duration
from nodus.core.errors import Cause
from nodus.server.training.parameters import PARAMETERS_PATH, lookup

LONGEST_S = 366 * 24 * 3600.0


def duration_causes(spec: Mapping[str, Any]) -> Iterator[Cause]:
    """Bounds on `expectedDuration`, which the cost is reckoned from."""
    text = spec.get("expectedDuration")
    if isinstance(text, str) and not 0 < parse_duration(text) <= LONGEST_S:
        yield Cause("spec.expectedDuration", "FieldValueInvalid", f"{text[:40]!r} is not between 0 and a year")


def batch_causes(parameters: Mapping[str, Any], devices: int) -> Iterator[Cause]:
    """Faults of the batch sizes of a group-relative run: every generation batch must hold whole groups.

    Args:
        parameters: merged parameters; runtimes without `numGenerations` have no such rule.
        devices: processes that sample, one a GPU (1 on a CPU).
    """
    group = parameters.get("numGenerations")
    if not isinstance(group, int):
        return
    batch = int(parameters.get("batchSize", 1)) * devices
    accumulation = int(parameters.get("gradientAccumulation", 1))
    words = f"batchSize {parameters.get('batchSize', 1)} x {devices} device{'s' if devices > 1 else ''}"
    generation = parameters.get("generationBatchSize")
    if generation is None:
        total = batch * accumulation
        if total % group:
            needed = group // math.gcd(group, batch)
            yield Cause(
                f"{PARAMETERS_PATH}.gradientAccumulation",
                "FieldValueInvalid",
                f"{words} x gradientAccumulation {accumulation} = {total} completions a step, not a multiple of "
                f"numGenerations {group}; set gradientAccumulation to {_round_up(accumulation, needed)}",
            )
        return
    path = f"{PARAMETERS_PATH}.generationBatchSize"
    if generation % batch:
        yield Cause(path, "FieldValueInvalid", f"{generation} does not divide into batches of {words} = {batch}")
    if generation % group:
        yield Cause(path, "FieldValueInvalid", f"{generation} is not a multiple of numGenerations {group}")


def device_causes(parameters: Mapping[str, Any], gpus: int) -> Iterator[Cause]:
    """Settings that only a GPU can do, on a run without one."""
    if gpus:
        return
    needs = (
        ("method", ("QLoRA",), "use LoRA"),
        ("precision", ("fp16",), "use Auto or fp32"),
        ("attention", ("flash_attention_2",), "use sdpa"),
        ("distributed.strategy", ("FSDP", "ZeRO1", "ZeRO2", "ZeRO3"), "use Auto"),
    )
    for name, values, instead in needs:
        value = lookup(parameters, name)
        if value in values:
            yield Cause(
                f"{PARAMETERS_PATH}.{name}",
                "FieldValueInvalid",
                f"{value} needs a GPU and this run has none; {instead}, or name one under spec.resources.gpu",
            )


def length_causes(parameters: Mapping[str, Any]) -> Iterator[Cause]:
    """Lengths that leave no room for a prompt."""
    longest, reply = parameters.get("maxLength"), parameters.get("maxCompletionLength")
    if isinstance(longest, int) and isinstance(reply, int):
        reply = min(reply, parameters.get("maxEpisodeTokens") or reply)
        if longest <= reply:
            yield Cause(
                f"{PARAMETERS_PATH}.maxLength",
                "FieldValueInvalid",
                f"{longest} leaves no room for a prompt beside {reply} completion tokens; raise it",
            )


def training_causes(parameters: Mapping[str, Any]) -> Iterator[Cause]:
    """Settings of a group-relative run from which nothing could be learned."""
    if "numGenerations" not in parameters:
        return
    if parameters.get("steps") == 0:
        words = "0 steps train nothing; use -1 for epochs, or at least 1"
        yield Cause(f"{PARAMETERS_PATH}.steps", "FieldValueInvalid", words)
    if lookup(parameters, "sampling.temperature") == 0:
        words = "0 samples the same completion every time, which gives a group no contrast; use more than 0"
        yield Cause(f"{PARAMETERS_PATH}.sampling.temperature", "FieldValueInvalid", words)
    modules = lookup(parameters, "lora.targetModules")
    named = isinstance(modules, list) and modules and all(isinstance(name, str) and name for name in modules)
    if modules is not None and not named and not (isinstance(modules, str) and modules):
        words = f"{modules!r} is neither a list of module names nor all-linear"
        yield Cause(f"{PARAMETERS_PATH}.lora.targetModules", "FieldValueInvalid", words)


def prompt_causes(parameters: Mapping[str, Any], devices: int, train_tasks: int) -> Iterator[Cause]:
    """Fewer training tasks than one generation batch takes."""
    group = parameters.get("numGenerations")
    if not isinstance(group, int):
        return
    total = parameters.get("generationBatchSize")
    if total is None:
        total = int(parameters.get("batchSize", 1)) * int(parameters.get("gradientAccumulation", 1)) * devices
    if train_tasks < total // group:
        yield Cause(
            "spec.environment.trainTasks",
            "FieldValueInvalid",
            f"{train_tasks} tasks are fewer than the {total // group} of one generation batch "
            f"({total} completions in groups of {group})",
        )


def node_causes(spec: Mapping[str, Any], runtime: str, task: str) -> Iterator[Cause]:
    """More than one node on a runtime that trains on one."""
    if task != "GRPO":
        return
    for path, nodes in (
        ("spec.resources.nodes", lookup(spec, "resources.nodes")),
        ("spec.distributed.nodes", lookup(spec, "distributed.nodes")),
    ):
        if isinstance(nodes, int) and nodes > 1:
            yield Cause(path, "FieldValueNotSupported", f"{runtime} runs on one node; set it to 1 or leave it out")


def count_causes(wanted: Mapping[str, int | None], available: Mapping[str, int], filtered: bool) -> Iterator[Cause]:
    """Task counts above what a split has.

    Args:
        wanted: `trainTasks` and `heldOutTasks` as asked for.
        available: sizes of the splits `train` and `test` after `taskFilter`; a split that is missing is not checked.
        filtered: whether a `taskFilter` cut the sizes down, for the message.
    """
    after = " after taskFilter" if filtered else ""
    for name, split in (("trainTasks", "train"), ("heldOutTasks", "test")):
        count = wanted.get(name)
        if count is not None and split in available and count > available[split]:
            yield Cause(
                f"spec.environment.{name}",
                "FieldValueInvalid",
                f"{count} is above the {available[split]} tasks of the {split} split{after}",
            )


def evaluation_causes(spec: Mapping[str, Any]) -> Iterator[Cause]:
    """An evaluation that is asked for without held-out tasks to evaluate on."""
    if lookup(spec, "environment.heldOutTasks") or spec.get("mode") == "Evaluate":
        return
    for name in ("baseline", "final"):
        if lookup(spec, f"evaluation.{name}"):
            yield Cause(
                f"spec.evaluation.{name}", "FieldValueInvalid", "needs held-out tasks: set environment.heldOutTasks"
            )


def _round_up(value: int, step: int) -> int:
    return step * math.ceil(value / step)
