"""Completions of an environment that ships with Nodus, scored without a process of their own.

Only where the module says ``PURE = True``: its reward was reviewed. It computes from its arguments alone, runs nothing
of a completion, and starts, writes and keeps nothing. That is two dozen times faster than a fork, which is what every
other environment gets. A bundle can't call itself pure: it counts of modules of this package's catalog alone.

The wall limit holds here too: a timer of the kernel ends the worker, in the middle of C code if need be.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from nodus.grader import process
from nodus.grader.adapters import Adapter
from nodus.grader.loading import outside_trace
from nodus.grader.tasks import Task
from nodus.grader.verdicts import classify, failure

_CATALOG = "nodus.grader.catalog."


def is_pure(loader: str) -> bool:
    """Tell whether a loaded environment is one of the catalog's whose reward needs no process of its own."""
    name = loader.partition(":")[0]
    module = sys.modules.get(name) if name.startswith(_CATALOG) else None
    return module is not None and vars(module).get("PURE") is True


class Direct:
    """Scores completions in this process.

    Args:
        adapter: The environment's adapter.
        timeout_s: Wall limit of one completion; this process ends at it, with the number of SIGALRM as its exit code.
    """

    def __init__(self, adapter: Adapter, timeout_s: float) -> None:
        self._adapter = adapter
        self._timeout_s = timeout_s
        process.end_at_alarm()

    def score(self, task: Task, turns: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the verdict on an episode as it stands, and how long it took."""
        started = time.monotonic()
        random.seed(task.id)
        signal.setitimer(signal.ITIMER_REAL, self._timeout_s)
        try:
            result = classify(self._adapter.grade(task, turns))
        except BaseException as error:  # noqa: BLE001 - as where it has a process of its own
            result = failure(f"reward raised {type(error).__name__}: {error}"[:500], outside_trace(error, 2000))
        signal.setitimer(signal.ITIMER_REAL, 0)
        return result, {"ms": round((time.monotonic() - started) * 1000, 3)}

    def reply(self, task: Task, turns: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return that the episode has ended: no environment here has any."""
        return {"messages": None}, {}
