"""Logs of runs: one attempt's output, that of the attempts after it, or that of all indexes at once."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

from nodus.core.errors import BadRequest, NotFound, Unavailable
from nodus.core.kinds import ATTEMPT, JOB, Kind
from nodus.server.api.call import Call, checked_name
from nodus.server.api.reading import find
from nodus.server.api.streaming import StreamResponse
from nodus.server.compute.base import LogPiece
from nodus.server.compute.local import logstore
from nodus.server.compute.processes import OutputPiece
from nodus.server.store import objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

JOB_LABEL = "nodus.dev/job"
FIRST_LOOK_S, NEXT_ATTEMPT_S = 0.05, 1.0
"""How soon after an attempt's end the next one is looked for, and how seldom at last."""
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


@dataclass(frozen=True, slots=True)
class _Source:
    """An attempt that may have output."""

    uid: str
    index: int


@dataclass(frozen=True, slots=True)
class _State:
    """What a log is made of at one moment."""

    sources: tuple[_Source, ...]
    """Oldest first."""
    over: bool
    """No further attempt will come."""
    completions: int | None
    """How many indexes the run has, if it has any."""


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
    state = await call.services.store.read(_state, call.project or "", kind, name, query)
    if query.index is not None and query.index >= (state.completions or 1):
        raise NotFound(f"{kind.singular} {name} has no index {query.index}", fix=_which(state))
    if query.attempt is not None and not query.follow and not state.sources:
        raise NotFound(f"{kind.singular} {name} has no attempt {query.attempt[:60]!r}")
    mixed = state.completions is not None and query.index is None
    body = _mixed(call, kind, name, query) if mixed else _single(call, kind, name, query)
    return StreamResponse(body, call.services.stopping, MEDIA_TYPE)


def query_of(call: Call) -> Query:
    """Which part of a log a call asks for."""
    return Query(
        follow=call.flag("follow"), tail_lines=call.number("tailLines"), since_s=call.number("sinceSeconds"),
        timestamps=call.flag("timestamps"), attempt=call.query("attempt"), index=call.number("index"),
        offset_bytes=call.number("offsetBytes"),
    )  # fmt: skip


def _which(state: _State) -> str:
    return f"It has 0 to {state.completions - 1}." if state.completions else "It has no completions; leave index out."


def _state(conn: Connection, project: str, kind: Kind, name: str, query: Query) -> _State:
    if kind is ATTEMPT:
        attempt = objects.find(conn, ATTEMPT, project, name)
        return _State((_Source(attempt.uid, 0),) if attempt else (), True, None)
    owner = objects.find(conn, kind, project, name)
    job = objects.find(conn, JOB, project, name)
    found = objects.list_(conn, ATTEMPT, project, labels={JOB_LABEL: name}).items if job is not None else []
    found = sorted((a for a in found if _is_of(a, job)), key=lambda a: (int(a.spec.get("epoch", 0)), _index(a)))
    if query.index is not None:
        found = [a for a in found if _index(a) == query.index]
    if query.attempt is not None:
        found = [a for a in found if query.attempt in (a.name, str(a.spec.get("epoch")))]
    over = owner is None or kind.is_terminal(owner.status.get("phase"))
    over = over or (query.attempt is not None and bool(found) and all(map(_ended, found)))
    completions = job.spec.get("completions") if job is not None else None
    return _State(tuple(_Source(a.uid, _index(a)) for a in found), over, completions)


def _is_of(attempt: Object, job: Object | None) -> bool:
    return job is not None and any(ref.get("uid") == job.uid for ref in attempt.owner_references)


def _index(attempt: Object) -> int:
    return int(attempt.spec.get("slot") or 0)


def _ended(attempt: Object) -> bool:
    return ATTEMPT.is_terminal(attempt.status.get("phase"))


async def _single(call: Call, kind: Kind, name: str, query: Query) -> AsyncIterator[bytes]:
    """The newest attempt's output, then that of each that follows, one after the other."""
    done: set[str] = set()
    first, wait_s = True, FIRST_LOOK_S
    while True:
        state = await call.services.store.read(_state, call.project or "", kind, name, query)
        pending = [source.uid for source in state.sources if source.uid not in done]
        for uid in pending[-1:] if first else pending:
            async for chunk in attempt_log(call, uid, query if first else query.whole):
                yield chunk
        done.update(source.uid for source in state.sources)
        first = first and not pending
        if not query.follow or state.over:
            return
        wait_s = FIRST_LOOK_S if pending else min(wait_s * 1.5, NEXT_ATTEMPT_S)
        await asyncio.sleep(wait_s)


async def _mixed(call: Call, kind: Kind, name: str, query: Query) -> AsyncIterator[bytes]:
    """The lines of every index with the index before them: one index after another, or as they come to who follows."""
    state = await call.services.store.read(_state, call.project or "", kind, name, query)
    if not query.follow:
        for source in _newest(state):
            async for lines in _prefixed(call, source, query):
                yield lines
        return
    queue: asyncio.Queue[bytes] = asyncio.Queue(WAITING_CHUNKS)
    pumps: set[asyncio.Task[None]] = set()
    seen = {source.uid for source in state.sources}
    try:
        pumps |= {_pump(call, source, query, queue) for source in _newest(state)}
        while True:
            async for lines in _for_a_while(queue, pumps):
                yield lines
            state = await call.services.store.read(_state, call.project or "", kind, name, query)
            new = [source for source in state.sources if source.uid not in seen]
            seen |= {source.uid for source in new}
            pumps |= {_pump(call, source, query.whole, queue) for source in new}
            if state.over and not new and queue.empty() and all(pump.done() for pump in pumps):
                return
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _newest(state: _State) -> list[_Source]:
    return sorted({source.index: source for source in state.sources}.values(), key=lambda source: source.index)


def _pump(call: Call, source: _Source, query: Query, queue: asyncio.Queue[bytes]) -> asyncio.Task[None]:
    async def pump() -> None:
        async for lines in _prefixed(call, source, query):
            await queue.put(lines)

    return asyncio.create_task(pump())


async def _for_a_while(queue: asyncio.Queue[bytes], pumps: set[asyncio.Task[None]]) -> AsyncIterator[bytes]:
    """Yield what comes until it is time to look for further attempts; sooner where all that were followed ended."""
    loop = asyncio.get_running_loop()
    end = loop.time() + NEXT_ATTEMPT_S
    while (left_s := end - loop.time()) > 0:
        for pump in [pump for pump in pumps if pump.done()]:
            pumps.discard(pump)
            pump.result()
        if not pumps and queue.empty():
            await asyncio.sleep(min(left_s, FIRST_LOOK_S * 4))
            return
        try:
            yield await asyncio.wait_for(queue.get(), min(left_s, FIRST_LOOK_S * 4))
        except TimeoutError:
            continue


async def _prefixed(call: Call, source: _Source, query: Query) -> AsyncIterator[bytes]:
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
