"""Rules of a TrainingJob that no JSON Schema can state: batches that divide, devices a setting needs, task counts.

Pure functions from merged parameters and chosen resources to causes, each with the path of the field to change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from nodus.core.errors import Cause
from nodus.server.training.parameters import PARAMETERS_PATH, lookup


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
