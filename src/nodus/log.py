"""Reports from inside a run: metrics, stages, units of work and tasks, in ``status.progress`` of the run.

Outside of a run nothing is sent. See :mod:`nodus.runtime` for what else a program finds in a run.

Example::

    nodus.log.phase("Training")
    nodus.log.metrics(step=10, loss=0.41, accuracy=0.9)
"""

from __future__ import annotations

from typing import Any

from nodus.runtime.sending import emit

__all__ = ["emit", "metrics", "phase", "task", "task_started", "unit"]


def metrics(step: int | None = None, **values: float) -> None:
    """Say numbers: ``status.progress.metrics`` has the newest of each name, as text.

    Args:
        step: What they belong to.
        **values: Such as ``loss=0.4``; scalars of numpy and torch are taken too, what is no finite number is left out.
    """
    taken = {name: value for name, value in values.items() if name not in ("id", "type", "step")}
    emit({"type": "metrics", **({} if step is None else {"step": step}), **taken})


def phase(name: str) -> None:
    """Say which stage the program is in: ``status.progress.stage``, at most 100 characters."""
    emit({"type": "phase", "name": name})


def unit(id: str, ms: float) -> None:
    """Say that one unit of work is done; counted in ``status.progress.units`` unless `nodus.progress` counts itself.

    Args:
        id: Which unit.
        ms: How long it took, in milliseconds.
    """
    emit({"type": "unit", "unitId": id, "ms": ms})


def task_started(phase: str, task_id: str) -> None:
    """Say that a task is begun, as :func:`task` says that it is done."""
    task(phase, task_id, kind="started")


def task(
    phase: str,
    task_id: str,
    outcome: str | None = None,
    reward: float | None = None,
    attempt: int = 1,
    trace: Any = None,
    kind: str = "completed",
) -> None:
    """Say what came of a task; counted in ``status.progress.tasks``. Never a verdict: those are the graders'.

    Args:
        phase: What it was tried in, such as ``Evaluation``.
        task_id: Which task.
        outcome: ``Passed``, ``Failed`` or ``Error``.
        reward: What it earned.
        attempt: Which try of it.
        trace: Anything that JSON takes, up to 60 KB.
        kind: ``completed`` or ``started``.
    """
    given = {"outcome": outcome, "reward": reward, "trace": trace}
    emit(
        {
            "type": "task",
            "phase": phase,
            "taskId": task_id,
            "attempt": attempt,
            "taskKind": "TaskStarted" if kind == "started" else "TaskCompleted",
            **{name: value for name, value in given.items() if value is not None},
        }
    )
