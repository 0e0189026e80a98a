"""A member's output as ``nodus logs`` shows it: tails, times, gaps. Runs in the server."""

from __future__ import annotations

import asyncio
import bisect
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nodus.server.compute.local import logstore

if TYPE_CHECKING:
    from nodus.server.compute.base import LogPiece
    from nodus.server.compute.local.backend import LocalBackend


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What of an output is asked for.

    Attributes:
        follow: Go on until the member ended.
        tail_lines: Only the last lines; None for all.
        since_s: Only what was written in the last seconds; None for all.
        timestamps: Put the time before each line.
    """

    follow: bool = False
    tail_lines: int | None = None
    since_s: float | None = None
    timestamps: bool = False


async def view(backend: LocalBackend, key: str, query: LogQuery) -> AsyncIterator[bytes]:
    """Yield a member's output; where output was dropped for size, a line says how much."""
    directory = backend.log_directory(key)
    offset = await asyncio.to_thread(_first_offset, directory, query)
    stamper = _Stamper(directory) if query.timestamps else None
    async for piece in backend.read_log(key, offset, follow=query.follow):
        if piece.dropped:
            yield f"\n[nodus: {piece.dropped} bytes of output are not kept here]\n".encode()
        elif stamper is None:
            yield piece.data
        else:
            yield await asyncio.to_thread(stamper.stamp, piece)
    if stamper is not None and (rest := stamper.rest()):
        yield rest


def _first_offset(directory: Path, query: LogQuery) -> int:
    offset = 0
    if query.since_s is not None:
        offset = logstore.since_offset(directory, time.time_ns() - int(query.since_s * 1e9))
    if query.tail_lines is not None:
        offset = max(offset, logstore.tail_offset(directory, query.tail_lines))
    return offset


class _Stamper:
    """Puts RFC 3339 times before lines; keeps an unfinished line until it is finished."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._line = b""
        self._line_offset = 0
        self._stamps: list[tuple[int, int]] = []

    def stamp(self, piece: LogPiece) -> bytes:
        """Return the lines that ``piece`` completes, each with its time."""
        if not self._line:
            self._line_offset = piece.offset
        if not self._stamps or self._stamps[-1][0] < piece.offset + len(piece.data):
            self._stamps = logstore.stamps(self._directory)
        *lines, last = (self._line + piece.data).split(b"\n")
        parts = []
        for line in lines:
            parts.append(self._prefix() + line + b"\n")
            self._line_offset += len(line) + 1
        self._line = last
        return b"".join(parts)

    def rest(self) -> bytes:
        """Return the line that never ended."""
        return self._prefix() + self._line if self._line else b""

    def _prefix(self) -> bytes:
        position = bisect.bisect_right(self._stamps, (self._line_offset, 1 << 63)) - 1
        if position < 0:
            return b""
        moment = datetime.fromtimestamp(self._stamps[position][1] / 1e9, UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%f").encode() + b"Z "
