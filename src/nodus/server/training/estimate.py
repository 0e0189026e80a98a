"""What a TrainingJob would take: its steps and tasks times their seconds, on the slowest accelerator it may get.

Seconds come from runs that succeeded on this installation, where there are any, and from the runtime's own figures
otherwise; both are scaled to the work of this run. Exact arithmetic: no float touches money.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from nodus.core.clock import rfc3339
from nodus.core.durations import format_duration, parse_duration
from nodus.core.money import format_usd
from nodus.server import accelerators
from nodus.server.billing.estimates import (
    NOTHING,
    SECOND_US,
    Quote,
    Terms,
    Times,
    cap_of,
    rate_by_book,
    rate_for,
    validity,
)
from nodus.server.billing.metering import amount_of
from nodus.server.store.measurements import Key, Recent
from nodus.server.training import measuring, parameters
from nodus.server.training.measuring import CPU, ONE_IF_UNSET, STEP_WORK, TASK_WORK
from nodus.server.training.resources import START_UP, Notice

if TYPE_CHECKING:
    from nodus.server.training.compile import RuntimePin
    from nodus.server.training.plan import Plan
    from nodus.server.training.resources import Chosen

HIGH = Fraction(3, 2)
"""The high estimate over the median one, where there is no spread of several runs to tell."""
LEAST_HIGH = Fraction(11, 10)
ENOUGH_RUNS = 5
"""Runs that tell their spread."""
NO_RUNS = Recent()


class Find(Protocol):
    """Finds what runs took here."""

    def runs(self, key: Key) -> Recent:
        """What runs with this key took."""
        ...

    def grading(self, environment: str) -> Sequence[int]:
        """Microseconds that graders of the environment of this digest worked on a completion, of each run."""
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a run."""

    steps: int
    tasks: int
    """Evaluated tasks, over all passes."""
    completions: int
    """Completions that are graded, those of the steps and one for each task."""
    parameters: Mapping[str, Any]
    """Merged."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a step and a task of this run take on one accelerator, in microseconds; None where it is not known."""

    accelerator: str
    step_us: Fraction | None
    task_us: Fraction | None
    startup_us: Fraction = Fraction(0)
    high: Fraction = HIGH
    recent: Recent = NO_RUNS
    """The runs here that they were measured on; none where they are the runtime's."""
    model: str | None = None
    """The model that the runtime's figures were measured with."""

    def total(self, load: Load) -> Fraction | None:
        """Return the time of a run; None where its steps' is not known."""
        if load.steps and self.step_us is None:
            return None
        return load.steps * (self.step_us or 0) + load.tasks * (self.task_us or 0) + self.startup_us


def estimate(plan: Plan, spec: Mapping[str, Any], terms: Terms, project: str, find: Find) -> dict[str, Any]:
    """Return ``status.estimate`` of a TrainingJob.

    Args:
        plan: its spec, compiled.
        spec: its spec in wire form.
        terms: prices, the present, and the limits that it would be paid under.
        project: its project.
        find: what runs took here.
    """
    warnings, blocking = list(plan.warnings), list(plan.blocking)
    result: dict[str, Any] = {}
    if plan.compiled is not None and plan.runtime is not None and plan.chosen is not None:
        load = _load(plan.compiled.params, max(1, plan.chosen.gpus))
        figures = _slowest(plan, load, project, find)
        expected = spec.get("expectedDuration")
        times = _expected(expected) if isinstance(expected, str) else _times(figures, load)
        startup_us = 0 if expected else math.ceil(figures.startup_us)
        graded_us = find.grading(plan.environment.digest) if plan.environment is not None else ()
        quote = Quote(
            _rate(plan.chosen, terms),
            times,
            cap_of(spec),
            pace=terms.pace,
            startup_us=startup_us,
            grading=_grading(terms.prices.grading, graded_us, load),
        )
        result = _work_to_wire(load, figures) | _place_to_wire(plan.chosen, spec) | quote.to_wire()
        if times is not None and times.p90:
            result["duration"] = {name: _duration(time_us) for name, time_us in times._asdict().items()}
        if not expected:
            warnings += _gaps(plan, load, figures)
        warnings += quote.warnings()
        if terms.prices.grading and load.completions and not graded_us:
            price = format_usd(terms.prices.grading)
            message = f"grading is not in the estimate; a grader at work costs ${price} an hour"
            warnings.append(Notice("GradingNotEstimated", message))
        blocking += quote.blocking(terms.limits)
    result["warnings"] = [notice.to_wire() for notice in warnings]
    result["blockingReasons"] = [notice.to_wire() for notice in blocking]
    return result | validity(terms)


