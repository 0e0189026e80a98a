"""What imports share: how they fail, and the files they collect, each checked and bounded as it is written."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nodus.core.sizes import size_text
from nodus.server.uploads import parents, path_problem

FILES_DIR, PLAN_FILE = "files", "plan.json"
FILES_LIMIT = 100_000
RESERVE_BYTES = 512 * 1024**2
"""What an import leaves free on the disk."""
_LINKS_DEPTH = 8
_CHUNK_BYTES = 1 << 20


class ImportFailed(Exception):
    """The import can't be done; `transient` says whether trying again later may help."""

    def __init__(self, reason: str, message: str, fix: str = "", *, transient: bool = False) -> None:
        super().__init__(message)
        self.reason, self.message, self.fix, self.transient = reason, message, fix, transient


class Fetched(NamedTuple):
    """What a source brought."""

    files: list[dict[str, Any]]
    """``{path, sha256, size, mode}`` of each, by path."""
    provenance: dict[str, Any]
    """What exactly it was."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be imported.

    Attributes:
        spec: The source's own part of ``spec.source``.
        directory: Where the import works; kept between tries.
        credentials: Values of the source's Secret by key; empty without one.
        limit_bytes: The most bytes that may be collected.
        allowed: Hosts and networks with private addresses that may be connected to.
    """

    spec: Mapping[str, Any]
    directory: Path
    credentials: Mapping[str, str] = field(default_factory=dict)
    limit_bytes: int = 10 << 30
    allowed: tuple[str, ...] = ()


class Collector:
    """The files of an import, below ``<directory>/files``.

    Args:
        order: For the directory and the limits.
        label: What messages call the source.
    """

    def __init__(self, order: Order, label: str) -> None:
        self.root = order.directory / FILES_DIR
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self._limit = order.limit_bytes
        self._label = label
        self._files: dict[str, dict[str, Any]] = {}
        self._links: dict[str, str] = {}
        self._directories: set[str] = set()
        self._bytes = 0

    def announce(self, size_bytes: int, files: int) -> None:
        """Refuse at once what is announced to be too large for the Volume or the disk; else it is the progress's goal.

        Raises:
            ImportFailed: ``SourceTooLarge`` or ``DiskFull``.
        """
        check_size(self._label, self._bytes + size_bytes, self._limit)
        check_disk(self.root, size_bytes)
        plan = {"files": len(self._files) + files, "bytes": self._bytes + size_bytes}
        (self.root.parent / PLAN_FILE).write_text(json.dumps(plan), encoding="utf-8")

    def add(self, path: str, content: Iterable[bytes], *, executable: bool = False) -> dict[str, Any]:
        """Write a file as its bytes arrive, and return its entry: ``path``, ``sha256``, ``size`` and ``mode``.

        Raises:
            ImportFailed: The path can't be one of a Volume, or there is more than fits.
        """
        target = self._place(path)
        digest, size = hashlib.sha256(), 0
        try:
            with target.open("xb") as file:
                for chunk in content:
                    size += len(chunk)
                    check_size(self._label, self._bytes + size, self._limit)
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_failure(self._label, error) from error
        return self._note(path, digest.hexdigest(), size, executable)

    def move_in(self, path: str, source: Path, sha256: str, *, executable: bool = False) -> dict[str, Any]:
        """Take over a file of the same disk that was written and hashed already; see :meth:`add`."""
        target, size = self._place(path), source.stat().st_size
        check_size(self._label, self._bytes + size, self._limit)
        os.rename(source, target)
        return self._note(path, sha256, size, executable)

    def link(self, path: str, target: str) -> None:
        """Note a symbolic link: a copy of the file it leads to, which must be one of the import's own.

        Args:
            path: Of the link.
            target: As the link has it, relative to the link's directory.
        """
        self._check(path)
        self._links[path] = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))

    def finish(self) -> list[dict[str, Any]]:
        """Return every file, by path.

        Raises:
            ImportFailed: There is none, or a link leads to something else than a file of the import.
        """
        for path in sorted(self._links):
            found = self._target(path)
            if found is None:
                raise ImportFailed(
                    "SourcePathRefused",
                    f"{self._label}: {shown(path)} is a link to {shown(self._links[path])}, which is no file in it",
                    "leave the link out; a volume holds files, and links to files become copies",
                )
            del self._links[path]
            with (self.root / found).open("rb") as file:
                self.add(path, chunks(file), executable=self._files[found]["mode"] == 0o755)
        if not self._files:
            raise ImportFailed("SourceEmpty", f"{self._label} holds no files", "check the address and the path")
        return [self._files[path] for path in sorted(self._files)]

    def _target(self, path: str) -> str | None:
        for _ in range(_LINKS_DEPTH):
            path = self._links.get(path, path)
            if path in self._files:
                return path
        return None

    def _place(self, path: str) -> Path:
        self._check(path)
        target = self.root / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_failure(self._label, error) from error
        return target

    def _check(self, path: str) -> None:
        why = path_problem(path)
        above = set(parents(path))
        if why is None and (path in self._files or path in self._links):
            why = "it stands there twice"
        elif why is None and (path in self._directories or not above.isdisjoint(self._files)):
            why = "it would be a file and a directory"
        if why is not None:
            raise ImportFailed(
                "SourcePathRefused",
                f"{self._label}: {shown(path)} can't be the path of a file in a volume: {why}",
                "rename it at its source, or leave it out",
            )
        if len(self._files) + len(self._links) >= FILES_LIMIT:
            raise ImportFailed(
                "SourceTooLarge", f"{self._label} holds more than {FILES_LIMIT} files", "pack them into archives"
            )
        self._directories |= above

    def _note(self, path: str, sha256: str, size: int, executable: bool) -> dict[str, Any]:
        entry = {"path": path, "sha256": sha256, "size": size, "mode": 0o755 if executable else 0o644}
        self._files[path] = entry
        self._bytes += size
        return entry


def check_size(label: str, size_bytes: int, limit_bytes: int) -> None:
    """Refuse more bytes than the Volume may hold.

    Raises:
        ImportFailed: ``SourceTooLarge``.
    """
    if size_bytes > limit_bytes:
        raise ImportFailed(
            "SourceTooLarge",
            f"{label} holds at least {size_bytes} bytes, and the volume's spec.size is {limit_bytes} "
            f"({size_text(limit_bytes)})",
            "make a volume with a larger spec.size",
        )


def check_disk(directory: Path, size_bytes: int) -> None:
    """Refuse what would fill the disk.

    Raises:
        ImportFailed: ``DiskFull``.
    """
    free = shutil.disk_usage(directory).free
    if size_bytes > free - RESERVE_BYTES:
        raise ImportFailed(
            "DiskFull",
            f"{size_bytes / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free in {directory}",
            "free space in the data directory",
        )


def disk_failure(label: str, error: OSError) -> ImportFailed:
    """Return the failure for a file that could not be written."""
    return ImportFailed(
        "DiskFull", f"{label}: {error.strerror or error}", "free space in the data directory", transient=True
    )


def chunks(file: Any) -> Iterable[bytes]:
    """Yield what a file holds from where it is, a megabyte at a time."""
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def shown(path: str) -> str:
    """Return a path as messages quote it: cut, and without what a terminal would obey."""
    return repr(path[:120])
