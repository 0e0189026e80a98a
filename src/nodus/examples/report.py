"""What the examples print after a run: cost, files, and held-out tasks with the replies before and after."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodus.examples.plots import write_plot

if TYPE_CHECKING:
    from rich.console import Console

    from nodus.client.record import Record
    from nodus.client.training import TrainingJob
    from nodus.core.errors import NodusError

SHOWN_TASKS = 3
REPLY_CHARS = 160


def save_results(run: TrainingJob, target: Path, title: str) -> list[Path]:
    """Download everything the run wrote and draw its picture beside it; return the files."""
    files = run.outputs.download(target)
    return [*files, write_plot(target / "training.svg", run.metrics(), run.summary, title)]


def print_cost_and_files(console: Console, run: TrainingJob, target: Path) -> None:
    """Print what the run cost and where its results are."""
    cost = run.status.get("cost") or {}
    console.print(f"cost:            ${cost.get('totalUSD', '0.00')}", highlight=False)
    for label, name in (("adapter:", "adapter"), ("results:", "results.json"), ("picture:", "training.svg")):
        if (target / name).exists():
            console.print(f"{label:<17}{(target / name).resolve()}", highlight=False, soft_wrap=True)


def print_replies(console: Console, run: TrainingJob, count: int = SHOWN_TASKS) -> None:
    """Print held-out tasks with the reply before and the reply after: what was learnt first, then what was not."""
    before = {task.task_id: task for task in run.tasks(phase="Baseline")}
    after = {task.task_id: task for task in run.tasks(phase="Evaluation")}
    chosen = choose_tasks(before, after, count)
    if not chosen:
        return
    prompts = run.prompts("test")
    console.print(f"\n[bold]{len(chosen)} held-out tasks, before and after[/]")
    for task_id in chosen:
        console.print(f"\n  [dim]task [/] {_one_line(prompts.get(task_id, task_id))}", highlight=False)
        for label, task in (("before", before[task_id]), ("after ", after[task_id])):
            mark = "[green]✓[/]" if task.outcome == "Passed" else "[red]✗[/]"
            console.print(
                f"  [dim]{label}[/] {mark} ", _one_line(task.get("completion", "")), highlight=False, markup=True
            )


def choose_tasks(before: Mapping[str, Record], after: Mapping[str, Record], count: int) -> list[str]:
    """Return task ids to show: learnt ones, and at least one that is still or newly wrong where there is one."""
    both = [task_id for task_id in before if task_id in after]
    learnt = [t for t in both if before[t].outcome != "Passed" and after[t].outcome == "Passed"]
    wrong = [t for t in both if after[t].outcome != "Passed"]
    kept = [t for t in both if before[t].outcome == "Passed" and after[t].outcome == "Passed"]
    chosen = learnt[: count - 1] + wrong[:1]
    for task_id in [*learnt, *kept, *wrong]:
        if len(chosen) < count and task_id not in chosen:
            chosen.append(task_id)
    return chosen[:count]


def make_console() -> Console:
    """Return a console that wraps lines on a terminal only: a file or pipe gets them whole."""
    from rich.console import Console

    return Console(soft_wrap=not sys.stdout.isatty())


def print_error(console: Console, error: NodusError) -> None:
    """Print an error with everything that is wrong and what to do."""
    lines = [f"error: {error.message}", *(f"  {cause.field}: {cause.message}" for cause in error.causes)]
    for line in [*lines, *([f"fix: {error.fix}"] if error.fix else [])]:
        console.print(line, highlight=False, markup=False)


def no_contrast(run: TrainingJob) -> str | None:
    """Return why the run could not learn, or None where rewards differed within groups."""
    diagnostics = run.status.get("diagnostics") or {}
    if diagnostics.get("rewardSignal") in (None, "ContrastObserved"):
        return None
    message = diagnostics.get("message") or "every reply to a task earned the same reward, which teaches GRPO nothing"
    return f"{diagnostics['rewardSignal']}: {message}"


def _one_line(value: Any) -> str:
    """Return a prompt or reply on one line; of chat messages the last."""
    text = value if isinstance(value, str) else str((value or [{}])[-1].get("content", ""))
    text = " ".join(text.split()).replace("[", r"\[")
    return (text[:REPLY_CHARS] + " …" if len(text) > REPLY_CHARS else text) or "[dim](empty)[/]"
