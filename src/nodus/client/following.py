"""How a run is shown while it is followed: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from nodus.client.record import Record

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.progress import Progress, TaskID

    from nodus.client.training import TrainingJob, Update

STAGE_TEXT = {
    "CachingModel": "fetching the model",
    "Baseline": "scoring the held-out tasks before training",
    "Training": "sampling replies, grading them, updating the adapter",
    "Evaluating": "scoring the held-out tasks after training",
    "Exporting": "writing the outputs to the volume",
}
SPARKS = "▁▂▃▄▅▆▇█"
TABLE_ROWS = 12


class Display(Protocol):
    """Shows updates of one run; a context manager around the time it is followed."""

    def show(self, update: Update) -> None:
        """Show one update."""

    def __enter__(self) -> Display: ...
    def __exit__(self, *exc: Any) -> None: ...


def display_for(run: TrainingJob, stream: TextIO | None = None) -> Display:
    """Return a live display on a terminal, a plain one elsewhere."""
    stream = stream or sys.stdout
    return LiveDisplay(run) if stream.isatty() else PlainDisplay(run, stream)


class PlainDisplay:
    """One line for each stage and step."""

    def __init__(self, run: TrainingJob, stream: TextIO) -> None:
        self._run, self._stream = run, stream

    def show(self, update: Update) -> None:
        """Write the update's line."""
        if update.type == "Stage":
            text = STAGE_TEXT.get(update.stage)
            self._state(f"{update.stage} ({text})" if text else update.stage, update.message)
        elif update.type == "Metrics":
            self._line(step_line(update.metrics))
        elif update.type == "End":
            self._state(update.stage, update.message)
            for line in comparison_lines(self._run.summary):
                self._line(line)

    def _state(self, state: str, message: str) -> None:
        self._line(f"{self._run.name}: {state}{f': {message}' if message else ''}")

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *exc: Any) -> None:
        pass


class LiveDisplay:
    """Progress bars for the stages and a live table of the last steps, with a sparkline of the reward.

    Args:
        run: The run that is shown.
        console: Where; the standard output when None.
    """

    def __init__(self, run: TrainingJob, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._run = run
        self.console = console or Console()
        self._steps: dict[int, Record] = {}
        self._bars: Progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )
        self._stages: dict[str, TaskID] = {}
        self._current: str | None = None
        self._note = "Queued"
        self._live = Live(self._render(), console=self.console, refresh_per_second=4)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._live.update(self._render(), refresh=True)
        self._live.stop()

    def show(self, update: Update) -> None:
        """Bring bars and table up to date; the end prints the comparison below them."""
        if update.type == "Stage":
            self._begin(update.stage, update.message)
        elif update.type == "Metrics":
            self._step(update.metrics)
        elif update.type == "Scores":
            self._scores(update.metrics)
        else:
            self._finish_current()
            colour = "green" if update.stage == "Succeeded" else "red"
            self.console.print(f"[{colour}]{self._run.name}: {update.stage}[/] {update.message}", highlight=False)
            for line in comparison_lines(self._run.summary):
                self.console.print(line, highlight=False)
        self._live.update(self._render())

    def _begin(self, stage: str, message: str) -> None:
        if stage != self._current:
            self._finish_current()
            self._current = stage
        self._note = "" if stage in STAGE_TEXT else f"{stage}{f': {message}' if message else ''}"
        if stage not in STAGE_TEXT:
            return
        text = STAGE_TEXT[stage] + (f" [dim]{message}[/]" if message else "")
        if stage in self._stages:
            self._bars.update(self._stages[stage], description=text)
        else:
            self._stages[stage] = self._bars.add_task(text, total=None)

    def _finish_current(self) -> None:
        if self._current is None or self._current not in self._stages:
            return
        bar = self._stages[self._current]
        total = next(task.total for task in self._bars.tasks if task.id == bar)
        # An update that was not seen must not leave the bar of a finished stage short of its end.
        self._bars.update(bar, completed=total or 1, total=total or 1)

    def _step(self, metrics: Record) -> None:
        self._steps[int(metrics["step"])] = metrics
        if "Training" not in self._stages:
            self._begin("Training", "")
        self._bars.update(self._stages["Training"], completed=int(metrics["step"]), total=metrics.get("totalSteps"))

    def _scores(self, summary: Record) -> None:
        held_out = (self._run.spec.get("environment") or {}).get("heldOutTasks")
        for part, stage in (("baseline", "Baseline"), ("evaluation", "Evaluating")):
            scored = summary.get(part)
            if scored and stage in self._stages:
                done = sum(int(scored.get(key) or 0) for key in ("passed", "failed", "errors"))
                self._bars.update(self._stages[stage], completed=done, total=held_out or scored.get("tasks"))

    def _render(self) -> Group:
        from rich.console import Group
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for header in ("Step", "Reward", "Loss", "KL", "No contrast", "Tokens/s"):
            table.add_column(header, justify="right", header_style="bold")
        for step in sorted(self._steps)[-TABLE_ROWS:]:
            table.add_row(*step_cells(self._steps[step]))
        rewards = [self._steps[step].get("reward") for step in sorted(self._steps)]
        parts: list[Any] = [self._bars, *([f"[dim]{self._note}[/]"] if self._note else [])]
        if self._steps:
            parts += ["", table, f"reward {sparkline([float(value) for value in rewards if value is not None])}"]
        return Group(*parts)


