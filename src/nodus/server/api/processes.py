"""Processes in Sandboxes: started, read, fed, signalled and waited for over plain HTTP."""

from __future__ import annotations

import asyncio
import base64
import binascii
import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.durations import parse_duration
from nodus.core.errors import BadRequest, Invalid, NodusError, NotFound, Unavailable
from nodus.core.kinds import PROCESS, SANDBOX, Kind
from nodus.server import sandboxes
from nodus.server.api import idempotent
from nodus.server.api.admitting import admit_draft, resolve_draft
from nodus.server.api.auth import CREATED_BY
from nodus.server.api.call import Call, checked_name
from nodus.server.api.envelope import read_envelope
from nodus.server.api.http import json_bytes, json_response, read_object
from nodus.server.api.present import present
from nodus.server.api.reading import find
from nodus.server.api.streaming import StreamResponse
from nodus.server.compute.processes import OutputPiece
from nodus.server.kinds.base import Draft
from nodus.server.sandboxes import Place, SandboxService
from nodus.server.store import objects
from nodus.server.store.idempotency import Reply

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

LONGEST_WAIT_S = 60.0
ANSWER_BYTES = 4 << 20
"""About how much output one answer holds; whoever wants more asks again."""
STDIN_BYTES = 512 * 1024
SIGNALS = ("SIGINT", "SIGTERM", "SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
STREAMS = ("stdout", "stderr")
RECORD_PATIENCE_S = 5.0
_LOOK_S = 0.05
_LARGEST_SIDE = 10_000


def service_of(call: Call) -> SandboxService:
    """The Sandboxes of this server.

    Raises:
        Unavailable: It runs none.
    """
    if call.services.backend is None:
        raise Unavailable("this server does not run sandboxes", fix="Ask the server that runs controllers.")
    return SandboxService(call.services)


async def collection(call: Call, kind: Kind) -> Response:
    """``GET .../processes``: the processes of a Sandbox, oldest first."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name, "processes")
    items = await call.services.store.read(_of_sandbox, call, kind, name)
    return json_response({"kind": "ProcessList", "apiVersion": PROCESS.api_version, "metadata": {}, "items": items})


def _of_sandbox(conn: Connection, call: Call, kind: Kind, name: str) -> list[dict[str, Any]]:
    sandbox = find(conn, call, kind, name)
    found = objects.list_(conn, PROCESS, call.project, fields=f"spec.sandbox={sandbox.name}").items
    return [present(conn, PROCESS, process) for process in sorted(found, key=_number)]


def _number(process: Object) -> int:
    return int(process.spec["number"])


async def start(call: Call, kind: Kind) -> Response:
    """``POST .../processes``: start a command in a Sandbox, which is waited for when it is on its way."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("create", kind, call.project, name, "processes")
    service = service_of(call)
    body = await read_object(call.request)
    request = idempotent.key_of(call, body)
    draft = read_envelope(PROCESS, call.project, body, call.principal.user)
    if draft.name or draft.generate_name:
        draft.reject("metadata.name", "is given by the server; leave it out", "FieldValueForbidden")
    await resolve_draft(call.services, draft)
    await call.services.store.read(_check, call, draft)
    await call.services.store.read(find, call, kind, name)
    place = await service.running(call.project or "", name)
    made = await call.services.store.write(_record, call, draft, place, request)
    if isinstance(made, Reply):
        return idempotent.replayed(made)
    try:
        await service.begin(place, made)
    except NodusError:
        if request is not None:
            await call.services.store.write(idempotent.abandon, request)
        raise
    wire = await call.services.store.write(_complete, call, made, request)
    return json_response(wire, 201)


def _check(conn: Connection, call: Call, draft: Draft) -> None:
    admit_draft(conn, call.services, draft)


def _record(
    conn: Connection, call: Call, draft: Draft, place: Place, request: idempotent.Keyed | None
) -> Object | Reply:
    if request is not None and (reply := idempotent.begin(conn, call, request)) is not None:
        return reply
    return sandboxes.record(conn, place, draft.spec, {**draft.labels, CREATED_BY: draft.user})


def _complete(conn: Connection, call: Call, process: Object, request: idempotent.Keyed | None) -> dict[str, Any]:
    wire = present(conn, PROCESS, process)
    if request is not None:
        idempotent.complete(conn, call, request, 201, wire)
    return wire


# One process ------------------------------------------------------------------------------------------------------


async def found(call: Call, kind: Kind, verb: str, sub: str) -> Object:
    """The process that a call names, if it may be used so.

    Raises:
        NotFound: There is none.
        Forbidden: The key may not.
    """
    name = checked_name(kind, call.params["name"])
    call.principal.require(verb, kind, call.project, name, sub)
    return await call.services.store.read(find, call, kind, name)


async def wait_for_end(call: Call) -> None:
    """With ``?wait=30s``, let a GET of a process take so long, unless it ends before.

    Raises:
        BadRequest: The time makes no sense.
    """
    wait_s = _wait_s(call)
    if not wait_s:
        return
    process = await found(call, PROCESS, "get", "output")
    if PROCESS.is_terminal(process.status.get("phase")):
        return
    async for _ in service_of(call).follow(process, after=2**62, wait_s=wait_s, reader="wait"):
        pass
    if (await service_of(call).state(process)).ended:
        await _recorded(call, process.uid)


async def _recorded(call: Call, uid: str) -> None:
    """Wait a little for the controller to record the end of a process that ended."""
    end = asyncio.get_running_loop().time() + RECORD_PATIENCE_S
    while asyncio.get_running_loop().time() < end:
        process = await call.services.store.read(objects.find_by_uid, uid)
        if process is None or PROCESS.is_terminal(process.status.get("phase")):
            return
        await asyncio.sleep(_LOOK_S)


async def output(call: Call, kind: Kind) -> Response:
    """``GET .../output``: what a process wrote after an offset, as JSON lines; waits for it when asked to."""
    process = await found(call, kind, "get", "output")
    after, wait_s = call.number("after") or 0, _wait_s(call)
    stream = call.query("stream")
    if stream not in (None, *STREAMS):
        raise BadRequest(f"stream={stream[:40]!r} is not one of {', '.join(STREAMS)}")
    body = _lines(service_of(call), process, after, stream, wait_s)
    return StreamResponse(body, call.services.stopping, "application/x-ndjson")


async def _lines(
    service: SandboxService, process: Object, after: int, stream: str | None, wait_s: float
) -> AsyncIterator[bytes]:
    sent = 0
    pieces = service.follow(process, after, wait_s=wait_s, reader=f"poll-{stream or 'both'}")
    async for piece in pieces:
        after = piece.end
        if stream not in (None, piece.stream):
            continue
        yield _line(piece)
        sent += len(piece.data)
        if sent >= ANSWER_BYTES:
            return
        if wait_s:
            # What is there now is answered now; whoever waits does so with the next call.
            rest = await service.processes.read(process.spec["attempt"], process.uid, after)
            if not rest:
                break
    state = await service.state(process)
    if not state.ended:
        return
    for piece in await _rest(service, process, after):
        if stream in (None, piece.stream):
            yield _line(piece)
    code = state.exit_code if state.exit_code is not None else 137
    last: dict[str, Any] = {"done": True, "exitCode": code}
    if state.reason is not None:
        last["reason"] = state.reason
    yield json_bytes(last) + b"\n"


async def _rest(service: SandboxService, process: Object, after: int) -> list[OutputPiece]:
    """What a process that ended wrote after what was read while it might still run."""
    pieces: list[OutputPiece] = []
    while more := await service.processes.read(process.spec["attempt"], process.uid, after):
        pieces += more
        after = more[-1].end
    return pieces


def _line(piece: OutputPiece) -> bytes:
    line: dict[str, Any] = {"offset": piece.offset, "stream": piece.stream}
    line["data"] = base64.b64encode(piece.data).decode()
    if piece.dropped:
        # So that whoever adds up lengths goes on behind the gap.
        line |= {"offset": piece.end, "dropped": piece.dropped}
    return json_bytes(line) + b"\n"


def _wait_s(call: Call) -> float:
    text = call.query("wait")
    if text is None:
        return 0.0
    try:
        return max(0.0, min(LONGEST_WAIT_S, parse_duration(text)))
    except ValueError as error:
        raise BadRequest(f"wait={text[:40]!r}: {error}", fix="Write it like wait=30s.") from error


async def stdin(call: Call, kind: Kind) -> Response:
    """``POST .../stdin``: give a process input; a repeated ``seq`` is taken once."""
    process = await found(call, kind, "update", "stdin")
    body = await read_object(call.request)
    unknown = sorted(set(body) - {"data", "eof", "seq"})
    seq, data = body.get("seq"), body.get("data") or ""
    if unknown or not isinstance(data, str) or not (seq is None or (type(seq) is int and seq > 0)):
        raise Invalid(
            f"input is {{data, eof, seq}}{f', and has no {unknown[0][:60]!r}' if unknown else ''}",
            fix='Send {"data": base64, "eof": true|false, "seq": 1, 2, 3, ...}.',
        )
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"data is not base64: {error}") from error
    if len(content) > STDIN_BYTES:
        raise Invalid(f"data holds {len(content)} bytes; at most {STDIN_BYTES} a call")
    call.audited = True  # that it was started is noted
    attempt = process.spec["attempt"]
    ends = bool(body.get("eof"))
    await service_of(call).processes.write(attempt, process.uid, content, ends=ends, seq=seq)
    return json_response({})


