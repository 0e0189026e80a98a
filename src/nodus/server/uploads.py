"""Uploads to Volumes that are not committed yet: one journal file each, to which every change is one line.

Appending keeps changes that come in at the same time apart, and an upload of many files linear. A line that a killed
server left half-written is skipped: its request was never answered. Files are synchronous: call it in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodus.core.errors import NotFound
from nodus.server.files import replace_file
from nodus.server.store.errors import disk_error
from nodus.server.store.volumes import FileEntry

KEPT_S = 7 * 24 * 3600
"""An upload that was not committed for so long is dropped."""
MOST_PATH_BYTES = 1024
MOST_NAME_BYTES = 255
_ID = re.compile(r"up_[0-9a-f]{24}")


@dataclass(slots=True)
class Changes:
    """What an upload changes of the revision below it."""

    files: dict[str, FileEntry] = field(default_factory=dict)
    """New files by path."""
    removed: set[str] = field(default_factory=set)
    """Files and directories of the revision below that go."""
    undone: set[str] = field(default_factory=set)
    """Those of them that were in the upload itself, so that they need not be below."""

    def apply(self, tree: list[FileEntry]) -> list[FileEntry]:
        """Return the files of a tree after the changes."""
        kept = {entry.path: entry for entry in tree if self.removed.isdisjoint((entry.path, *parents(entry.path)))}
        return list({**kept, **self.files}.values())

    def note(self, line: dict[str, Any]) -> None:
        """Take in a line of the journal."""
        if (gone := line.get("removed")) is not None:
            kept = {path: e for path, e in self.files.items() if path != gone and gone not in parents(path)}
            if len(kept) < len(self.files):
                self.undone.add(gone)
            self.files = kept
            self.removed.add(gone)
        elif (entry := line.get("file")) is not None:
            self.files[entry[0]] = FileEntry(*entry)
            self.removed.discard(entry[0])


class Uploads:
    """The journals of a data directory.

    Args:
        root: ``<data>/uploads``.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def begin(self, volume_uid: str) -> str:
        """Begin an upload to a Volume and return its id; drop those that were given up long ago.

        Raises:
            StoreFull: the disk is full.
        """
        upload_id = new_id()
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._sweep()
            replace_file(self._root / upload_id, json.dumps({"volume": volume_uid}))
        except OSError as error:
            raise disk_error(error, self._root) from error
        return upload_id

    def check(self, volume_uid: str, upload_id: str) -> None:
        """Make sure that there is such an upload.

        Raises:
            NotFound: it was committed, dropped, or never begun, or is another Volume's.
        """
        try:
            with self._path(upload_id).open(encoding="utf-8") as file:
                head = file.readline()
        except FileNotFoundError as error:
            raise _missing(upload_id) from error
        if json.loads(head)["volume"] != volume_uid:
            raise _missing(upload_id)

    def read(self, volume_uid: str, upload_id: str) -> Changes:
        """Return the changes so far.

        Raises:
            NotFound: as for :meth:`check`.
        """
        self.check(volume_uid, upload_id)
        try:
            lines = self._path(upload_id).read_text(encoding="utf-8").split("\n")[1:]
        except FileNotFoundError as error:  # committed or dropped just now
            raise _missing(upload_id) from error
        changes = Changes()
        for line in lines:
            try:
                changes.note(json.loads(line))
            except ValueError:
                continue
        return changes

    def put(self, upload_id: str, *entries: FileEntry) -> None:
        """Note files whose blobs are in place.

        Raises:
            NotFound: the upload ended meanwhile.
            StoreFull: the disk is full.
        """
        self._append(upload_id, *({"file": list(entry)} for entry in entries))

    def remove(self, upload_id: str, path: str) -> None:
        """Note that a file or directory goes; see :meth:`put` for the errors."""
        self._append(upload_id, {"removed": path})

    def drop(self, upload_id: str) -> None:
        """End an upload."""
        self._path(upload_id).unlink(missing_ok=True)

    def _append(self, upload_id: str, *lines: dict[str, Any]) -> None:
        # The line's end comes first: so it never joins one that was left half-written.
        data = b"".join(b"\n" + json.dumps(line).encode() for line in lines)
        try:
            handle = os.open(self._path(upload_id), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                written = os.write(handle, data)
                os.fsync(handle)
            finally:
                os.close(handle)
        except FileNotFoundError as error:
            raise _missing(upload_id) from error
        except OSError as error:
            raise disk_error(error, self._root) from error
        if written < len(data):
            raise disk_error(OSError(errno.ENOSPC, "cut off"), self._root)

    def _path(self, upload_id: str) -> Path:
        if not _ID.fullmatch(upload_id):
            raise _missing(upload_id)
        return self._root / upload_id

    def _sweep(self) -> None:
        oldest = time.time() - KEPT_S
        for path in self._root.glob("up_*"):
            with contextlib.suppress(FileNotFoundError):  # it ended in the meantime
                if path.stat().st_mtime < oldest:
                    path.unlink()


def new_id() -> str:
    """Return an id for an upload."""
    return f"up_{secrets.token_hex(12)}"


def _missing(upload_id: str) -> NotFound:
    return NotFound(f"there is no upload {upload_id[:60]!r} of this volume; it was committed, dropped or never begun")


def path_problem(path: str) -> str | None:
    """Say why a text is not the path of a file in a Volume, or None when it is one.

    One that is names the same file below any directory on any Linux file system, and nothing outside of it.
    """
    parts = path.split("/")
    if not path or len(path.encode()) > MOST_PATH_BYTES:
        return f"it has {len(path.encode())} bytes; 1 to {MOST_PATH_BYTES} are possible"
    if not path.isprintable():
        return "it holds a control character"
    if any(part in ("", ".", "..") for part in parts):
        return "it is not relative, or has '.', '..' or nothing between two slashes"
    if any(len(part.encode()) > MOST_NAME_BYTES for part in parts):
        return f"a part of it is longer than {MOST_NAME_BYTES} bytes"
    return None


def parents(path: str) -> Iterator[str]:
    """The directories that a path of a Volume lies in, outermost first."""
    return (path[:place] for place, letter in enumerate(path) if letter == "/")
