"""Files that arrive in pieces: kept beside the blobs, by owner and announced digest, until they are whole.

What has arrived is found again by whoever sends the same file to the same owner: a client that was killed knows
nothing, and needs to. Nothing here is trusted: a file becomes a blob once its bytes were read again and have the
digest, and nobody who had it open before writes to it after that. Files are synchronous: call it in a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nodus.core.errors import Conflict, SHA256Mismatch
from nodus.server.store.errors import StoreFull, disk_error

if TYPE_CHECKING:
    from nodus.server.store.blobs import BlobStore

KEPT_S = 7 * 24 * 3600
"""What nobody went on with for so long is dropped."""
RESERVE_BYTES = 256 * 1024 * 1024
"""What a large file must leave free, for the database first of all."""
_OWNER = re.compile(r"[0-9a-f-]{36}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Partials:
    """The unfinished files of one blob store.

    Args:
        blobs: where they go when they are whole; they are kept on its disk.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._root = blobs.root / "parts"

    def received(self, owner: str, sha256: str) -> int:
        """Return how many bytes of a file have arrived, from its beginning."""
        try:
            return self._path(owner, sha256).stat().st_size
        except FileNotFoundError:
            return 0

    def open(self, owner: str, sha256: str, offset: int, size_bytes: int) -> PieceWriter:
        """Go on with a file where a piece begins; pieces may repeat bytes that are there.

        Args:
            owner: uid of the object that it is for.
            sha256: digest of the whole file.
            offset: where the piece begins.
            size_bytes: of the whole file.

        Raises:
            Conflict: bytes before the piece are missing; ``details.offset`` says where to go on.
            StoreFull: the rest won't fit on the disk.
        """
        path = self._path(owner, sha256)
        try:
            self._blobs.make_root()
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            free = shutil.disk_usage(path.parent).free
            if size_bytes - offset > free - RESERVE_BYTES:
                raise StoreFull(
                    f"{size_bytes - offset} bytes are still to come and {free} are free in {self._blobs.root}",
                    fix="Free some disk space and send it again; what has arrived is kept.",
                )
            return PieceWriter(path, offset, size_bytes)
        except OSError as error:
            raise disk_error(error, self._blobs.root) from error

    def finish(self, owner: str, sha256: str, size_bytes: int) -> None:
        """Make a file that has arrived whole a blob, for good once this returns.

        Raises:
            SHA256Mismatch: it has other bytes than announced; they are dropped.
            Conflict: another request finished it first.
            StoreFull: the disk is full.
        """
        path = self._path(owner, sha256)
        try:
            with path.open("r+b") as file, _owned(file.fileno(), path):
                file.truncate(size_bytes)
                found = hashlib.file_digest(file, "sha256").hexdigest()
                if found != sha256:
                    path.unlink()
                    raise SHA256Mismatch(
                        f"the bytes have sha256 {found}, not {sha256}",
                        fix="Send the file again; it changed while it was sent, or was altered on its way.",
                    )
                os.fsync(file.fileno())
                self._blobs.put_in_place(path, sha256)
        except OSError as error:
            raise disk_error(error, self._blobs.root) from error

    def forget(self, owner: str) -> None:
        """Drop the unfinished files of an owner that is gone."""
        if _OWNER.fullmatch(owner):
            shutil.rmtree(self._root / owner, ignore_errors=True)

    def sweep(self) -> None:
        """Drop what nobody went on with for long."""
        oldest = time.time() - KEPT_S
        for path in self._root.glob("*/*"):
            try:
                if path.stat().st_mtime < oldest:
                    path.unlink()
            except FileNotFoundError:
                continue  # finished in the meantime

    def _path(self, owner: str, sha256: str) -> Path:
        if not _OWNER.fullmatch(owner) or not _SHA256.fullmatch(sha256):
            raise ValueError(f"{owner!r}/{sha256!r} names no file")
        return self._root / owner / sha256


class PieceWriter:
    """Writes one piece, from an offset on. What was written stays, whether the piece ends well or not."""

    def __init__(self, path: Path, offset: int, size_bytes: int) -> None:
        self._path = path
        self._size = size_bytes
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        there = os.fstat(self._fd).st_size
        if offset > there:
            os.close(self._fd)
            raise Conflict(
                f"the piece begins at {offset}, and {there} bytes have arrived",
                fix=f"Go on at {there}.",
                details={"offset": there},
            )
        self.position = offset
        """Where the next byte goes."""

    def write(self, data: bytes) -> None:
        """Write bytes at the position and move on.

        Raises:
            Conflict: another request finished the file in the meantime.
            StoreFull: the disk is full; what was written before stays.
        """
        view = memoryview(data)
        try:
            with _owned(self._fd, self._path):
                while view:
                    # By position: another request that goes on with the file writes the same bytes there.
                    count = os.pwrite(self._fd, view, self.position)
                    view = view[count:]
                    self.position += count
        except OSError as error:
            raise disk_error(error, self._path.parent) from error

    @property
    def whole(self) -> bool:
        """Whether the piece reached the end of the file."""
        return self.position >= self._size

    def close(self) -> None:
        """Make what was written durable, and end.

        Raises:
            StoreFull: the disk is full.
        """
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise disk_error(error, self._path.parent) from error
        finally:
            os.close(self._fd)


@contextlib.contextmanager
def _owned(fd: int, path: Path) -> Iterator[None]:
    """Keep others from the open file for the block, which begins only while it is what is at the path: no blob yet.

    Raises:
        Conflict: the file was finished or dropped.
    """
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        try:
            there = os.path.samestat(os.fstat(fd), os.stat(path))
        except FileNotFoundError:
            there = False
        if not there:
            raise Conflict("another request finished this file", fix="Ask how far it is, and go on there.")
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
