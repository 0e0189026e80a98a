"""What a person at a terminal sees while something takes its time: a line for waits, bars for files.

Everything goes to standard error, and nowhere at all when that is no terminal, so that output stays parseable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nodus.cli.colour import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.status import Status

# The display that is live; there is one terminal.
_live: list[Any] = []


def clear() -> None:
    """Take a live display off the terminal, before other lines are written to it."""
    while _live:
        _live.pop().stop()


class Waiting:
    """A context manager around a wait: shows a moving line with what is known so far."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._status: Status | None = None

    def __enter__(self) -> Waiting:
        if is_terminal(sys.stderr):
            from rich.console import Console

            self._status = Console(stderr=True).status(_escaped(self._text))
            self._status.start()
            _live.append(self._status)
        return self

    def say(self, text: str) -> None:
        """Show another text."""
        if self._status is not None:
            self._status.update(_escaped(text))

    def __exit__(self, *exc: Any) -> None:
        if self._status is not None:
            self._status.stop()
            if self._status in _live:
                _live.remove(self._status)


class Steps:
    """A context manager around work in steps: shows a bar with the step that is under way."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._progress: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Steps:
        if is_terminal(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(_escaped(self._text), total=None)
            self._progress.start()
            _live.append(self._progress)
        return self

    def at(self, text: str, done: int, total: int) -> None:
        """Show the step that begins now.

        Args:
            text: What it is.
            done: How many are behind it.
            total: How many there are.
        """
        if self._progress is not None:
            self._progress.update(self._task, description=_escaped(text), completed=done, total=total)

    def __exit__(self, *exc: Any) -> None:
        if self._progress is not None:
            self._progress.stop()
            if self._progress in _live:
                _live.remove(self._progress)


class Bars:
    """Makes a bar for every large file that is sent or fetched, as `nodus.client.http.Api` asks for it."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def __call__(self, what: str, total: int) -> Callable[[int], None]:
        """Begin a bar and return the function that moves it on by a number of bytes."""
        progress = self._started()
        task = progress.add_task(_escaped(what), total=total)

        def advance(size: int) -> None:
            progress.advance(task, size)
            if progress.tasks and all(entry.finished for entry in progress.tasks):
                self._stop()

        return advance

    def _started(self) -> Progress:
        if self._progress is None or self._progress not in _live:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.start()
            _live.append(self._progress)
        return self._progress

    def _stop(self) -> None:
        if self._progress is not None and self._progress in _live:
            _live.remove(self._progress)
            self._progress.stop()


def bars() -> Bars | None:
    """Return bars for a terminal; None elsewhere."""
    return Bars() if is_terminal(sys.stderr) else None


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
