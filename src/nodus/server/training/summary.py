"""What a TrainingJob's verdicts say: pass rates before and after, whether they compare, and the reward signal.

Pure functions of verdict rows, called by the TrainingJob controller; no I/O, no clock. A verdict with the outcome
`Error` (the grader could not run) is never a wrong answer: it is counted apart and stands in no rate.

Statistics beside the change in percentage points: the 95% interval of Bonett and Price for a paired difference of
proportions, the exact two-sided McNemar p-value, and the bounds the change would have if every unscored task had gone
worst or best for the trained model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

PASSED, FAILED, ERROR = "Passed", "Failed", "Error"
DEFAULT_MIN_COMPARISON_TASKS = 16
Z_95 = 1.959963984540054
MIN_GROUPS_FOR_NO_CONTRAST = 8
"""Training groups that must have been seen before the absence of contrast is reported while the run goes on."""

Sample = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One graded completion, as the task event table keeps it."""

    attempt_index: int
    """Number of the Attempt that submitted it; higher is newer."""
    phase: str
    """`Baseline`, `Training` or `Evaluation`."""
    step: int
    """Optimizer step of a Training verdict; 0 for the other phases."""
    task_id: str
    sample: int
    outcome: str
    """`Passed`, `Failed` or `Error`."""
    reward: float | None
    """None exactly when the outcome is `Error`."""


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """Scores of one evaluation phase: a row for each task that was asked for."""

    samples: Mapping[Sample, Verdict] = field(default_factory=dict)
    expected: int = 0
    """Tasks the phase has to grade in all."""

    @property
    def tasks(self) -> set[str]:
        """Ids of the tasks with a verdict of any kind."""
        return {task for task, _ in self.samples}

    @property
    def in_progress(self) -> int:
        """Tasks that still have no verdict."""
        return max(0, self.expected - len(self.tasks))

    def passes(self) -> dict[str, float]:
        """Share of its scored samples that passed, by task; a task whose samples all errored is absent."""
        scored: dict[str, list[bool]] = {}
        for (task, _), verdict in self.samples.items():
            if verdict.outcome != ERROR:
                scored.setdefault(task, []).append(verdict.outcome == PASSED)
        return {task: sum(marks) / len(marks) for task, marks in scored.items()}


