"""What a program finds inside of a run: who it is, where its state is, and how it says how far it is.

Works in Jobs, in TrainingJobs and in Sandboxes; outside of a run nothing is sent and nothing fails. Standard library
only, and nothing here waits for a server: a report is with the run's supervisor as soon as a call returns.

Example::

    import nodus

    for step, batch in enumerate(batches, 1):
        loss = train(batch)
        nodus.progress(step, len(batches))
        nodus.log.metrics(step=step, loss=loss)
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nodus.runtime.sending import emit, in_nodus
from nodus.runtime.supervisor import call

__all__ = ["emit", "in_nodus", "progress", "restored", "self", "state_dir"]


def progress(completed: float, total: float | None = None) -> None:
    """Say how much is done; it shows in ``status.progress.units`` of the run.

    Args:
        completed: Units of work done, of whatever kind; not below zero.
        total: How many there are; what was said before when left out.
    """
    emit({"type": "progress", "completed": completed, **({} if total is None else {"total": total})})


def restored() -> bool:
    """Tell whether an earlier attempt left state behind: look into :func:`state_dir` then."""
    return os.environ.get("NODUS_RESTORED") == "1"


def state_dir() -> Path:
    """Return the directory that is kept from attempt to attempt: ``/nodus/state`` unless the run names another."""
    return Path(os.environ.get("NODUS_STATE_DIR") or os.environ.get("NODUS_CHECKPOINT_DIR") or "/nodus/state")


def self() -> dict[str, Any]:
    """Return what this program runs for: ``kind``, ``name``, ``project``, ``attempt``, ``epoch``, ``index``.

    Raises:
        nodus.errors.NodusError: Outside of a run, or the server's own error.
    """
    return call("GET", "/self")