async def signals(call: Call, kind: Kind) -> Response:
    """``POST .../signals``: send a signal to a process, or set the size of its terminal."""
    process = await found(call, kind, "update", "signals")
    body = await read_object(call.request)
    service, attempt = service_of(call), process.spec["attempt"]
    if "resize" in body:
        rows, columns = size_of(body["resize"])
        await service.processes.resize(attempt, process.uid, rows, columns)
    elif body.get("signal") in SIGNALS:
        await service.processes.signal(attempt, process.uid, int(signal.Signals[str(body["signal"])]))
    else:
        shown = str(body.get("signal"))[:40]
        raise Invalid(f"{shown!r} is not one of {', '.join(SIGNALS)}", fix='Send {"signal": "SIGTERM"}.')
    return json_response({})


def size_of(value: Any) -> tuple[int, int]:
    """Rows and columns as a request has them.

    Raises:
        Invalid: They are none.
    """
    sides = (
        [side for name in ("rows", "cols") if type(side := value.get(name)) is int] if isinstance(value, dict) else []
    )
    if len(sides) != 2 or not all(0 <= side <= _LARGEST_SIDE for side in sides):
        raise Invalid("resize needs rows and cols, whole numbers", fix='Send {"resize": {"rows": 24, "cols": 80}}.')
    return int(sides[0]), int(sides[1])


def of_sandbox(conn: Connection, call: Call, name: str, number: str) -> Object:
    """A Sandbox's process by its number.

    Raises:
        NotFound: It has none of that number.
    """
    sandbox = find(conn, call, SANDBOX, name)
    process = None
    if number.isascii() and number.isdecimal() and len(number) <= 18:
        process = objects.find(conn, PROCESS, call.project, sandboxes.process_name(sandbox.name, int(number)))
    if process is None:
        raise NotFound(f"sandbox {name} has no process {number[:40]!r}", fix="`nodus get processes` lists them.")
    return process