def step_cells(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a step's cells for the live table: step, reward, loss, KL, share of groups without contrast, tokens/s."""
    total = metrics.get("totalSteps")
    step = f"{metrics.get('step')}/{total}" if total else str(metrics.get("step"))
    share = metrics.get("noContrastShare")
    return (
        step,
        number(metrics.get("reward"), 3),
        number(metrics.get("loss"), 4),
        number(metrics.get("kl"), 5),
        "-" if share is None else f"{float(share):.0%}",
        number(metrics.get("tokensPerSecond"), 0),
    )


def step_line(metrics: Mapping[str, Any]) -> str:
    """Return a step as one line of text."""
    step, reward, loss, kl, *_ = step_cells(metrics)
    return f"step {step:>9}   reward {reward}   loss {loss}   KL {kl}"


def number(value: object, places: int) -> str:
    """Return a metric with a fixed number of places; a dash where it is missing."""
    return "-" if value is None else f"{float(str(value)):.{places}f}"


def sparkline(values: list[float], width: int = 60) -> str:
    """Return values as a line of block characters, averaged down to ``width``; empty without values."""
    if not values:
        return ""
    if len(values) > width:
        edges = [round(index * len(values) / width) for index in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((value - low) * scale)] for value in values)


def comparison_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the before-and-after comparison as lines of text; none when nothing was scored."""
    baseline, final, comparison = (summary.get(part) for part in ("baseline", "evaluation", "comparison"))
    lines = []
    if baseline:
        lines.append(f"before training: {_rate_text(baseline)}")
    if final:
        lines.append(f"{'after training:  ' if baseline else 'pass rate: '}{_rate_text(final)}")
    if comparison and comparison.get("changePP") is not None and comparison.get("comparable"):
        interval = comparison.get("intervalPP")
        between = f" (95% interval {float(interval[0]):+.1f} to {float(interval[1]):+.1f})" if interval else ""
        lines.append(f"change:          {float(comparison['changePP']):+.1f} points{between}")
    elif comparison and comparison.get("reason"):
        note = comparison.get("note")
        lines.append(f"no comparison:   {comparison['reason']}{f': {note}' if note else ''}")
    return lines


def _rate_text(scores: Mapping[str, Any]) -> str:
    rate = scores.get("passRate")
    text = "-" if rate is None else f"{float(str(rate)):.1%}"
    ungraded = f", {scores['errors']} not graded" if scores.get("errors") else ""
    return f"{text}  ({scores.get('passed', 0)} of {scores.get('tasks', 0)} tasks{ungraded})"