def newest(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Keep, of each (phase, step, task, sample), the verdict of the newest attempt, in first-seen order."""
    kept: dict[tuple[str, int, str, int], Verdict] = {}
    for verdict in verdicts:
        key = (verdict.phase, verdict.step, verdict.task_id, verdict.sample)
        known = kept.get(key)
        if known is None or verdict.attempt_index >= known.attempt_index:
            kept[key] = verdict
    return list(kept.values())


def phase_result(verdicts: Iterable[Verdict], phase: str, expected: int) -> PhaseResult:
    """The newest verdicts of one evaluation phase; those of other phases are ignored."""
    rows = newest(verdict for verdict in verdicts if verdict.phase == phase)
    return PhaseResult({(row.task_id, row.sample): row for row in rows}, expected)


def phase_summary(result: PhaseResult) -> dict[str, Any]:
    """`status.summary.baseline` or `.evaluation`: counts, and the rates as decimal strings where anything scored.

    `passRate` is the mean over scored tasks; `worstPassRate` and `bestPassRate` are what it would be had every
    unscored task failed or passed; `passAtK` the share of tasks one of whose k samples passed (only where k > 1).
    """
    passes = result.passes()
    unscored = len(result.tasks - passes.keys())
    rewards = [row.reward for row in result.samples.values() if row.outcome != ERROR and row.reward is not None]
    passed = sum(1 for share in passes.values() if share == 1.0)
    summary: dict[str, Any] = {
        "tasks": len(result.tasks),
        "passed": passed,
        "failed": len(passes) - passed,
        "errors": unscored,
        "inProgress": result.in_progress > 0,
    }
    if passes:
        total = math.fsum(passes.values())
        summary["passRate"] = _decimal(total / len(passes), 4)
        summary["worstPassRate"] = _decimal(total / (len(passes) + unscored), 4)
        summary["bestPassRate"] = _decimal((total + unscored) / (len(passes) + unscored), 4)
    if rewards:
        summary["meanReward"] = _decimal(math.fsum(rewards) / len(rewards), 4)
    samples_per_task = max((sample for _, sample in result.samples), default=0) + 1
    if samples_per_task > 1 and passes:
        summary["samplesPerTask"] = samples_per_task
        summary["passAtK"] = _decimal(sum(1 for share in passes.values() if share > 0) / len(passes), 4)
    return summary


def comparison(
    baseline: PhaseResult, evaluation: PhaseResult, *, minimum: int = DEFAULT_MIN_COMPARISON_TASKS
) -> dict[str, Any]:
    """`status.summary.comparison`: whether before and after compare, the change, and how sure it is.

    The first reason that holds is given: `IncompleteEvents` (a task of either side has no verdict yet),
    `DifferentTasks`, `TooFewTasks` (fewer than `minimum` tasks scored on both sides), `NonePassed`, `AllPassed`,
    `SmallestStep` (comparable, but only one task's worth of change), `Comparable`.

    Args:
        baseline: scores before training.
        evaluation: scores after training.
        minimum: scored tasks a comparison needs (`evaluation.minComparisonTasks`).

    Returns:
        `comparable`, `measurable` (at least one task's worth of change), `reason`, `note`, `tasks` (scored on both
        sides), `unscored`, and, where there are such tasks, `gained`, `lost`, `changePP`, `resolutionPP`,
        `intervalPP`, `boundsPP` and `pValue`.
    """
    before, after = baseline.passes(), evaluation.passes()
    pairs = sorted(before.keys() & after.keys())
    asked = baseline.tasks | evaluation.tasks
    result: dict[str, Any] = {"tasks": len(pairs), "unscored": len(asked) - len(pairs)}
    reason, note = _refusal(baseline, evaluation, before, after, pairs, minimum)
    result |= {"comparable": not reason, "measurable": False}
    if pairs and reason not in ("IncompleteEvents", "DifferentTasks"):
        gains = [after[task] - before[task] for task in pairs]
        result |= _statistics(gains, result["unscored"])
        moved = abs(math.fsum(gains))
        result["measurable"] = not reason and moved >= 1 - 1e-9
        if not reason and 1e-9 < moved <= 1 + 1e-9:
            reason, note = "SmallestStep", "the change is one task's worth, the smallest this many tasks can show"
    if not reason:
        reason, note = "Comparable", _comparable_note(result)
    return result | {"reason": reason, "note": note}


def summary(
    verdicts: Sequence[Verdict],
    *,
    held_out_tasks: int,
    baseline: bool,
    final: bool,
    minimum: int = DEFAULT_MIN_COMPARISON_TASKS,
) -> dict[str, Any]:
    """`status.summary` of a TrainingJob, with only the sections that the run asks for and has begun.

    Args:
        verdicts: rows of the phases Baseline and Evaluation, of all attempts; others are ignored.
        held_out_tasks: tasks either phase grades.
        baseline: whether the run scores the held-out tasks before training.
        final: whether it scores them after training.
        minimum: scored tasks a comparison needs.
    """
    before = phase_result(verdicts, "Baseline", held_out_tasks)
    after = phase_result(verdicts, "Evaluation", held_out_tasks)
    result: dict[str, Any] = {}
    if baseline and before.samples:
        result["baseline"] = phase_summary(before)
    if final and after.samples:
        result["evaluation"] = phase_summary(after)
    if "baseline" in result and "evaluation" in result:
        result["comparison"] = comparison(before, after, minimum=minimum)
    return result


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """How many training groups (one task of one step) were scored, and how their rewards differ."""

    scored: int
    """Groups with at least two scored completions."""
    with_contrast: int
    """Those of them whose rewards are not all the same."""


def reward_signal(counts: GroupCounts, *, finished: bool) -> str:
    """`status.diagnostics.rewardSignal`: whether the rewards taught a group-relative method anything.

    Args:
        counts: training groups seen so far.
        finished: whether training is over; before that, no contrast in a few groups proves nothing.

    Returns:
        `ContrastObserved`, `NoRewardContrast` or `InsufficientEvidence`.
    """
    if counts.with_contrast:
        return "ContrastObserved"
    if counts.scored >= MIN_GROUPS_FOR_NO_CONTRAST or (finished and counts.scored):
        return "NoRewardContrast"
    return "InsufficientEvidence"


def _refusal(
    baseline: PhaseResult,
    evaluation: PhaseResult,
    before: Mapping[str, float],
    after: Mapping[str, float],
    pairs: Sequence[str],
    minimum: int,
) -> tuple[str, str]:
    waiting = baseline.in_progress + evaluation.in_progress
    if waiting:
        return "IncompleteEvents", f"{waiting} of {baseline.expected + evaluation.expected} verdicts are missing"
    if baseline.tasks != evaluation.tasks:
        apart = len(baseline.tasks ^ evaluation.tasks)
        return "DifferentTasks", f"{apart} tasks were graded on one side only"
    if len(pairs) < minimum:
        return "TooFewTasks", f"{len(pairs)} tasks are scored on both sides; a comparison needs {minimum}"
    marks = [before[task] for task in pairs] + [after[task] for task in pairs]
    if not any(marks):
        return "NonePassed", "no task passed before or after; the tasks are too hard to show a change"
    if all(mark == 1.0 for mark in marks):
        return "AllPassed", "every task passed before and after; the tasks are too easy to show a change"
    return "", ""


def _statistics(gains: Sequence[float], unscored: int) -> dict[str, Any]:
    n = len(gains)
    total = math.fsum(gains)
    wins = sum(1 for gain in gains if gain > 0)
    losses = sum(1 for gain in gains if gain < 0)
    low, high = paired_interval(wins, losses, n)
    asked = n + unscored
    return {
        "gained": wins,
        "lost": losses,
        "changePP": _decimal(100 * total / n, 1),
        "resolutionPP": _decimal(100 / n, 1),
        "intervalPP": [_decimal(100 * low, 1), _decimal(100 * high, 1)],
        "boundsPP": [
            _decimal(100 * (total - unscored) / asked, 1),
            _decimal(100 * (total + unscored) / asked, 1),
        ],
        "pValue": _decimal(mcnemar_p(wins, losses), 4),
    }


def paired_interval(wins: int, losses: int, n: int, *, z: float = Z_95) -> tuple[float, float]:
    """Interval of the difference of two paired proportions (Bonett and Price 2012: adjusted Wald).

    Args:
        wins: pairs that failed before and pass after.
        losses: pairs that passed before and fail after.
        n: all pairs, at least 1.
        z: standard normal quantile; the default gives 95%.

    Returns:
        Lower and upper end as fractions in [-1, 1].
    """
    gain, loss = (wins + 1) / (n + 2), (losses + 1) / (n + 2)
    centre = gain - loss
    width = z * math.sqrt(max(0.0, (gain + loss - centre**2) / (n + 2)))
    return max(-1.0, centre - width), min(1.0, centre + width)


def mcnemar_p(wins: int, losses: int) -> float:
    """Exact two-sided McNemar p-value: how likely a split of the changed pairs this uneven is by chance alone."""
    changed = wins + losses
    if changed == 0:
        return 1.0
    tail = sum(math.comb(changed, k) for k in range(min(wins, losses) + 1))
    return min(1.0, tail / (1 << (changed - 1)))


def _comparable_note(result: Mapping[str, Any]) -> str:
    if result["unscored"]:
        return f"{result['unscored']} tasks could not be scored on both sides and are left out"
    low, high = (float(end) for end in result["intervalPP"])
    if low <= 0 <= high:
        return "the interval includes no change"
    return "the interval excludes no change"


def _decimal(value: float, places: int) -> str:
    rounded = Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    return str(abs(rounded) if rounded == 0 else rounded)
