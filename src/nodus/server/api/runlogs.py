"""Logs of runs: one attempt's output, that of the attempts after it, or that of all indexes at once."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from starlette.responses import Response

from nodus.core.errors import BadRequest, NotFound, Unavailable
from nodus.core.kinds import ATTEMPT, Kind
from nodus.server.api.call import Call, checked_name
from nodus.server.api.reading import find
from nodus.server.api.runattempts import RunAttempts, Source
from nodus.server.api.streaming import StreamResponse
from nodus.server.compute.base import LogPiece
from nodus.server.compute.local import logstore
from nodus.server.compute.processes import OutputPiece

LINE_LIMIT_BYTES = 64 * 1024
"""Where lines of several indexes are mixed, a longer one is cut."""
WAITING_CHUNKS = 32
MEDIA_TYPE = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Query:
    """Which part of a log is asked for."""

    follow: bool
    tail_lines: int | None
    since_s: int | None
    timestamps: bool
    attempt: str | None
    index: int | None
    offset_bytes: int | None

    @property
    def whole(self) -> Query:
        """The same without a bound on where it begins: for attempts that begin while one looks on."""
        return replace(self, tail_lines=None, since_s=None, offset_bytes=None)


async def log(call: Call, kind: Kind) -> Response:
    """``GET .../log``: the output of a run's newest attempt; with ``follow`` also of those that come after it.

    Of a Job with completions, every line of every index with the index before it, unless ``index`` names one.
    """
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name, "log")
    query = query_of(call)
    if call.number("rank"):
        raise NotFound(f"{kind.singular} {name} has no rank {call.query('rank')}")
    if call.query("process") is not None:
        raise NotFound(f"{kind.singular} {name} has no processes of its own", fix="Leave process out.")
    if query.offset_bytes is not None and kind is not ATTEMPT:
        raise BadRequest("offsetBytes counts in one attempt's output", fix="Ask for the log of an attempt.")
    if call.services.backend is None:
        raise Unavailable("this server does not run jobs", fix="Ask the server that runs controllers.")
    await call.services.store.read(find, call, kind, name)
    attempts = RunAttempts(
        call.services.store, kind, call.project or "", name, attempt=query.attempt, index=query.index
    )
    there = await attempts.read()
    if query.index is not None and query.index >= (attempts.completions or 1):
        raise NotFound(f"{kind.singular} {name} has no index {query.index}", fix=_which(attempts.completions))
    if query.attempt is not None and not query.follow and not there:
        raise NotFound(f"{kind.singular} {name} has no attempt {query.attempt[:60]!r}")
    mixed = attempts.completions is not None and query.index is None
    body = (_mixed if mixed else _single)(call, attempts, there, query)
    return StreamResponse(body, call.services.stopping, MEDIA_TYPE)


def query_of(call: Call) -> Query:
    """Which part of a log a call asks for."""
    return Query(
        follow=call.flag("follow"), tail_lines=call.number("tailLines"), since_s=call.number("sinceSeconds"),
        timestamps=call.flag("timestamps"), attempt=call.query("attempt"), index=call.number("index"),
        offset_bytes=call.number("offsetBytes"),
    )  # fmt: skip


def _which(completions: int | None) -> str:
    return f"It has 0 to {completions - 1}." if completions else "It has no completions; leave index out."


async def _single(call: Call, attempts: RunAttempts, there: list[Source], query: Query) -> AsyncIterator[bytes]:
    """The newest attempt's output, then that of each that follows, one after the other."""
    pending, asked = there[-1:], query
    while True:
        for source in pending:
            async for chunk in attempt_log(call, source.uid, asked):
                yield chunk
            asked = query.whole
        if not query.follow or not (pending := await attempts.news()):
            return


async def _mixed(call: Call, attempts: RunAttempts, there: list[Source], query: Query) -> AsyncIterator[bytes]:
    """The lines of every index with the index before them: one index after another, or as they come to who follows."""
    newest = sorted({source.index: source for source in there}.values(), key=lambda source: source.index)
    if not query.follow:
        for source in newest:
            async for lines in _prefixed(call, source, query):
                yield lines
        return
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING_CHUNKS)
    filling = asyncio.create_task(_fill(call, attempts, newest, query, queue))
    try:
        while (found := await queue.get()) is not None:
            yield found
        await filling
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)


