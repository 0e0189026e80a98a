"""What a Job would take: where it would run, what keeps it from starting, what it costs, what has no effect here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nodus.core.clock import parse_rfc3339
from nodus.core.durations import format_duration, parse_duration
from nodus.core.kinds.job import JobSpec
from nodus.core.money import parse_usd
from nodus.core.sizes import quantity
from nodus.server import accelerators
from nodus.server.billing.estimates import SECOND_US, Quote, Terms, Times, rate_by_book, rate_for, share_of, validity
from nodus.server.controllers.jobslots import DEFAULT_PARALLELISM
from nodus.server.controllers.memberspec import DEFAULT_CPU
from nodus.server.training.resources import START_UP, Notice, Shape

if TYPE_CHECKING:
    from datetime import datetime


def estimate(spec: JobSpec, shapes: list[Shape], terms: Terms, *, open_ended: bool = False) -> dict[str, Any]:
    """Return ``status.estimate`` of a Job.

    Args:
        spec: Its spec.
        shapes: The machines there are.
        terms: Prices, the present, and the limits that it would be paid under.
        open_ended: It runs until somebody stops it: that nobody knows for how long is no warning.
    """
    shape = choose_shape(spec, shapes)
    quote = _quote(spec, shape, terms)
    found: dict[str, Any] = quote.to_wire() | {
        "startup": {"cold": dict(START_UP), "warm": dict(START_UP)},
        "topology": {"nodes": 1, "gpusPerNode": gpu_count(spec)},
    }
    if shape is not None:
        found["placementPreview"] = {"offering": shape.name, "regionClass": "local", "interruptible": False}
    blocking = [*([] if shape is not None else [_unplaced(spec, shapes)]), *quote.blocking(terms.limits)]
    warnings = [*_warnings(spec, terms.now), *([] if open_ended else quote.warnings())]
    if spec.expected_duration is not None:
        found["duration"] = dict.fromkeys(("p50", "p90"), _whole(spec.expected_duration, quote))
    found["warnings"] = [notice.to_wire() for notice in warnings]
    found["blockingReasons"] = [notice.to_wire() for notice in blocking]
    return found | validity(terms)


def choose_shape(spec: JobSpec, shapes: list[Shape]) -> Shape | None:
    """Return the machine that a Job would run on, one without accelerators if it asks for none; None if none fits."""
    fitting = [shape for shape in shapes if not _obstacles(spec, shape)]
    if not gpu_count(spec):
        fitting.sort(key=lambda shape: bool(shape.accelerators))
    return fitting[0] if fitting else None


def gpu_count(spec: JobSpec) -> int:
    """GPUs that a run gets: those of its resources, else the total of its gang."""
    asked = spec.resources.gpu.count if spec.resources is not None and spec.resources.gpu is not None else 0
    return asked or (spec.distributed.total_gpus or 0 if spec.distributed is not None else 0)


def _quote(spec: JobSpec, shape: Shape | None, terms: Terms) -> Quote:
    times = None
    if spec.expected_duration is not None:
        expected_us = round(parse_duration(spec.expected_duration) * SECOND_US)
        times = Times(expected_us, expected_us)
    cpu, gpus = _cpu(spec), gpu_count(spec)
    return Quote(
        rate=rate_by_book(terms.prices, _families(spec), cpu, gpus) if shape is None else rate_for(shape, cpu, gpus),
        times=times,
        cap=None if spec.max_cost_usd is None else parse_usd(spec.max_cost_usd),
        members=spec.completions or 1,
        at_once=_at_once(spec, shape),
        gang=spec.distributed is not None,
        pace=terms.pace,
    )


def _whole(each: str, quote: Quote) -> str:
    """How long all indexes take, of which some run at once."""
    rounds = -(-quote.members // quote.at_once)
    return each if rounds == 1 else format_duration(rounds * parse_duration(each))


def _cpu(spec: JobSpec) -> int | float | str:
    return (spec.resources.cpu if spec.resources is not None else None) or int(DEFAULT_CPU)


def _families(spec: JobSpec) -> list[str]:
    gpu = spec.resources.gpu if spec.resources is not None else None
    return [accelerators.family_of(spelling) for spelling in gpu.type] if gpu is not None else []


def _at_once(spec: JobSpec, shape: Shape | None) -> int:
    """How many indexes run at the same time: as many as are wished for and have room."""
    wished = min(spec.completions or 1, spec.parallelism or DEFAULT_PARALLELISM)
    if wished == 1 or shape is None:
        return wished
    return max(1, min(wished, int(1 / share_of(shape, _cpu(spec), gpu_count(spec)))))


def _obstacles(spec: JobSpec, shape: Shape) -> list[str]:
    """What of a request a machine does not have, as parts of a sentence."""
    wanted, found = spec.resources, []
    if spec.placement is not None and spec.placement.offerings and shape.name not in spec.placement.offerings:
        found.append(f"the name {' or '.join(spec.placement.offerings)}")
    if wanted is None:
        return found
    if quantity(wanted.cpu or 1) > shape.cpu:
        found.append(f"{wanted.cpu} CPUs (it has {float(shape.cpu):g})")
    if quantity(wanted.memory or "1Gi") > shape.memory_bytes:
        found.append(f"{wanted.memory} of memory (it has {shape.memory_bytes >> 30}Gi)")
    gpu = wanted.gpu
    if gpu is not None and gpu.count and (shape.accelerators < gpu.count or not _accepts(gpu.type, shape)):
        found.append(f"{gpu.count} x {' or '.join(gpu.type) or 'any GPU'}")
    return found


def _accepts(types: list[str], shape: Shape) -> bool:
    return not types or shape.accelerator in {accelerators.family_of(spelling) for spelling in types}


def _unplaced(spec: JobSpec, shapes: list[Shape]) -> Notice:
    nearest = min((_obstacles(spec, shape) for shape in shapes), key=len, default=["a machine"])
    message = f"no machine here has {', '.join(nearest)}; the Job would stay Queued"
    return Notice("ResourcesUnavailable", message, "Ask for less under spec.resources.")


def _warnings(spec: JobSpec, now: datetime) -> Iterator[Notice]:
    """Say of everything that changes nothing on one machine that it does."""
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
        yield Notice("PlacementIgnored", f"{', '.join(idle)} changes nothing: all runs are on this machine")
    if spec.resources is not None and spec.resources.disk is not None:
        message = f"spec.resources.disk of {spec.resources.disk} is no limit here: runs share the machine's disk"
        yield Notice("DiskNotLimited", message)
    if spec.recovery is not None and spec.recovery.checkpoint is not None and spec.recovery.checkpoint.interval:
        message = "spec.recovery.checkpoint.interval changes nothing: what is written to a kept directory is kept"
        yield Notice("CheckpointIntervalIgnored", message)
    if spec.complete_by_time is not None:
        left_s = (parse_rfc3339(spec.complete_by_time) - now).total_seconds()
        if spec.expected_duration is not None and parse_duration(spec.expected_duration) > left_s:
            message = f"it would end after {spec.complete_by_time}: {spec.expected_duration} are expected"
            yield Notice("MissesCompleteByTime", message)
