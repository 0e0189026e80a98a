"""The low-disk brake: runs are suspended before the disk of the data directory is full."""

from __future__ import annotations

import shutil
from pathlib import Path

MARGIN = 1.25
"""So many times what is needed has to be free again: a brake that lets go at once is on again in a moment."""
MIB = 1 << 20
STEP_BYTES = 64 * MIB
"""What is told stays as it is until so much has changed: it stands in the status of every run that waits."""


class LowDiskBrake:
    """Tells whether the disk is almost full.

    Args:
        path: The data directory.
        least_bytes: Less than this free is low; 0 never is.
    """

    def __init__(self, path: Path, least_bytes: int) -> None:
        self._path = path
        self._least_bytes = least_bytes
        self._on = False
        self._told_bytes = 0

    def problem(self) -> str | None:
        """Return how much is free where that is too little, else None; costs some microseconds."""
        free = shutil.disk_usage(self._path).free
        was_on, wanted = self._on, self._least_bytes * (MARGIN if self._on else 1)
        self._on = free < wanted
        if not self._on:
            return None
        if not was_on or abs(free - self._told_bytes) >= STEP_BYTES:
            self._told_bytes = free
        return (
            f"{self._told_bytes // MIB} MiB are free under {self._path}, less than low_disk allows; "
            f"runs go on from {round(self._least_bytes * MARGIN) // MIB} MiB"
        )
