"""A terminal, or the plain streams, of a process over a WebSocket: the protocol ``v5.channel.k8s.io``.

Each binary message begins with a channel number: 0 input, 1 output, 2 errors, 3 the end as a Status, 4 the terminal's
size as JSON; 255 and a channel number closes that channel. Output comes from its beginning, so that who starts a
command and attaches to it misses nothing. A connection that breaks leaves the process as it is: attach again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from nodus.core.errors import BadRequest, NodusError, SandboxNotRunning, StdinBackpressure
from nodus.core.ids import new_id
from nodus.core.kinds import PROCESS, PROJECT, Kind
from nodus.server.api import auditing
from nodus.server.api.auth import Standing, authenticate
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import error_response, json_bytes
from nodus.server.api.middleware import to_nodus_error
from nodus.server.api.processes import found, service_of
from nodus.server.compute.processes import ProcessState
from nodus.server.sandboxes import SandboxService

if TYPE_CHECKING:
    from nodus.server.services import Services
    from nodus.server.store.objects import Object

PROTOCOL = "v5.channel.k8s.io"
PATH = "/apis/nodus.dev/v1/namespaces/{project}/processes/{name}/attach"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PIECE_BYTES = 128 * 1024
_CHANNELS = {"stdout": STDOUT, "stderr": STDERR}
_LARGEST_SIDE = 10_000


async def explain(call: Call, kind: Kind) -> Response:
    """``GET .../attach``: a WebSocket to a process's input, output and terminal."""
    await found(call, kind, "update", "attach")
    raise BadRequest("attach is a WebSocket", fix=f"Connect with the subprotocol {PROTOCOL}, or use the output route.")


def endpoint(services: Services) -> Callable[[WebSocket], Awaitable[None]]:
    """What serves the connections of the attach route."""

    async def serve(socket: WebSocket) -> None:
        request_id = new_id("req")
        try:
            process, service, standing = await _open(socket, services, request_id)
        except Exception as raised:  # noqa: BLE001 - the boundary of a request: whatever it is becomes a Status
            error = to_nodus_error(raised)
            await socket.send_denial_response(error_response(error, request_id, {"X-Request-Id": request_id}))
            return
        await socket.accept(PROTOCOL, headers=[(b"x-request-id", request_id.encode())])
        await _Attached(socket, service, process, request_id, services.stopping, standing).run()

    return serve


async def _open(socket: WebSocket, services: Services, request_id: str) -> tuple[Object, SandboxService, Standing]:
    """Find the process that a handshake asks for, as a request for it would.

    Raises:
        NodusError: It can't be attached to.
    """
    scope = {**socket.scope, "type": "http", "method": "GET", "state": {"request_id": request_id}}
    request = Request(scope)
    principal = await authenticate(request, services)
    params = {"version": PROCESS.version, "plural": PROCESS.plural, **socket.path_params}
    params["project"] = checked_name(PROJECT, params["project"])
    call = Call(request, services, principal, params)
    process = await found(call, PROCESS, "update", "attach")
    if PROTOCOL not in socket.scope.get("subprotocols", ()):
        raise BadRequest(f"the handshake does not offer {PROTOCOL}", fix=f"Offer the subprotocol {PROTOCOL}.")
    service = service_of(call)
    await auditing.note_connection(call, "attach")
    return process, service, Standing(request, services, principal)


