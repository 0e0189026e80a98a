"""Whether anything goes on in a Sandbox, on disk: the supervisor writes, the controller decides when it is idle.

Standard library only. ``activity.json`` says whether something runs, and else when something last did.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

from nodus.server.compute.local.attemptdir import read_json

FILE = "activity.json"
WRITE_INTERVAL_S = 1.0


class Seen(NamedTuple):
    """What is known of a Sandbox's activity.

    Attributes:
        busy: Whether a process runs, or somebody is at a terminal of it.
        at: When something last went on, in seconds since the epoch.
    """

    busy: bool
    at: float


class Activity:
    """Writes one Sandbox's activity; at most once a second.

    Args:
        directory: The attempt's.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._at = time.time()
        self._busy = False
        self._written: Seen | None = None

    @property
    def pending(self) -> bool:
        """Whether there is more to write."""
        return self._written != Seen(self._busy, self._at)

    def begin(self) -> None:
        """Write that the Sandbox begins."""
        self._write()

    def touch(self) -> None:
        """Note that somebody uses it now."""
        self._at = time.time()

    def settle(self, busy: bool) -> None:
        """Note whether something runs, and write what changed."""
        if busy != self._busy:
            self._at, self._busy = time.time(), busy
        elif self._written is not None and self._at - self._written.at < WRITE_INTERVAL_S:
            return
        if self.pending:
            self._write()

    def _write(self) -> None:
        seen = Seen(self._busy, self._at)
        temporary = self._path.with_name(f".{FILE}")
        with contextlib.suppress(OSError):  # a full disk: it is idle a little early then
            temporary.write_text(json.dumps({"busy": seen.busy, "at": seen.at}))
            os.replace(temporary, self._path)
        self._written = seen


def read_activity(directory: Path) -> Seen | None:
    """Return what is known of a Sandbox's activity; None before it began."""
    found = read_json(directory / FILE)
    if found is None:
        return None
    return Seen(bool(found.get("busy")), float(found.get("at") or 0.0))
