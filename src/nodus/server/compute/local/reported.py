"""Reading what a supervisor kept of its command's reports. Runs in the server; the files are the supervisor's own.

A file that is damaged, which takes a machine that lost power, is taken as one that says nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodus.server.compute.base import Reported
from nodus.server.compute.local.attemptdir import read_json
from nodus.server.compute.local.checkpoints import CHECKPOINT_FILE
from nodus.server.compute.local.telemetry import PROGRESS_FILE

_TAKEN = ("accepted", "duplicate", "unkept")


def read_reported(directory: Path) -> Reported:
    """Return what the command of an attempt has said of itself.

    Args:
        directory: The attempt's.
    """
    said = read_json(directory / PROGRESS_FILE) or {}
    progress: dict[str, Any] = dict(said.get("progress") or {})
    ignored = {name: count for name, count in (said.get("counts") or {}).items() if name not in _TAKEN}
    if ignored:
        progress["ignored"] = ignored
    kept = read_json(directory / CHECKPOINT_FILE) or {}
    checkpoint = {**kept["newest"], "count": kept.get("count", 1)} if kept.get("newest") else {}
    return Reported(progress, checkpoint)
