"""What a process of a Sandbox wrote and how it stands, on disk: the supervisor writes, the server reads.

Standard library only. Layout of ``<attempt>/processes/<process uid>/``::

    log/         output and error together, in the order in which they came (see ``logstore``)
    streams      at which offset the output changes from one stream to the other, 9 bytes each
    status.json  phase, exit code, reason, times; replaced atomically

Offsets count both streams together, so that a reader of one of them can go on where it was, and one of both gets
them in order. None of this is synced to disk: a machine that crashes takes the processes along anyway.
"""

from __future__ import annotations

import bisect
import json
import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nodus.server.compute.local import logstore
from nodus.server.compute.local.attemptdir import read_json

STDOUT, STDERR = 1, 2
LIMIT_BYTES = 16 * 1024 * 1024
MAX_SWITCHES = 200_000
"""Further output counts for the stream that it stood at then: a process can't fill the disk with single letters."""
_SWITCH = struct.Struct("<QB")


class Written(NamedTuple):
    """A stretch of one stream, or a gap (``dropped`` > 0, ``data`` empty)."""

    offset: int
    stream: int
    data: bytes
    dropped: int = 0

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.offset + len(self.data) + self.dropped


class ProcessLog:
    """Writes one process's files; one writer per directory.

    Args:
        directory: Made here, with its parent.
        limit_bytes: How much output to keep.
    """

    def __init__(self, directory: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        directory.mkdir(mode=0o700, parents=True)
        self._directory = directory
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._switches = os.open(directory / "streams", flags, 0o600)
        try:
            self._log = logstore.LogWriter(directory / "log", limit_bytes=limit_bytes)
        except OSError:
            os.close(self._switches)
            raise
        self._stream, self._count = 0, 0

    @property
    def total_bytes(self) -> int:
        """How much was written in all."""
        return self._log.total_bytes

    def write(self, stream: int, data: bytes) -> None:
        """Append output of a stream.

        Raises:
            OSError: When the disk is full.
        """
        if stream != self._stream and self._count < MAX_SWITCHES:
            # Before the data: whoever sees the data finds whose it is.
            os.write(self._switches, _SWITCH.pack(self._log.total_bytes, stream))
            self._stream, self._count = stream, self._count + 1
        self._log.write(data)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace the status."""
        temporary = self._directory / ".status"
        temporary.write_text(json.dumps({**status, "updatedAt": time.time()}))
        os.replace(temporary, self._directory / "status.json")

    def close(self) -> None:
        """Close the files."""
        self._log.close(durable=False)
        os.close(self._switches)


def read_status(directory: Path) -> dict[str, Any] | None:
    """Return a process's status, or None when it was never started here."""
    return read_json(directory / "status.json")


def read_output(directory: Path, after: int, *, limit_bytes: int = 1 << 20) -> list[Written]:
    """Return the output from an offset on, as far as it is there and not much over ``limit_bytes``.

    Ask again from the last one's ``end`` for more; an empty list means that there is none now.
    """
    pieces: list[logstore.Piece] = []
    size = 0
    for piece in logstore.read_pieces(directory / "log", after):
        pieces.append(piece)
        size += len(piece.data)
        if size >= limit_bytes:
            break
    # After the data: see ProcessLog.write.
    return list(_split(pieces, *_switches(directory, pieces[0].offset, pieces[-1].end))) if pieces else []


def _switches(directory: Path, start: int, end: int) -> tuple[list[int], list[int]]:
    """Return where the stream changes within a stretch of the output, and what it is at its start.

    Looks at no more of the file than that: a process may have it grow to megabytes, and each new line is a read.
    """
    try:
        fd = os.open(directory / "streams", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return [], []
    with open(fd, "rb", buffering=0) as file:
        count = os.fstat(fd).st_size // _SWITCH.size
        offsets = _Offsets(fd, count)
        first = max(0, bisect.bisect_right(offsets, start) - 1)
        last = bisect.bisect_left(offsets, end, lo=first)
        file.seek(first * _SWITCH.size)
        records = list(_SWITCH.iter_unpack(file.read((last - first) * _SWITCH.size)))
    return [offset for offset, _ in records], [stream for _, stream in records]


class _Offsets(Sequence[int]):
    """The offsets in a file of switches, each read when it is looked at."""

    def __init__(self, fd: int, count: int) -> None:
        self._fd, self._count = fd, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return _SWITCH.unpack(os.pread(self._fd, _SWITCH.size, index * _SWITCH.size))[0]


def _split(pieces: Iterable[logstore.Piece], offsets: list[int], streams: list[int]) -> Iterator[Written]:
    """Cut pieces where the stream changes."""
    for piece in pieces:
        position = max(0, bisect.bisect_right(offsets, piece.offset) - 1)
        if piece.dropped:
            yield Written(piece.offset, streams[position] if streams else STDOUT, b"", piece.dropped)
            continue
        start = piece.offset
        while start < piece.end:
            following = offsets[position + 1] if position + 1 < len(offsets) else piece.end
            end = min(piece.end, following)
            if end > start:
                stream = streams[position] if streams else STDOUT
                yield Written(start, stream, piece.data[start - piece.offset : end - piece.offset])
                start = end
            position += 1
