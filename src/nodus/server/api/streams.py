"""Logs and outputs of runs: followed text, and downloads by signed redirect."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.errors import BadRequest, NotFound, OutputIndexRequired, OutputNotFound, Unavailable
from nodus.core.kinds import ATTEMPT, JOB, TRAINING_JOB, Kind
from nodus.server.api.blobs import redirect
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import json_response
from nodus.server.api.reading import find
from nodus.server.api.streaming import StreamResponse
from nodus.server.compute.local import logstore
from nodus.server.store import objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

JOB_LABEL = "nodus.dev/job"
NEXT_ATTEMPT_S = 1.0


# Logs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LogQuery:
    follow: bool
    tail_lines: int | None
    since_s: int | None
    timestamps: bool
    attempt: str | None


@dataclass(frozen=True, slots=True)
class _LogState:
    """What a log is made of at one moment."""

    attempts: tuple[tuple[str, bool], ...]
    """Uid of each attempt that may have output, oldest first, and whether it ended."""
    over: bool
    """No further attempt will come."""


async def log(call: Call, kind: Kind) -> Response:
    """``GET .../log``: the output of a run's newest attempt; with ``follow`` also of those that come after it."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name, "log")
    query = _LogQuery(
        follow=call.flag("follow"), tail_lines=call.number("tailLines"), since_s=call.number("sinceSeconds"),
        timestamps=call.flag("timestamps"), attempt=call.query("attempt"),
    )  # fmt: skip
    for absent in ("rank", "index"):
        if call.number(absent):
            raise NotFound(f"{kind.singular} {name} has no {absent} {call.query(absent)}")
    if call.services.backend is None:
        raise Unavailable("this server does not run jobs", fix="Ask the server that runs controllers.")
    await call.services.store.read(find, call, kind, name)
    if query.attempt is not None and not query.follow:
        state = await call.services.store.read(_log_state, call.project or "", kind, name, query.attempt)
        if not state.attempts:
            raise NotFound(f"{kind.singular} {name} has no attempt {query.attempt[:60]!r}")
    body = _log_body(call, kind, name, query)
    return StreamResponse(body, call.services.stopping, "text/plain; charset=utf-8")


async def _log_body(call: Call, kind: Kind, name: str, query: _LogQuery) -> AsyncIterator[bytes]:
    done: set[str] = set()
    first = True
    while True:
        state = await call.services.store.read(_log_state, call.project or "", kind, name, query.attempt)
        pending = [uid for uid, _ in state.attempts if uid not in done]
        for uid in pending[-1:] if first else pending:
            async for chunk in _attempt_log(call, uid, query, whole=not first):
                yield chunk
        done.update(uid for uid, _ in state.attempts)
        first = first and not pending
        if not query.follow or state.over:
            return
        await asyncio.sleep(NEXT_ATTEMPT_S)


def _log_state(conn: Connection, project: str, kind: Kind, name: str, wanted: str | None) -> _LogState:
    if kind is ATTEMPT:
        attempt = objects.find(conn, ATTEMPT, project, name)
        return _LogState(((attempt.uid, _ended(attempt)),) if attempt else (), True)
    owner = objects.find(conn, kind, project, name)
    job = objects.find(conn, JOB, project, name)
    found = objects.list_(conn, ATTEMPT, project, labels={JOB_LABEL: name}).items if job is not None else []
    found = sorted((a for a in found if _is_of(a, job)), key=lambda a: int(a.spec.get("epoch", 0)))
    if wanted is not None:
        found = [a for a in found if wanted in (a.name, str(a.spec.get("epoch")))]
    over = (
        owner is None or kind.is_terminal(owner.status.get("phase")) or (wanted is not None and all(map(_ended, found)))
    )
    return _LogState(tuple((a.uid, _ended(a)) for a in found), over)


def _is_of(attempt: Object, job: Object | None) -> bool:
    return job is not None and any(ref.get("uid") == job.uid for ref in attempt.owner_references)


def _ended(attempt: Object) -> bool:
    return ATTEMPT.is_terminal(attempt.status.get("phase"))


