"""Which resources a TrainingJob gets: the runtime's preset, what the user set over it, and what this place has.

Pure; the machine is described by a value that the caller reads from the Offerings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from nodus.core.errors import NodusError
from nodus.core.sizes import quantity
from nodus.server.training.parameters import overlay


@dataclass(frozen=True, slots=True)
class Shape:
    """One offering: a machine that a run can get."""

    name: str
    cpu: Fraction | int
    """Cores."""
    memory_bytes: int
    accelerator: str | None = None
    """Canonical accelerator family, None for a CPU offering."""
    accelerators: int = 0
    price: int = 0
    """Nano-dollars for an hour of the whole machine."""


START_UP = {"p50": "1s", "p90": "3s"}
"""From admission to the command on one's own machine, once it is free."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning or blocking reason of a dry run."""

    code: str
    message: str
    fix: str = ""

    def to_wire(self) -> dict[str, str]:
        """As it stands in `status.estimate`."""
        wire = {"code": self.code, "message": self.message}
        return wire | {"fix": self.fix} if self.fix else wire


@dataclass(frozen=True, slots=True)
class Chosen:
    """Resources of a run, with what is to be said about them."""

    resources: dict[str, Any]
    """Wire form of the Job's `spec.resources`."""
    gpus: int
    """GPUs of the run, 0 on a CPU."""
    shape: Shape | None
    """Offering it would run on; None when there is none."""
    warnings: tuple[Notice, ...] = ()
    blocking: tuple[Notice, ...] = ()
    unknown_types: tuple[str, ...] = ()
    """One sentence for each GPU type that the catalog does not know, with what is near."""


GIB = 1024**3
NO_ACCELERATOR = Notice(
    "NoAccelerator",
    "no accelerator is here: the run uses the CPU, which suits models of a few hundred million parameters",
    "name one under spec.resources.gpu where a machine has it",
)
CPU_MEMORY_BYTES = 8 * GIB
"""Memory of a CPU run that no preset describes, where the machine has that much."""


def choose(
    runtime_spec: Mapping[str, Any],
    *,
    given: Mapping[str, Any] | None,
    model: str,
    method: str,
    shapes: Iterable[Shape],
    canonical: Callable[[str], str] = str,
) -> Chosen:
    """Pick resources: first matching preset, else the runtime's default, with the user's own over them.

    A run that names no GPU, where no offering has one, gets a CPU offering and a warning. A GPU that is named and not
    here is a blocking reason: the run may be created and stays queued.

    Args:
        runtime_spec: spec of the TrainingRuntime.
        given: `spec.resources` of the TrainingJob.
        model: hub repository of the base model, for the presets.
        method: `Full`, `LoRA` or `QLoRA`.
        shapes: the offerings there are.
        canonical: the family that a spelling of an accelerator means; raises NodusError for an unknown one.
    """
    offerings = list(shapes)
    given = given or {}
    named = _gpu(given)
    presets = _matching_presets(runtime_spec, model, method)
    has_gpus = any(shape.accelerators for shape in offerings)
    if named is None and not has_gpus:
        return _on_cpu(presets, given, offerings)
    base = next((preset for preset in presets if _gpu(preset)), None)
    base = base or (runtime_spec.get("defaults") or {}).get("resources") or {}
    resources = overlay(base, given)
    if named is not None and not _count(named):
        resources.pop("gpu", None)
        return _on_cpu(presets, {key: value for key, value in given.items() if key != "gpu"}, offerings)
    gpu = dict(_gpu(resources) or {"count": 1})
    resources["gpu"] = gpu
    return _on_gpu(resources, gpu, offerings, canonical, named=named is not None)


def _on_cpu(presets: list[Mapping[str, Any]], given: Mapping[str, Any], offerings: list[Shape]) -> Chosen:
    shape = max((shape for shape in offerings if not shape.accelerators), key=lambda shape: shape.cpu, default=None)
    preset = next((preset for preset in presets if _gpu(preset) is None), None)
    resources = overlay(_capped(preset or {}, shape), given)
    resources.pop("gpu", None)
    resources.pop("nodes", None)
    warnings: tuple[Notice, ...] = () if given else (NO_ACCELERATOR,)
    if shape is None:
        return Chosen(resources, 0, None, warnings)
    resources.setdefault("cpu", _cores(shape))
    resources.setdefault("memory", f"{max(1, min(CPU_MEMORY_BYTES, int(shape.memory_bytes * 0.7)) // GIB)}Gi")
    return Chosen(resources, 0, shape, warnings, _too_large(resources, shape))