class _Attached:
    """One connection to one process.

    Args:
        socket: Accepted.
        service: The server's Sandboxes.
        process: The process.
        reader: Names this connection.
        stopping: Set when the server stops; the connection ends then, the process does not.
        standing: Whether the key of the handshake still holds; the connection ends with it.
    """

    def __init__(
        self, socket: WebSocket, service: SandboxService, process: Object, reader: str, stopping: asyncio.Event,
        standing: Standing,
    ) -> None:  # fmt: skip
        self._socket = socket
        self._service = service
        self._process = process
        self._reader = reader
        self._stopping = stopping
        self._standing = standing
        query = socket.query_params
        self._channels = {
            stream: channel for stream, channel in _CHANNELS.items() if query.get(stream, "true") != "false"
        }
        self._takes_stdin = query.get("stdin", "true") != "false" and bool(process.spec.get("stdin"))

    async def run(self) -> None:
        """Carry both ways until the process ended, the client left or the server stops."""
        tasks = [
            asyncio.create_task(self._send()),
            asyncio.create_task(self._receive()),
            asyncio.create_task(self._stopping.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        problem = next(
            (r for r in results if isinstance(r, Exception) and not isinstance(r, WebSocketDisconnect)), None
        )
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # the client is gone
            if problem is not None:
                await self._tell(_failure(to_nodus_error(problem)))
            if self._socket.application_state == WebSocketState.CONNECTED:
                await self._socket.close(1001 if self._stopping.is_set() else 1000)

    async def _send(self) -> None:
        """Send output as it comes, then how the process ended."""
        async for piece in self._service.follow(self._process, reader=self._reader):
            channel = self._channels.get(piece.stream)
            if channel is None:
                continue
            await self._standing.check()
            for start in range(0, len(piece.data), PIECE_BYTES):
                await self._socket.send_bytes(bytes([channel]) + piece.data[start : start + PIECE_BYTES])
        await self._tell(_ending(await self._service.state(self._process)))

    async def _tell(self, status: dict[str, Any]) -> None:
        await self._socket.send_bytes(bytes([STATUS]) + json_bytes(status))

    async def _receive(self) -> None:
        """Take input and sizes until the client leaves."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes") or (message.get("text") or "").encode()
            if data:
                await self._standing.check()
                await self._take(data[0], data[1:])

    async def _take(self, channel: int, content: bytes) -> None:
        if channel == STDIN and content and self._takes_stdin:
            await self._feed(content, ends=False)
        elif channel == CLOSE and content[:1] == bytes([STDIN]) and self._takes_stdin:
            await self._feed(b"", ends=True)
        elif channel == RESIZE:
            size = _size(content)
            if size is not None:
                await self._service.processes.resize(self._process.spec["attempt"], self._process.uid, *size)

    async def _feed(self, content: bytes, *, ends: bool) -> None:
        """Give input, holding back the client for as long as the process does not read it."""
        pause_s = 0.01
        while True:
            try:
                await self._service.processes.write(
                    self._process.spec["attempt"], self._process.uid, content, ends=ends
                )
                return
            except StdinBackpressure:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 0.5)
            except SandboxNotRunning:
                self._takes_stdin = False  # It ended; that is told on its own channel.
                return


def _size(content: bytes) -> tuple[int, int] | None:
    """Rows and columns of a terminal; None where there is no sense in them."""
    try:
        found = json.loads(content)
        rows, columns = int(found["Height"]), int(found["Width"])
    except (ValueError, KeyError, TypeError):
        return None
    # A client without a terminal of its own sends zeros.
    return (rows, columns) if 0 < rows <= _LARGEST_SIDE and 0 < columns <= _LARGEST_SIDE else None


def _ending(state: ProcessState) -> dict[str, Any]:
    """The Status of a process that ended."""
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
    code = state.exit_code if state.exit_code is not None else 137
    if code == 0 and state.reason is None:
        return {**head, "status": "Success"}
    message = state.message or f"command terminated with exit code {code}"
    if state.reason is not None:
        message = f"{state.reason}: {message}"
    causes = [{"reason": "ExitCode", "message": str(code)}]
    if state.reason is not None:
        causes.append({"reason": "Reason", "message": state.reason})
    return {
        **head, "status": "Failure", "reason": "NonZeroExitCode", "message": message, "details": {"causes": causes},
    }  # fmt: skip


def _failure(error: NodusError) -> dict[str, Any]:
    """The Status of a connection that can't go on."""
    return error.to_status()
