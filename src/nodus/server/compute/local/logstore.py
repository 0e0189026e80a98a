"""A command's output on disk: append-only chunks, bounded in total, readable while it is written.

Standard library only: the supervisor writes, the server reads. A chunk is named by the offset of its first byte in the
whole output, its sequence number: ``log/00000000000001048576.log``. Beside it, ``.idx`` says when what was written
(pairs of offset and nanoseconds since the epoch, 16 bytes each), for time stamps and ``sinceSeconds``.

When the output passes the bound, the first part and the newest part are kept and what lies between is dropped; the
reader says how much is missing where it is missing.
"""

from __future__ import annotations

import bisect
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LIMIT_BYTES = 50 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
HEAD_SHARE = 0.2
_STAMP = struct.Struct("<QQ")
_STAMP_EVERY_NS = 50_000_000


class Piece(NamedTuple):
    """A stretch of output, or of output that is no longer there (``dropped`` > 0, ``data`` empty)."""

    offset: int
    data: bytes
    dropped: int = 0

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.offset + len(self.data) + self.dropped


class LogWriter:
    """Appends output; one writer per directory.

    Args:
        directory: Created when missing.
        limit_bytes: How much output to keep in total.
        chunk_bytes: Size of a chunk; what is kept is exact to a chunk.
    """

    def __init__(self, directory: Path, *, limit_bytes: int = LIMIT_BYTES, chunk_bytes: int = CHUNK_BYTES) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._chunk_bytes = min(chunk_bytes, max(1, limit_bytes // 8))
        self._head_bytes = int(limit_bytes * HEAD_SHARE) // self._chunk_bytes * self._chunk_bytes
        self._tail_bytes = limit_bytes - self._head_bytes
        self._tail: list[int] = []
        self._start = self._offset = 0
        self._last_stamp_ns = 0
        self._chunk, self._index = self._open(0)

    @property
    def total_bytes(self) -> int:
        """How much was written in all, kept or not."""
        return self._offset

    def write(self, data: bytes) -> None:
        """Append output; it can be read at once (and survives the writer, if not the machine)."""
        self._stamp()
        view = memoryview(data)
        while view:
            room = self._chunk_bytes - (self._offset - self._start)
            if room <= 0:
                self._next_chunk()
                continue
            written = os.write(self._chunk, view[:room])
            self._offset += written
            view = view[written:]

    def close(self, *, durable: bool = True) -> None:
        """Close; flush to disk before, unless what was written need not survive the machine."""
        for fd in (self._chunk, self._index):
            if durable:
                os.fsync(fd)
            os.close(fd)

    def _open(self, start: int) -> tuple[int, int]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        chunk = os.open(_chunk_path(self._directory, start), flags, 0o600)
        try:
            return chunk, os.open(_index_path(self._directory, start), flags, 0o600)
        except OSError:
            os.close(chunk)
            raise

    def _next_chunk(self) -> None:
        # The new files first: on a full disk this fails, and the old ones must stay usable.
        opened = self._open(self._offset)
        os.close(self._chunk)
        os.close(self._index)
        self._chunk, self._index = opened
        if self._start >= self._head_bytes:
            self._tail.append(self._start)
        self._start = self._offset
        self._last_stamp_ns = 0
        self._stamp()
        # The chunk that is begun counts as full, so that the bound holds at every moment.
        while self._tail and self._offset + self._chunk_bytes - self._tail[0] > self._tail_bytes:
            oldest = self._tail.pop(0)
            os.unlink(_chunk_path(self._directory, oldest))
            os.unlink(_index_path(self._directory, oldest))

    def _stamp(self) -> None:
        now_ns = time.time_ns()
        if now_ns - self._last_stamp_ns >= _STAMP_EVERY_NS:
            self._last_stamp_ns = now_ns
            os.write(self._index, _STAMP.pack(self._offset, now_ns))


def read_pieces(directory: Path, offset: int = 0, *, block_bytes: int = 256 * 1024) -> Iterator[Piece]:
    """Yield the output from ``offset`` up to what is there now, with gaps where output was dropped.

    Ask again from the last piece's ``end`` for more.
    """
    starts = _starts(directory)
    position = max(0, bisect.bisect_right(starts, offset) - 1)
    for start in starts[position:]:
        if start > offset:
            yield Piece(offset, b"", dropped=start - offset)
            offset = start
        try:
            with open(_chunk_path(directory, start), "rb") as file:
                if offset - start > os.fstat(file.fileno()).st_size:
                    return  # Asked for what isn't written yet.
                file.seek(offset - start)
                while data := file.read(block_bytes):
                    yield Piece(offset, data)
                    offset += len(data)
        except FileNotFoundError:
            # Dropped since it was listed: the next chunk's start shows the gap.
            continue


def size(directory: Path) -> int:
    """Return how much output was written in all, kept or not."""
    starts = _starts(directory)
    if not starts:
        return 0
    return starts[-1] + _chunk_path(directory, starts[-1]).stat().st_size


def tail_offset(directory: Path, lines: int) -> int:
    """Return the offset at which the last ``lines`` lines begin (or what is left of them)."""
    end = offset = size(directory)
    if lines <= 0:
        return end
    missing = lines
    for start in reversed(_starts(directory)):
        try:
            data = _chunk_path(directory, start).read_bytes()[: end - start]
        except FileNotFoundError:
            return offset
        # The newline that ends the output ends its last line; it starts none.
        stop = len(data) - 1 if start + len(data) == end and data.endswith(b"\n") else len(data)
        while (cut := data.rfind(b"\n", 0, stop)) >= 0:
            missing -= 1
            if missing <= 0:
                return start + cut + 1
            stop = cut
        offset = start
    return offset


def since_offset(directory: Path, since_ns: int) -> int:
    """Return the offset of the first output written at or after ``since_ns`` (nanoseconds since the epoch)."""
    found = size(directory)
    for offset, stamp_ns in reversed(stamps(directory)):
        if stamp_ns < since_ns:
            break
        found = offset
    return found


def stamps(directory: Path) -> list[tuple[int, int]]:
    """Return (offset, nanoseconds since the epoch) pairs in order: output from that offset on was written then."""
    found: list[tuple[int, int]] = []
    for start in _starts(directory):
        try:
            data = _index_path(directory, start).read_bytes()
        except FileNotFoundError:
            continue
        found.extend(_STAMP.iter_unpack(data[: len(data) // _STAMP.size * _STAMP.size]))
    return found


def _starts(directory: Path) -> list[int]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name[:-4]) for name in names if name.endswith(".log"))


def _chunk_path(directory: Path, start: int) -> Path:
    return directory / f"{start:020d}.log"


def _index_path(directory: Path, start: int) -> Path:
    return directory / f"{start:020d}.idx"