async def _fill(
    call: Call, attempts: RunAttempts, newest: list[Source], query: Query, queue: asyncio.Queue[bytes | None]
) -> None:
    """Put the lines of all attempts there are and come into a queue, and None at the end or at a fault."""

    async def pump(sources: list[Source], asked: Query) -> None:
        for source in sources:
            async for lines in _prefixed(call, source, asked):
                await queue.put(lines)

    try:
        async with asyncio.TaskGroup() as group:
            # Those that ended one after the other: there may be thousands, and each that is read takes memory.
            group.create_task(pump([source for source in newest if source.ended], query))
            for source in newest:
                if not source.ended:
                    group.create_task(pump([source], query))
            while new := await attempts.news():
                for source in new:
                    group.create_task(pump([source], query.whole))
    except Exception:
        await queue.put(None)
        raise
    await queue.put(None)


async def _prefixed(call: Call, source: Source, query: Query) -> AsyncIterator[bytes]:
    """Whole lines of an attempt, each with its index before it."""
    prefix, rest = b"[%d] " % source.index, b""
    async for chunk in attempt_log(call, source.uid, query):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_LIMIT_BYTES:
            lines, rest = [*lines, rest], b""
        if lines:
            yield b"".join(prefix + line + b"\n" for line in lines)
    if rest:
        yield prefix + rest + b"\n"


async def attempt_log(call: Call, uid: str, query: Query) -> AsyncIterator[bytes]:
    """What an attempt wrote, as the query asks for it; with ``follow`` until it ended."""
    backend = call.services.backend
    directory = backend.log_directory(uid)
    offset = await first_offset(call, directory, query)
    async for chunk in rendered(directory, backend.read_log(uid, offset, follow=query.follow), query):
        yield chunk


async def first_offset(call: Call, directory: Path, query: Query) -> int:
    """Where the part of a log begins that is asked for."""
    offset = query.offset_bytes or 0
    if query.since_s is not None:
        since_ns = int(call.services.clock.now().timestamp() * 1e9) - query.since_s * 10**9
        offset = max(offset, await asyncio.to_thread(logstore.since_offset, directory, since_ns))
    if query.tail_lines is not None:
        offset = max(offset, await asyncio.to_thread(logstore.tail_offset, directory, query.tail_lines))
    return offset


async def rendered(
    directory: Path, pieces: AsyncIterator[LogPiece] | AsyncIterator[OutputPiece], query: Query
) -> AsyncIterator[bytes]:
    """Stretches of output as they are shown: gaps in words and, where asked for, the time before each line."""
    stamper = _Stamper(directory) if query.timestamps else None
    async for piece in pieces:
        if piece.dropped:
            yield f"[nodus: {piece.dropped} bytes of output were dropped here]\n".encode()
        elif stamper is None:
            yield piece.data
        else:
            yield await asyncio.to_thread(stamper.stamp, piece.offset, piece.data)


class _Stamper:
    """Puts the time it was written before each line."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._at_line_start = True
        self._stamps: list[tuple[int, int]] = []
        self._starts: list[int] = []
        self._known_to = -1
        """The times are of the output up to here."""

    def stamp(self, offset: int, data: bytes) -> bytes:
        """The lines of one piece with their times. Reads files."""
        if offset + len(data) > self._known_to:
            self._known_to = logstore.size(self._directory)
            self._stamps = logstore.stamps(self._directory)
            self._starts = [start for start, _ in self._stamps]
        return b"".join(self._stamped(offset, data))

    def _stamped(self, offset: int, data: bytes) -> Iterator[bytes]:
        """Cut the data where the time changes; what was written at one time is stamped in one go."""
        first = max(0, bisect.bisect_right(self._starts, offset) - 1)
        last = bisect.bisect_left(self._starts, offset + len(data))
        cuts = [max(0, start - offset) for start in self._starts[first + 1 : last]]
        for number, (start, end) in enumerate(pairwise([0, *cuts, len(data)]), start=first):
            part = data[start:end]
            if not part:
                continue
            moment = _rfc3339_ms(self._stamps[number][1] if self._stamps else 0) + b" "
            ends = part.endswith(b"\n")
            if self._at_line_start:
                yield moment
            yield (part[:-1] if ends else part).replace(b"\n", b"\n" + moment)
            yield b"\n" if ends else b""
            self._at_line_start = ends


def _rfc3339_ms(moment_ns: int) -> bytes:
    moment = datetime.fromtimestamp(moment_ns / 1e9, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z".encode()
