"""What a finished run took, read from the times of its task events: its steps, its evaluated tasks, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from nodus.core.clock import parse_rfc3339
from nodus.core.kinds import JOB
from nodus.server import accelerators
from nodus.server.store import objects, taskevents
from nodus.server.store.measurements import Key, Measurement
from nodus.server.training import lookups, parameters
from nodus.server.training.references import BadReference

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object
    from nodus.server.store.taskevents import Moment, Pass, VerdictRow
    from nodus.server.training.resources import Shape

CPU = "CPU"
"""The accelerator of a run without one, in runtimes' figures and in measurements."""
OUTLIER = 10
"""A step counts at most so many times the median one: the run was paused meanwhile, or the server away."""
GRADED = 1000
"""The newest verdicts tell what a grader's work on a completion takes."""
SECOND_US = 1_000_000
STEP_WORK = ("batchSize", "gradientAccumulation", "maxCompletionLength", "maxTurns")
"""Parameters that the time of a step is taken to be proportional to."""
TASK_WORK = ("maxCompletionLength", "maxTurns")
"""Parameters that the time of an evaluated task is taken to be proportional to."""
ONE_IF_UNSET = frozenset({"maxTurns"})
"""Those of them that are 1 wherever they are unset."""


class Finished(NamedTuple):
    """What is kept of a run that succeeded."""

    key: Key
    measurement: Measurement
    environment: str | None
    """Digest of its environment."""


class Took(NamedTuple):
    """What a run took, in microseconds."""

    step_us: int | None
    task_us: int | None
    startup_us: int | None


def of_run(conn: Connection, obj: Object) -> Finished | None:
    """Tell what a TrainingJob that succeeded took; None where it reported too little.

    Args:
        conn: a transaction.
        obj: the TrainingJob.
    """
    try:
        runtime = lookups.runtime(conn, str(obj.project), str(obj.spec.get("runtime")))
    except BadReference:
        return None  # It was deleted while the run went on.
    job = objects.find(conn, JOB, obj.project, obj.name)
    moments, passes = taskevents.moments(conn, obj.uid), taskevents.passes(conn, obj.uid)
    took = measure(moments, passes, None if job is None else ran_us(job.status))
    if took.step_us is None and took.task_us is None:
        return None
    merged = parameters.merge(runtime.spec, obj.spec.get("parameters"))
    pinned = obj.status.get("pinned") or {}
    model = pinned.get("model") or {}
    key = Key(
        runtime_key(str(obj.project), runtime.name),
        model_key(str(obj.project), model.get("repo"), model.get("volume")),
        _accelerator(job, lookups.shapes(conn)),
    )
    step_work, task_work = work(merged, STEP_WORK), work(merged, TASK_WORK)
    graded_us = grade_us(taskevents.recent_verdicts(conn, obj.uid, GRADED))
    found = Measurement(took.step_us, step_work, took.task_us, task_work, took.startup_us, graded_us)
    return Finished(key, found, (pinned.get("environment") or {}).get("digest"))


def grade_us(verdicts: Sequence[VerdictRow]) -> int | None:
    """Return what a grader worked on one of these completions on average; None where nobody said."""
    worked = [row.evidence.get("durationMs") for row in verdicts if row.outcome != "Error"]
    known = [float(value) for value in worked if isinstance(value, int | float)]
    return round(sum(known) / len(known) * 1000) if known else None


def measure(moments: Sequence[Moment], passes: Sequence[Pass], run_us: int | None) -> Took:
    """Tell what a run took.

    Args:
        moments: its stages and metrics, in the order of their recording.
        passes: its evaluations: when the last verdict of each was recorded.
        run_us: how long it ran; None where it began more than once, so that nobody knows what its start took.
    """
    gaps, paused_us = _without_pauses(_step_gaps(moments))
    step_us = sum(gaps) // len(gaps) if gaps else None
    spent = [found for found in (_pass_time(moments, one) for one in passes) if found is not None]
    tasks = sum(count for _, count in spent)
    task_us = sum(time_us for time_us, _ in spent) // tasks if tasks else None
    startup_us = None
    if run_us is not None:
        steps = sum(moment.type == "Metrics" for moment in moments)
        graded = sum(one.tasks for one in passes)
        startup_us = max(0, run_us - paused_us - steps * (step_us or 0) - graded * (task_us or 0))
    return Took(step_us, task_us, startup_us)


def ran_us(job_status: Mapping[str, Any]) -> int | None:
    """Return how long a finished Job ran, where one attempt was all it took."""
    start, end = job_status.get("startTime"), job_status.get("completionTime")
    if (job_status.get("attempts") or {}).get("total") != 1 or not start or not end:
        return None
    return int((parse_rfc3339(end) - parse_rfc3339(start)).total_seconds() * SECOND_US)


def work(merged: Mapping[str, Any], names: Iterable[str]) -> int:
    """Return the product of a run's parameters; one that it does not have, or that is no whole number, counts as 1."""
    product = 1
    for name in names:
        value = merged.get(name)
        product *= value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1
    return min(product, 2**62)


def runtime_key(project: str, name: str) -> str:
    """Return a runtime's name with its project."""
    return name if "/" in name else f"{project}/{name}"


def model_key(project: str, repo: str | None, volume: str | None) -> str:
    """Return what a model is called in measurements: by its repository wherever it is, by its Volume in a project."""
    return repo or f"{project}/volume/{volume or ''}"


def _accelerator(job: Object | None, shapes: Sequence[Shape]) -> str:
    gpu = ((job.spec.get("resources") or {}).get("gpu") if job is not None else None) or {}
    if job is None or not gpu.get("count"):
        return CPU
    placed = (job.status.get("placement") or {}).get("offering")
    wanted = {accelerators.family_of(str(kind)) for kind in gpu.get("type") or ()}
    for shape in shapes:
        if shape.accelerator and (shape.name == placed or (placed is None and shape.accelerator in wanted)):
            return shape.accelerator
    return next(iter(sorted(wanted)), CPU)


def _step_gaps(moments: Sequence[Moment]) -> list[int]:
    """Times between the ends of consecutive steps of an attempt; without two of those, the first step's own."""
    gaps, firsts = [], []
    last: dict[str, Moment] = {}
    for moment in moments:
        before = last.get(moment.attempt)
        last[moment.attempt] = moment
        if moment.type != "Metrics" or before is None or moment.validated:
            continue  # A step that was validated has the time of an evaluation in it.
        if before.type == "Metrics":
            gaps.append(moment.at_us - before.at_us)
        elif before.stage == "Training":
            firsts.append(moment.at_us - before.at_us)
    return [gap for gap in gaps or firsts if gap > 0]


def _without_pauses(gaps: Sequence[int]) -> tuple[list[int], int]:
    """The times of steps without what is too long for one, and how much that was."""
    if not gaps:
        return [], 0
    bound = int(median(gaps) * OUTLIER)
    bounded = [min(gap, bound) for gap in gaps]
    return bounded, sum(gaps) - sum(bounded)


def _pass_time(moments: Sequence[Moment], found: Pass) -> tuple[int, int] | None:
    """Time and tasks of one evaluation, from its stage to its last verdict; None for a validation between steps."""
    stage = {"Baseline": "Baseline", "Evaluation": "Evaluating"}[found.phase]
    began = [m.at_us for m in moments if m.stage == stage and m.attempt == found.attempt]
    if not began or found.ended_us <= began[-1]:
        return None
    return found.ended_us - began[-1], found.tasks
