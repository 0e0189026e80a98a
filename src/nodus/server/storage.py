"""How much a server stores, against how much it may: new files are refused before the disk is full.

Only what users send is refused: uploads, and imports into Volumes. What a run writes (logs, checkpoints, outputs, the
database) is always stored, since losing it would cost more than the space; it counts, and so brings the limit nearer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nodus.core.errors import NodusError, QuotaExceeded
from nodus.core.sizes import quantity, size_text
from nodus.server.store import sweeping

if TYPE_CHECKING:
    from nodus.server.settings import Settings
    from nodus.server.store import Store

log = logging.getLogger(__name__)

EVERY_S = 300.0
FRESH_S = 5.0
"""A measurement that old is repeated before something is refused."""
RESERVE_BYTES = 512 * 2**20
"""What must stay free on the disk, for the database and for what runs write."""
DIRECTORIES = ("attempts", "jobs", "sandboxes", "models", "imports")
"""What is measured beside the blobs. Revisions' directories are hard links to blobs."""


class Storage:
    """What is stored, measured now and then.

    Args:
        store: the server's.
        settings: its limit.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._data_dir = store, settings.data_dir
        self.limit_bytes = None if settings.storage_limit is None else int(quantity(settings.storage_limit))
        self.used_bytes = 0
        """As of the last measurement, and what has come in since."""
        self._measured_s = -1e9

    async def keep_measured(self, *, every_s: float = EVERY_S) -> None:
        """Measure until cancelled."""
        while True:
            try:
                await self.measure()
            except NodusError as error:
                log.warning("what is stored could not be measured: %s", error.message)
            await asyncio.sleep(every_s)

    async def measure(self) -> None:
        """Find out how much is stored."""
        blobs = await self._store.read(sweeping.blob_bytes)
        self.used_bytes = blobs + await asyncio.to_thread(self._files_bytes)
        self._measured_s = time.monotonic()

    def added(self, size_bytes: int) -> None:
        """Note that something was stored."""
        self.used_bytes += size_bytes

    async def require(self, more_bytes: int) -> None:
        """Refuse what would be more than may be stored; see :meth:`check`. What was freed lately counts."""
        if not self._fits(more_bytes) and time.monotonic() - self._measured_s > FRESH_S:
            await self.measure()
        self.check(more_bytes)

    def check(self, more_bytes: int) -> None:
        """Refuse what would be more than may be stored, by what is known.

        Args:
            more_bytes: how much would come; 0 where nobody knows.

        Raises:
            QuotaExceeded: naming the limit (``quota`` is storage), or that the disk is almost full (disk).
        """
        more = f"{more_bytes} bytes more" if more_bytes else "anything more"
        free = shutil.disk_usage(self._data_dir).free
        if free - more_bytes < RESERVE_BYTES:
            raise QuotaExceeded(
                f"the server's disk has {size_text(free)}B free, and {size_text(RESERVE_BYTES)}B are kept for runs: "
                f"there is no room for {more}",
                fix=_FIX,
                details={"quota": "disk", "freeBytes": free, "bytes": more_bytes},
            )
        if self.limit_bytes is not None and not self._fits(more_bytes):
            details = {"limitBytes": self.limit_bytes, "usedBytes": self.used_bytes, "bytes": more_bytes}
            raise QuotaExceeded(
                f"{more} would be more than this server stores: it has {self.used_bytes} bytes "
                f"({size_text(self.used_bytes)}B), and its storage_limit is {size_text(self.limit_bytes)}B",
                fix=_FIX,
                details={"quota": "storage", **details},
            )

    def almost_full(self) -> str | None:
        """Say when nine tenths of the limit are used; ``None`` while there is room."""
        if self.limit_bytes is None or self.used_bytes < 0.9 * self.limit_bytes:
            return None
        return f"{size_text(self.used_bytes)}B of {size_text(self.limit_bytes)}B are stored (storage_limit)"

    def _fits(self, more_bytes: int) -> bool:
        return self.limit_bytes is None or (
            self.used_bytes + more_bytes <= self.limit_bytes and self.used_bytes < self.limit_bytes
        )

    def _files_bytes(self) -> int:
        return sum(_sizes(self._data_dir / name) for name in DIRECTORIES)


_FIX = "Delete runs, volumes and outputs that are not needed, then run `nodus admin sweep` on the server."


def _sizes(root: Path) -> int:
    """Return the bytes that the files below a directory take on the disk; those that are blobs too don't count."""
    return sum(info.st_blocks * 512 for info in _files(root) if info.st_nlink == 1)


def _files(root: Path) -> Iterator[os.stat_result]:
    waiting = [root]
    while waiting:
        # Directories come and go while runs work, and a sandbox's owner may close one.
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        yield entry.stat(follow_symlinks=False)
