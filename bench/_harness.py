"""What every bench shares: alternate ours and the peer, take medians, print the figure's JSON line.

A bench gives two functions, each doing its work once and returning the measure (seconds, completions a second, ...),
or returning None to be timed by the wall clock::

    from bench._harness import Figure, measure

    figure = Figure(name="grpo-overhead", unit="s/step", goal=0.9, better="lower")
    raise SystemExit(measure(figure, ours=step_with_nodus, peer=step_with_trl))

The contract of the line: `ratio` says how many times better than the peer we are, above 1 is better, whatever the unit.
`goal` bounds the ratio where there is a peer, else our own measure. `met` says whether it was reached. Nothing here
asserts: a figure that misses its goal is printed as such and the exit status stays 0, so that no test hangs on timing.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Run = Callable[[], float | None]
"""Does the work once; returns the measure in the figure's unit, or None to be timed in seconds."""

MIN_ROUNDS = 5
"""Medians are of at least this many runs of each side."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What is measured and when it is good enough."""

    name: str
    """As in `make bench-NAME`; a bench with several figures names them `NAME-part`."""
    unit: str
    """Unit of the measures, such as "s" or "completions/s"."""
    goal: float
    """Least ratio against the peer; without a peer the bound of our own measure, from above if lower is better."""
    better: Literal["lower", "higher"] = "lower"
    """Which direction of the measure is good."""
    goal_of: Literal["ratio", "ours"] | None = None
    """What the goal bounds; None means the ratio where there is a peer, else ours."""


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of one figure."""

    figure: Figure
    ours: float
    peer: float | None

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer (above 1 is better); None without a peer."""
        if self.peer is None:
            return None
        return self.peer / self.ours if self.figure.better == "lower" else self.ours / self.peer

    @property
    def met(self) -> bool:
        """Whether the goal was reached."""
        goal_of = self.figure.goal_of or ("ours" if self.peer is None else "ratio")
        if goal_of == "ratio":
            return self.ratio is not None and self.ratio >= self.figure.goal
        return self.ours <= self.figure.goal if self.figure.better == "lower" else self.ours >= self.figure.goal

    def line(self) -> str:
        """The figure's JSON line."""
        return json.dumps(
            {
                "name": self.figure.name,
                "ours": _rounded(self.ours),
                "peer": _rounded(self.peer),
                "ratio": _rounded(self.ratio),
                "unit": self.figure.unit,
                "goal": self.figure.goal,
                "met": self.met,
            }
        )


def measure(figure: Figure, ours: Run, peer: Run | None = None, *, rounds: int = MIN_ROUNDS, warmup: int = 1) -> int:
    """Run both sides in turn, print the samples to stderr and the figure's line to stdout.

    Args:
        figure: What is measured.
        ours: One run of ours.
        peer: One run of the peer, with the same work; None where there is nothing to compare with.
        rounds: Runs of each side that count; at least 5.
        warmup: Runs of each side before those, thrown away.

    Returns:
        0, the exit status.

    Raises:
        ValueError: If `rounds` is below 5.
    """
    if rounds < MIN_ROUNDS:
        raise ValueError(f"rounds is {rounds}: a median needs at least {MIN_ROUNDS} runs")
    sides: list[tuple[str, Run]] = [("ours", ours)] + ([("peer", peer)] if peer else [])
    for _, run in sides * warmup:
        run()
    samples: dict[str, list[float]] = {name: [] for name, _ in sides}
    for number in range(rounds):
        # Flipping the order each round cancels a drift of the machine's speed.
        for name, run in sides if number % 2 == 0 else sides[::-1]:
            samples[name].append(_one(run))
    return report(figure, samples["ours"], samples.get("peer"))


def report(figure: Figure, ours: list[float], peer: list[float] | None = None) -> int:
    """Print the line of samples that were taken elsewhere (say, step times from inside one training).

    Args:
        figure: What was measured.
        ours: Our measures, in the figure's unit.
        peer: The peer's, taken in turn with ours in the same run.

    Returns:
        0, the exit status.
    """
    result = Result(figure, statistics.median(ours), statistics.median(peer) if peer else None)
    print(f"# {figure.name}: {machine()}", file=sys.stderr)
    for name, values in (("ours", ours), ("peer", peer)):
        if values:
            shown = " ".join(f"{value:.4g}" for value in values)
            print(f"# {name}: median {statistics.median(values):.4g} {figure.unit} of {shown}", file=sys.stderr)
    print(result.line(), flush=True)
    return 0


def machine() -> str:
    """Date and machine in one line, for the results table."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{today}, {_cpu_model()}, {cores} cores, {memory_gib:.0f} GiB, Python {platform.python_version()}"


def _one(run: Run) -> float:
    start = time.perf_counter()
    value = run()
    return time.perf_counter() - start if value is None else value


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:  # not Linux
        pass
    return platform.machine()
