"""uvicorn's HTTP protocol with bounds on how much and how slowly a client may send and read.

uvicorn itself accepts headers of any size and waits for ever: for headers, for a body, for a reader. What is refused
before a handler sees it gets a Status and a request id like every other answer.
"""

from __future__ import annotations

import asyncio
import http
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nodus.core.errors import BadRequest, NodusError
from nodus.core.ids import new_id
from nodus.server.api.http import json_bytes

HEADERS_LIMIT_BYTES = 256 * 1024
"""Of request line and headers together; also what may arrive in one piece with the start of a body."""
HEADERS_TIMEOUT_S = 30.0
BODY_STALL_S = 120.0
"""A body of which nothing comes for so long is given up. What handlers read whole has a bound of its own."""
READER_STALL_S = 60.0
READER_LEAST_BYTES = 8 * 1024
"""A client that reads less in a stall's time, while more waits for it, is taken for gone."""


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection that is too large, or too slow, in either direction."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = True
        self._in_body = False
        self._header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._end_wait()
        self._end_reader_wait()
        super().connection_lost(exc)

    # What comes in ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Count what comes before the headers are complete."""
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > HEADERS_LIMIT_BYTES:
                message = f"request line and headers are over {HEADERS_LIMIT_BYTES} bytes"
                self._refuse(431, BadRequest(message, fix="Send less in headers."))
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A further request on the same connection."""
        if not self._in_headers:
            self._header_bytes = 0
            self._expect_headers()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The rest is body."""
        self._in_headers = False
        self._in_body = True
        super().on_headers_complete()
        self._expect_body()

    def on_body(self, body: bytes) -> None:
        """Note that the body goes on."""
        self._expect_body()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The body is whole."""
        self._in_body = False
        self._end_wait()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over; another protocol bounds it."""
        self._in_headers = self._in_body = False
        self._end_wait()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._end_wait()
        self._refuse(400, BadRequest("the request is not valid HTTP", fix="Send HTTP/1.1."))

    def _refuse(self, status: int, error: NodusError) -> None:
        request_id = new_id("req")
        content = json_bytes({**error.to_status(request_id), "code": status})
        head = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\nx-request-id: {request_id}\r\nconnection: close\r\n\r\n"
        )
        self._end_wait()
        self.transport.write(head.encode() + content)
        self.transport.close()

    def _expect_headers(self) -> None:
        self._in_headers = True
        self._wait(HEADERS_TIMEOUT_S)

    def _expect_body(self) -> None:
        if self._in_body:
            self._wait(BODY_STALL_S)

    def _wait(self, seconds: float) -> None:
        self._end_wait()
        self._timer = self.loop.call_later(seconds, self._too_late)

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        if self.transport.is_closing():
            return
        if self._in_body and (self.flow.read_paused or self.cycle.waiting_for_100_continue):
            # It is the handler that does not read; the client can't help it.
            self._expect_body()
        elif self._in_body:
            self.transport.abort()
        else:
            self.transport.close()

    # What goes out ------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """More waits for the client than it reads: see whether it reads at all."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """The client caught up."""
        self._end_reader_wait()
        super().resume_writing()

    def _watch_reader(self) -> None:
        self._end_reader_wait()
        waiting = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(READER_STALL_S, self._reader_stalled, waiting)

    def _reader_stalled(self, waiting: int) -> None:
        self._reader_timer = None
        if self.transport.get_write_buffer_size() > waiting - READER_LEAST_BYTES:
            self.transport.abort()
        else:
            self._watch_reader()

    def _end_reader_wait(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
