"""Sources of Jobs that are git repositories: fetched once, fixed to their commit, kept as an archive like an upload.

The fetch is the one of Volumes (``nodus.server.sources.git``): a process of its own, https and http to public
addresses, no hooks, no submodules, bounded in size. It runs beside the controllers, which ask how it stands.
"""

from __future__ import annotations

import asyncio
import gzip
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodus.core.sizes import size_text
from nodus.server.store import blobs

if TYPE_CHECKING:
    from nodus.server.services import Services
    from nodus.server.store.objects import Object
    from nodus.server.training.models import Imported

SOURCE_LIMIT_BYTES = 1 << 30
"""Most bytes of the files of a source."""
MAX_TRIES = 4
"""Fetches that broke off for an outer reason before the Job fails."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """How a fetch stands."""

    source: Mapping[str, Any] | None = None
    """Once it is done: ``repo``, ``commit`` and the archive's ``blob``."""
    message: str = ""
    """How far it is, or why it failed."""
    reason: str | None = None
    """Set when it failed for good."""
    fix: str | None = None


class GitSources:
    """Fetches the sources of Jobs.

    Args:
        services: The server's parts: the fetches, the store.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tries: dict[str, int] = {}

    async def ask(self, job: Object) -> Fetching:
        """Begin a Job's fetch unless it runs, and return how it stands; when it is done, its archive is a blob."""
        models = self._services.models
        if models is None:
            return Fetching(message="this server fetches nothing", reason="SourceUnsupported")
        models.begin(job.uid, {"git": job.spec["source"]["git"]}, {}, SOURCE_LIMIT_BYTES)
        state = models.state(job.uid)
        if state.failure is not None:
            return await self._failed(job, state.failure)
        if state.done is None:
            size = f", {size_text(state.bytes_done)} so far" if state.bytes_done else ""
            return Fetching(message=f"fetching the source{size}")
        sha256, size_bytes = await asyncio.to_thread(self._keep, state.done)
        await self._services.store.write(blobs.index, job.project, sha256, size_bytes, "application/gzip")
        await self.forget(job.uid)
        return Fetching({**state.done.provenance, "blob": f"sha256:{sha256}"})

    async def forget(self, uid: str) -> None:
        """Drop what was fetched for a Job, whether it is done or not."""
        self._tries.pop(uid, None)
        if self._services.models is not None:
            await self._services.models.forget(uid)

    async def _failed(self, job: Object, failure: Any) -> Fetching:
        tries = self._tries[job.uid] = self._tries.get(job.uid, 0) + 1
        if failure.transient and tries < MAX_TRIES:
            self._services.models.retry(job.uid)
            return Fetching(message=f"{failure.message}; it is tried again")
        await self.forget(job.uid)
        return Fetching(message=failure.message, reason=failure.reason, fix=failure.fix or None)

    def _keep(self, found: Imported) -> tuple[str, int]:
        with tempfile.TemporaryDirectory(prefix="source-", dir=found.directory.parent) as folder:
            archive = Path(folder, "source.tar.gz")
            pack(found, archive)
            return self._services.store.blobs.put_file(archive), archive.stat().st_size


def pack(found: Imported, archive: Path) -> None:
    """Write the files of a fetch as a tar.gz that is the same for the same files."""
    with (
        archive.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packing,
        tarfile.open(fileobj=packing, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for entry in found.files:
            info = tarfile.TarInfo(str(entry["path"]))
            with (found.directory / str(entry["path"])).open("rb") as file:
                info.size, info.mode = int(entry["size"]), int(entry.get("mode", 0o644))
                tar.addfile(info, file)
