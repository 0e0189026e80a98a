"""Long responses: watches and followed logs. They end when the client leaves, and cleanly when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nodus.core.errors import Forbidden, NodusError, StoreError, Unauthorized
from nodus.server.api.http import json_bytes

LOOK_S = 5.0
"""How often an answer that has nothing to send looks whether it may go on."""


class StreamResponse(Response):
    """Sends chunks as they come. A client that leaves is noticed at once, also while nothing is sent.

    Args:
        body: the chunks; it is closed (its ``finally`` runs) however the response ends.
        stopping: ends the response cleanly when set.
        media_type: content type.
        headers: further headers.
    """

    def __init__(
        self,
        body: AsyncIterator[bytes],
        stopping: asyncio.Event,
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(None, 200, dict(headers or {}), media_type)
        self._body = body
        self._stopping = stopping
        self.check: Callable[[], Awaitable[None]] | None = None
        """Raises once the caller may get no more of it; looked at before each chunk, and every few seconds."""
        # The length is not known; the server chunks the body.
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the response."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_disconnected(receive))
        stopping = asyncio.create_task(self._stopping.wait())
        refused = asyncio.create_task(self._refusal())
        tasks = (sending, leaving, stopping, refused)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(RuntimeError):  # it never started
                await self._body.aclose()  # type: ignore[attr-defined]
        for task in (sending, refused):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if leaving.cancelled():
            why = self._last_line(refused.result()) if sending.cancelled() and not refused.cancelled() else b""
            await send({"type": "http.response.body", "body": why, "more_body": False})

    async def _send(self, send: Send) -> None:
        async for chunk in self._body:
            try:
                if self.check is not None:
                    await self.check()
            except (Unauthorized, Forbidden) as error:
                await send({"type": "http.response.body", "body": self._last_line(error), "more_body": True})
                return
            if chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _refusal(self) -> NodusError:
        """Return why the caller may get no more, once that is so."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if self.check is not None:
                    await self.check()
            except (Unauthorized, Forbidden) as error:
                return error
            except StoreError:
                continue  # it is not known now; what is sent meanwhile asks for itself

    def _last_line(self, error: NodusError) -> bytes:
        """Why there is no more: an event of a watch, or a line of a log; other answers just end, the next says why."""
        if self.media_type == "application/json":
            return json_bytes({"type": "ERROR", "object": error.to_status()}) + b"\n"
        return f"\n[nodus: {error.message}]\n".encode() if (self.media_type or "").startswith("text/") else b""


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
