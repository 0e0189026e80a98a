"""What a TrainingJob has reported so far, read from its task events, and the parts of its status made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodus.server.store import taskevents
from nodus.server.training import compile as compiler
from nodus.server.training import summary
from nodus.server.training.parameters import lookup

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object
    from nodus.server.store.taskevents import VerdictRow

CONTRAST = "ContrastObserved"
_DECIMALS = ("loss", "reward", "kl", "tokensPerSecond")
_NO_CONTRAST = (
    "every group of completions earned the same reward, which teaches a group-relative method nothing: raise "
    "sampling.temperature or numGenerations, take easier or harder tasks, or give partial credit"
)


@dataclass(frozen=True, slots=True)
class Report:
    """The newest of each kind of report, and the verdicts that the summary counts."""

    stage: str | None = None
    metrics: Mapping[str, Any] | None = None
    weights_changed: bool | None = None
    verdicts: tuple[summary.Verdict, ...] = ()
    """Newest verdicts of the phases Baseline and Evaluation."""
    groups: summary.GroupCounts | None = None
    """Training groups; None when contrast was observed before and need not be looked for."""


def read(conn: Connection, obj: Object) -> Report:
    """Read a TrainingJob's report.

    Args:
        conn: a transaction.
        obj: the TrainingJob.
    """
    stage = taskevents.newest_report(conn, obj.uid, "Stage")
    metrics = taskevents.newest_report(conn, obj.uid, "Metrics")
    diagnostics = taskevents.newest_report(conn, obj.uid, "Diagnostics")
    rows = [row for phase in ("Baseline", "Evaluation") for row in taskevents.latest_verdicts(conn, obj.uid, phase)]
    groups = None
    if lookup(obj.status, "diagnostics.rewardSignal") != CONTRAST:
        groups = summary.GroupCounts(*taskevents.count_training_groups(conn, obj.uid))
    return Report(
        stage=str(stage["stage"]) if stage else None,
        metrics=metrics,
        weights_changed=diagnostics.get("weightsChanged") if diagnostics else None,
        verdicts=tuple(_verdict(row) for row in rows),
        groups=groups,
    )


def status_of(obj: Object, report: Report, *, finished: bool) -> dict[str, Any]:
    """`progress`, `metrics`, `summary` and `diagnostics` of a TrainingJob; keys without content are left out.

    Args:
        obj: the TrainingJob.
        report: what `read` returned.
        finished: whether the run is over.
    """
    result: dict[str, Any] = {}
    if report.stage:
        result["progress"] = {"stage": report.stage}
    if report.metrics:
        result["metrics"] = metrics_of(report.metrics)
    tasks = _held_out(obj)
    passes = compiler.evaluation(obj.spec, tasks)
    found = summary.summary(
        report.verdicts,
        held_out_tasks=tasks,
        baseline=passes["baseline"],
        final=passes["final"],
        minimum=passes["minComparisonTasks"],
    )
    if found:
        result["summary"] = found
    if obj.spec.get("mode", "Train") == "Train":
        result["diagnostics"] = _diagnostics(report, finished=finished)
    return result


def of_job(job_progress: Mapping[str, Any] | None) -> dict[str, Any]:
    """`progress` and `metrics` of a TrainingJob whose trainer reports as any program does, with ``nodus.progress``.

    Args:
        job_progress: ``status.progress`` of its Job.
    """
    given = job_progress or {}
    said, units = given.get("metrics") or {}, given.get("units") or {}
    metrics: dict[str, Any] = {name: said[name] for name in _DECIMALS if name in said}
    if str(said.get("step", "")).isdigit():
        metrics["step"] = int(said["step"])
        if isinstance(units.get("total"), int):
            metrics["totalSteps"] = units["total"]
    result: dict[str, Any] = {"progress": {"stage": given["stage"]}} if given.get("stage") else {}
    return result | ({"metrics": metrics} if metrics else {})


def metrics_of(event: Mapping[str, Any]) -> dict[str, Any]:
    """`status.metrics` of a Metrics event: counters as numbers, rates as decimal strings."""
    result: dict[str, Any] = {name: event[name] for name in ("step", "totalSteps") if event.get(name) is not None}
    for name in _DECIMALS:
        value = event.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            result[name] = f"{value:.6g}"
    if event.get("gpuMemoryBytes") is not None:
        result["gpuMemoryBytes"] = int(event["gpuMemoryBytes"])
    return result


def _diagnostics(report: Report, *, finished: bool) -> dict[str, Any]:
    signal = CONTRAST if report.groups is None else summary.reward_signal(report.groups, finished=finished)
    result: dict[str, Any] = {"rewardSignal": signal}
    if report.weights_changed is not None:
        result["weightsChanged"] = report.weights_changed
    if signal == "NoRewardContrast":
        result["message"] = _NO_CONTRAST
    return result


def _held_out(obj: Object) -> int:
    pinned = (obj.status.get("pinned") or {}).get("heldOutTasks")
    return int(pinned) if pinned is not None else compiler.held_out(obj.spec, None)


def _verdict(row: VerdictRow) -> summary.Verdict:
    # Rows are the newest of each key already; their order of recording stands in for the attempt's number.
    key = row.key
    return summary.Verdict(row.seq, key.phase, key.step, key.task_id, key.sample, row.outcome, row.reward)