def _capped(preset: Mapping[str, Any], shape: Shape | None) -> dict[str, Any]:
    """A preset is a recommendation: on a smaller machine it takes what there is instead of waiting for ever."""
    capped = dict(preset)
    if shape is not None:
        if "cpu" in capped and quantity(capped["cpu"]) > shape.cpu:
            capped["cpu"] = _cores(shape)
        if "memory" in capped and quantity(capped["memory"]) > shape.memory_bytes:
            capped["memory"] = f"{max(1, shape.memory_bytes // GIB)}Gi"
    return capped


def _too_large(resources: Mapping[str, Any], shape: Shape) -> tuple[Notice, ...]:
    """What the user asks for and no machine here has."""
    found = []
    if quantity(resources["cpu"]) > shape.cpu:
        found.append(f"{resources['cpu']} CPUs are asked for and the largest machine here has {_cores(shape)}")
    if quantity(resources["memory"]) > shape.memory_bytes:
        here = f"{shape.memory_bytes // GIB}Gi"
        found.append(f"{resources['memory']} of memory are asked for and the largest machine here has {here}")
    return tuple(Notice("ResourcesUnavailable", words, "ask for less under spec.resources") for words in found)


def _cores(shape: Shape) -> int | float:
    return int(shape.cpu) if shape.cpu == int(shape.cpu) else float(shape.cpu)


def _on_gpu(
    resources: dict[str, Any],
    gpu: Mapping[str, Any],
    offerings: list[Shape],
    canonical: Callable[[str], str],
    *,
    named: bool,
) -> Chosen:
    count = _count(gpu)
    wanted, unknown = [], []
    for kind in gpu.get("type") or []:
        try:
            wanted.append(canonical(str(kind)))
        except NodusError as error:
            unknown.append(error.message)
    if unknown and named:
        return Chosen(resources, count, None, unknown_types=tuple(unknown))
    fits = [shape for shape in offerings if shape.accelerators >= count and (not wanted or shape.accelerator in wanted)]
    if not fits and not named:
        # The preset's types are a recommendation; another accelerator that is here is better than none.
        fits = [shape for shape in offerings if shape.accelerators >= count]
        if fits:
            resources["gpu"] = {"type": [fits[0].accelerator], "count": count}
    if fits:
        return Chosen(resources, count, fits[0])
    asked = " or ".join(gpu.get("type") or ["any GPU"])
    here = ", ".join(
        sorted({f"{shape.accelerators} x {shape.accelerator}" for shape in offerings if shape.accelerators})
    )
    reason = Notice(
        "AcceleratorUnavailable",
        f"{count} x {asked} is not here; this place has {here or 'no accelerator'}",
        "leave spec.resources.gpu out to use what is here, or wait until such a machine joins",
    )
    return Chosen(resources, count, None, blocking=(reason,))


def _matching_presets(runtime_spec: Mapping[str, Any], model: str, method: str) -> list[Mapping[str, Any]]:
    quantization = "nf4" if method == "QLoRA" else "none"
    found = []
    for preset in runtime_spec.get("presets") or []:
        declared = preset.get("quantization") or "none"
        same = preset["model"].lower() == model.lower() and preset["method"] == method
        if same and declared == quantization:
            found.append(preset["resources"])
    return found


def _gpu(resources: Mapping[str, Any]) -> Mapping[str, Any] | None:
    value = resources.get("gpu")
    if isinstance(value, str):
        kind, _, count = value.partition(":")
        return {"type": [kind], "count": int(count) if count.isdigit() else 1}
    return value if isinstance(value, Mapping) else None


def _count(gpu: Mapping[str, Any]) -> int:
    return int(gpu.get("count", 1))