def planned_steps(params: Mapping[str, Any], devices: int) -> int:
    """Optimizer steps of a run: `steps`, or for -1 the epochs over its tasks in groups; 0 for an evaluation."""
    if params.get("mode") != "Train":
        return 0
    merged = params["parameters"]
    steps = merged.get("steps", -1)
    if isinstance(steps, int) and steps >= 0:
        return steps
    completions = measuring.work(merged, ("batchSize", "gradientAccumulation")) * devices
    prompts = max(1, completions // measuring.work(merged, ("numGenerations",)))
    tasks = int((params.get("environment") or {}).get("trainTasks") or 0)
    epochs = merged.get("epochs", 1)
    return math.ceil(float(epochs) * tasks / prompts) if isinstance(epochs, int | float) else 0


def _load(params: Mapping[str, Any], devices: int) -> Load:
    """The steps, and the held-out tasks of the baseline, the final evaluation and the validations between steps."""
    steps = planned_steps(params, devices)
    passes = params.get("evaluation") or {}
    tasks = int((params.get("environment") or {}).get("heldOutTasks") or 0)
    times = int(bool(passes.get("baseline"))) + int(bool(passes.get("final")))
    every = params["parameters"].get("evalSteps")
    if steps and isinstance(every, int) and every > 0:
        times += (steps - 1) // every
    graded = tasks * times if params.get("environment") else 0
    if steps and params.get("environment"):
        graded += steps * devices * measuring.work(params["parameters"], ("batchSize", "gradientAccumulation"))
    return Load(steps, tasks * times, graded, params["parameters"])


def _slowest(plan: Plan, load: Load, project: str, find: Find) -> Figures:
    """The figures of the accelerator on which the run takes longest, of those it may get and that have figures."""
    assert plan.runtime is not None and plan.chosen is not None
    runtime = plan.runtime
    model = measuring.model_key(project, plan.model.repo, plan.model.volume) if plan.model else ""
    found = []
    for accelerator in _allowed(plan.chosen, runtime):
        key = Key(measuring.runtime_key(project, runtime.name), model, accelerator)
        declared = _declared(runtime, accelerator, load)
        found.append(_measured(declared, find.runs(key), load))
    known = [figures for figures in found if figures.total(load) is not None]
    return max(known, key=lambda figures: figures.total(load) or 0, default=found[0])


def _allowed(chosen: Chosen, runtime: RuntimePin) -> list[str]:
    """The accelerators that a run may get: the one here, or where there is none, all that would do; at least one."""
    if not chosen.gpus:
        return [CPU]
    if chosen.shape is not None and chosen.shape.accelerator:
        return [chosen.shape.accelerator]
    known = (runtime.spec.get("estimate") or {}).get("secondsPerStep") or {}
    return _wanted(chosen) or [family for family in known if family != CPU] or ["GPU"]


def _wanted(chosen: Chosen) -> list[str]:
    """The families that a run names; none where any would do."""
    gpu = chosen.resources.get("gpu")
    types = gpu.get("type") if isinstance(gpu, Mapping) else None
    return list(dict.fromkeys(accelerators.family_of(str(kind)) for kind in types or ()))


def _declared(runtime: RuntimePin, accelerator: str, load: Load) -> Figures:
    """The runtime's figures, scaled from the run they were measured at; its defaults where it does not say."""
    figures = runtime.spec.get("estimate") or {}
    reference = (figures.get("reference") or {}).get(accelerator) or {}
    usual = parameters.defaults_of(runtime.spec) | reference
    step, task = ((figures.get(name) or {}).get(accelerator) for name in ("secondsPerStep", "secondsPerTask"))
    return Figures(
        accelerator,
        None if step is None else _exact_us(step) * _scale(load.parameters, usual, STEP_WORK),
        None if task is None else _exact_us(task) * _scale(load.parameters, usual, TASK_WORK),
        model=reference.get("model"),
    )


def _scale(merged: Mapping[str, Any], usual: Mapping[str, Any], names: Sequence[str]) -> Fraction:
    """How many times the work is that of the reference, by what both of them say."""
    both = [name for name in names if name in merged and (name in usual or name in ONE_IF_UNSET)]
    return Fraction(measuring.work(merged, both), measuring.work(usual, both))


def _measured(declared: Figures, recent: Recent, load: Load) -> Figures:
    """The figures of runs here, scaled to this run's work, over those declared."""
    if not recent.runs:
        return declared
    step_work, task_work = measuring.work(load.parameters, STEP_WORK), measuring.work(load.parameters, TASK_WORK)
    steps = [Fraction(run.step_us * step_work, run.step_work) for run in recent.runs if run.step_us is not None]
    tasks = [Fraction(run.task_us * task_work, run.task_work) for run in recent.runs if run.task_us is not None]
    startups = [Fraction(run.startup_us) for run in recent.runs if run.startup_us is not None]
    return Figures(
        declared.accelerator,
        median(steps) if steps else declared.step_us,
        median(tasks) if tasks else declared.task_us,
        median(startups) if startups else Fraction(0),
        _spread(steps or tasks),
        recent,
    )


def _spread(values: Sequence[Fraction]) -> Fraction:
    """The 90th percentile over the median."""
    middle = median(values) if values else Fraction(0)
    if len(values) < ENOUGH_RUNS or not middle:
        return HIGH
    return max(LEAST_HIGH, sorted(values)[math.ceil(len(values) * 0.9) - 1] / middle)


def _times(figures: Figures, load: Load) -> Times | None:
    total = figures.total(load)
    return None if total is None else Times(math.ceil(total), math.ceil(total * figures.high))


def _expected(text: str) -> Times:
    expected_us = round(parse_duration(text) * SECOND_US)
    return Times(expected_us, expected_us)


def _exact_us(seconds: Any) -> Fraction:
    """Microseconds of a number of seconds as it was written, without what a float makes of it."""
    return Fraction(str(seconds)) * SECOND_US


def _rate(chosen: Chosen, terms: Terms) -> int:
    cpu = chosen.resources.get("cpu") or 1
    if chosen.shape is not None:
        return rate_for(chosen.shape, cpu, chosen.gpus)
    return rate_by_book(terms.prices, _wanted(chosen), cpu, chosen.gpus)


def _work_to_wire(load: Load, figures: Figures) -> dict[str, Any]:
    """The factors of the estimate."""
    wire: dict[str, Any] = {"accelerator": figures.accelerator}
    if load.steps:
        wire["steps"] = load.steps
        if figures.step_us is not None:
            wire["secondsPerStep"] = _seconds(figures.step_us)
    if load.tasks:
        wire["evaluatedTasks"] = load.tasks
        if figures.task_us is not None:
            wire["secondsPerTask"] = _seconds(figures.task_us)
    if figures.recent.time is not None:
        wire["measured"] = {"time": rfc3339(figures.recent.time), "runs": len(figures.recent.runs)}
    return wire


def _place_to_wire(chosen: Chosen, spec: Mapping[str, Any]) -> dict[str, Any]:
    nodes = int(parameters.lookup(spec, "resources.nodes") or 1)
    wire: dict[str, Any] = {"topology": {"nodes": nodes, "gpusPerNode": chosen.gpus}}
    if chosen.shape is not None:
        wire["placementPreview"] = {"offering": chosen.shape.name, "regionClass": "local", "interruptible": False}
        wire["startup"] = {"cold": dict(START_UP), "warm": dict(START_UP)}
    return wire


def _gaps(plan: Plan, load: Load, figures: Figures) -> Iterator[Notice]:
    """What of the time is a guess, or not in it."""
    where = "a CPU" if figures.accelerator == CPU else f"the {figures.accelerator}"
    fix = "set spec.expectedDuration; the first run that succeeds here is measured, and later estimates use its time"
    if load.steps and figures.step_us is None:
        yield Notice("StepsNotEstimated", f"the time of a step on {where} is not known yet", fix)
    if load.tasks and figures.task_us is None:
        message = f"the time of {load.tasks} evaluated tasks on {where} is not known yet and not in the estimate"
        yield Notice("EvaluationNotEstimated", message, fix)
    repo = plan.model.repo if plan.model is not None else ""
    if figures.model is not None and repo.lower() != figures.model.lower() and (load.steps or load.tasks):
        message = f"the times are those of {figures.model} on {where}; {repo or 'this model'} may take more or less"
        yield Notice("ModelNotMeasured", message, fix)


def _grading(price: int, graded_us: Sequence[int], load: Load) -> Times:
    """What graders cost in nano-dollars, by what they worked on a completion in runs here."""
    if not price or not graded_us:
        return NOTHING
    time_us = load.completions * Fraction(median(graded_us))
    return Times(amount_of(price, math.ceil(time_us)), amount_of(price, math.ceil(time_us * HIGH)))


def _duration(time_us: int) -> str:
    return format_duration(math.ceil(Fraction(time_us, SECOND_US)))


def _seconds(time_us: Fraction) -> float:
    return float(round(time_us / SECOND_US, 6))
