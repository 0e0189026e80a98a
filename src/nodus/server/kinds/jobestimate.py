"""What a Job would take: where it would run, what keeps it from starting, what it costs, what has no effect here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodus.core.clock import parse_rfc3339
from nodus.core.durations import parse_duration
from nodus.core.kinds.job import JobSpec
from nodus.core.sizes import quantity
from nodus.server import accelerators
from nodus.server.training.resources import START_UP, Shape

if TYPE_CHECKING:
    from datetime import datetime

FREE = "0.00"
"""Runs on one's own machine cost nothing."""


def estimate(spec: JobSpec, shapes: list[Shape], now: datetime) -> dict[str, Any]:
    """Return ``status.estimate`` of a Job.

    Args:
        spec: Its spec.
        shapes: The machines there are.
        now: The present, for the time to be done by.
    """
    fitting = [shape for shape in shapes if not _obstacles(spec, shape)]
    found: dict[str, Any] = {
        "costUSD": {"p50": FREE, "p90": FREE},
        "holdUSD": FREE,
        "startup": {"cold": dict(START_UP), "warm": dict(START_UP)},
        "topology": {"nodes": 1, "gpusPerNode": gpu_count(spec)},
        "warnings": [{"code": code, "message": message} for code, message in _warnings(spec, now)],
        "blockingReasons": [] if fitting else _blocking(spec, shapes),
    }
    if spec.expected_duration is not None:
        found["duration"] = {"p50": spec.expected_duration, "p90": spec.expected_duration}
    if fitting:
        found["rateUSDPerHour"] = FREE
        found["placementPreview"] = {"offering": fitting[0].name, "regionClass": "local", "interruptible": False}
    return found


def gpu_count(spec: JobSpec) -> int:
    """GPUs that a run gets: those of its resources, else the total of its gang."""
    asked = spec.resources.gpu.count if spec.resources is not None and spec.resources.gpu is not None else 0
    return asked or (spec.distributed.total_gpus or 0 if spec.distributed is not None else 0)


def _obstacles(spec: JobSpec, shape: Shape) -> list[str]:
    """What of a request a machine does not have, as parts of a sentence."""
    wanted, found = spec.resources, []
    if spec.placement is not None and spec.placement.offerings and shape.name not in spec.placement.offerings:
        found.append(f"the name {' or '.join(spec.placement.offerings)}")
    if wanted is None:
        return found
    if quantity(wanted.cpu or 1) > shape.cpu:
        found.append(f"{wanted.cpu} CPUs (it has {shape.cpu:g})")
    if quantity(wanted.memory or "1Gi") > shape.memory_bytes:
        found.append(f"{wanted.memory} of memory (it has {shape.memory_bytes >> 30}Gi)")
    gpu = wanted.gpu
    if gpu is not None and gpu.count and (shape.accelerators < gpu.count or not _accepts(gpu.type, shape)):
        found.append(f"{gpu.count} x {' or '.join(gpu.type) or 'any GPU'}")
    return found


def _accepts(types: list[str], shape: Shape) -> bool:
    return not types or shape.accelerator in {accelerators.family_of(spelling) for spelling in types}


def _blocking(spec: JobSpec, shapes: list[Shape]) -> list[dict[str, str]]:
    nearest = min((_obstacles(spec, shape) for shape in shapes), key=len, default=["a machine"])
    message = f"no machine here has {', '.join(nearest)}; the Job would stay Queued"
    return [{"code": "ResourcesUnavailable", "message": message, "fix": "Ask for less under spec.resources."}]


def _warnings(spec: JobSpec, now: datetime) -> list[tuple[str, str]]:
    """Say of everything that changes nothing on one machine that it does."""
    found = []
    placement = spec.placement
    idle = [
        f"spec.placement.{name}"
        for name, given in (
            ("interruptible", placement.interruptible),
            ("regions", placement.regions),
            ("profile", placement.profile),
        )
        if given is not None
    ] if placement is not None else []  # fmt: skip
    if idle:
        found.append(("PlacementIgnored", f"{', '.join(idle)} changes nothing: all runs are on this machine"))
    if spec.resources is not None and spec.resources.disk is not None:
        message = f"spec.resources.disk of {spec.resources.disk} is no limit here: runs share the machine's disk"
        found.append(("DiskNotLimited", message))
    if spec.recovery is not None and spec.recovery.checkpoint is not None and spec.recovery.checkpoint.interval:
        message = "spec.recovery.checkpoint.interval changes nothing: what is written to a kept directory is kept"
        found.append(("CheckpointIntervalIgnored", message))
    if spec.complete_by_time is not None:
        left_s = (parse_rfc3339(spec.complete_by_time) - now).total_seconds()
        if spec.expected_duration is not None and parse_duration(spec.expected_duration) > left_s:
            message = f"it would end after {spec.complete_by_time}: {spec.expected_duration} are expected"
            found.append(("MissesCompleteByTime", message))
    return found
