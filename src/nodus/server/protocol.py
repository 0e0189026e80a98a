"""uvicorn's HTTP protocol with bounds on what a client may send before anybody knows who it is.

uvicorn itself accepts headers of any size and waits for them for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_LIMIT_BYTES = 256 * 1024
"""Of request line and headers together; also what may arrive in one piece with the start of a body."""
HEADERS_TIMEOUT_S = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers are too large, or take too long to come."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = True
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._end_wait()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes before the headers are complete."""
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > HEADERS_LIMIT_BYTES:
                self._end_wait()
                self.transport.write(
                    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                )
                self.transport.close()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A further request on the same connection."""
        if not self._in_headers:
            self._header_bytes = 0
            self._expect_headers()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The rest is body, which its handler bounds."""
        self._in_headers = False
        self._end_wait()
        super().on_headers_complete()

    def _expect_headers(self) -> None:
        self._in_headers = True
        self._end_wait()
        self._header_timer = self.loop.call_later(HEADERS_TIMEOUT_S, self._too_late)

    def _end_wait(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _too_late(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