async def _attempt_log(call: Call, uid: str, query: _LogQuery, *, whole: bool) -> AsyncIterator[bytes]:
    backend = call.services.backend
    directory = backend.log_directory(uid)
    offset = 0
    if not whole and query.since_s is not None:
        since_ns = int(call.services.clock.now().timestamp() * 1e9) - query.since_s * 10**9
        offset = await asyncio.to_thread(logstore.since_offset, directory, since_ns)
    if not whole and query.tail_lines is not None:
        offset = max(offset, await asyncio.to_thread(logstore.tail_offset, directory, query.tail_lines))
    stamper = _Stamper(directory) if query.timestamps else None
    async for piece in backend.read_log(uid, offset, follow=query.follow):
        if piece.dropped:
            yield f"[nodus: {piece.dropped} bytes of output were dropped here]\n".encode()
        elif stamper is None:
            yield piece.data
        else:
            yield await asyncio.to_thread(stamper.stamp, piece.offset, piece.data)


class _Stamper:
    """Puts the time it was written before each line."""

    def __init__(self, directory: Any) -> None:
        self._directory = directory
        self._at_line_start = True

    def stamp(self, offset: int, data: bytes) -> bytes:
        """The lines of one piece with their times. Reads files."""
        return b"".join(self._stamped(offset, data))

    def _stamped(self, offset: int, data: bytes) -> Iterator[bytes]:
        stamps = logstore.stamps(self._directory)
        starts = [start for start, _ in stamps]
        for line in data.splitlines(keepends=True):
            if self._at_line_start:
                position = bisect.bisect_right(starts, offset) - 1
                yield _rfc3339_ms(stamps[position][1] if position >= 0 else 0) + b" "
            yield line
            self._at_line_start = line.endswith(b"\n")
            offset += len(line)


def _rfc3339_ms(moment_ns: int) -> bytes:
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(moment_ns / 1e9, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z".encode()


# Outputs ------------------------------------------------------------------------------------------------------


async def outputs(call: Call, kind: Kind) -> Response:
    """``GET .../outputs``: the files a run left."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name, "outputs")
    found = await call.services.store.read(_outputs, call, kind, name)
    return json_response({"items": found})


async def output(call: Call, kind: Kind, path: str) -> Response:
    """``GET .../outputs/{path}``: a redirect to one file, with the digest to check it against."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name, "outputs")
    index, rank = call.number("index"), call.number("rank")
    found = await call.services.store.read(_outputs, call, kind, name)
    matching = [
        item for item in found
        if item["name"] == path and index in (None, item.get("index", 0)) and rank in (None, item.get("rank", 0))
    ]  # fmt: skip
    if not matching:
        near = sorted({str(item["name"]) for item in found})
        fix = f"There are: {', '.join(near[:10])}." if near else "It has no outputs yet."
        raise OutputNotFound(f"{kind.singular} {name} has no output {path[:200]!r}", fix=fix)
    if len({item.get("index", 0) for item in matching}) > 1:
        raise OutputIndexRequired(f"several indexes have an output {path!r}", fix="Say which with ?index=.")
    sha256 = str(matching[0].get("sha256") or "").removeprefix("sha256:")
    if not sha256 or not call.services.store.blobs.exists(sha256):
        raise OutputNotFound(f"the file of output {path!r} is not kept any more")
    return redirect(call.request, call.services, sha256, path)


def _outputs(conn: Connection, call: Call, kind: Kind, name: str) -> list[dict[str, Any]]:
    obj = find(conn, call, kind, name)
    listed: list[dict[str, Any]] = obj.status.get("outputs") or []
    if kind is not TRAINING_JOB:
        return listed
    # A TrainingJob lists names and sizes; the digests are its Job's.
    job = objects.find(conn, JOB, call.project, str(obj.status.get("job") or name))
    kept = {item["name"]: item for item in (job.status.get("outputs") or [])} if job is not None else {}
    return [{**kept.get(item["name"], {}), **item} for item in listed] if listed else list(kept.values())


def parse_page(call: Call) -> tuple[int, str | None]:
    """``limit`` and ``after`` of a paged subresource.

    Raises:
        BadRequest: a limit out of range.
    """
    limit = call.number("limit", 1, 5000) or 500
    after = call.query("after") or call.query("continue")
    if after is not None and len(after) > 64:
        raise BadRequest("the page token is not one of this server")
    return limit, after
