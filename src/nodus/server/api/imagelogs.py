"""Logs of Images: what their build said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.responses import Response

from nodus.core.errors import NotFound
from nodus.core.kinds import Kind
from nodus.server.api import runlogs
from nodus.server.api.call import Call, checked_name
from nodus.server.api.reading import find
from nodus.server.api.streaming import StreamResponse
from nodus.server.compute.base import LogPiece
from nodus.server.compute.local import logstore
from nodus.server.store import objects

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

POLL_S = 0.3


async def log(call: Call, kind: Kind) -> Response:
    """``GET .../log``: what the newest build of an Image said; with ``follow`` until it has ended."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name, "log")
    query = runlogs.query_of(call)
    for word in ("attempt", "index", "rank", "process"):
        if call.query(word) is not None:
            raise NotFound(f"image {name} has no {word}", fix=f"Leave {word} out.")
    image = await call.services.store.read(find, call, kind, name)
    directory = call.services.builds.store.log_directory(image.uid)
    return StreamResponse(_body(call, image.uid, directory, query), call.services.stopping, runlogs.MEDIA_TYPE)


async def _body(call: Call, uid: str, directory: Path, query: runlogs.Query) -> AsyncIterator[bytes]:
    offset = await runlogs.first_offset(call, directory, query)
    async for chunk in runlogs.rendered(directory, _pieces(call, uid, directory, offset, query.follow), query):
        yield chunk


async def _pieces(call: Call, uid: str, directory: Path, offset: int, follow: bool) -> AsyncIterator[LogPiece]:
    while True:
        over = not follow or await call.services.store.read(_over, uid)
        for piece in await asyncio.to_thread(_read, directory, offset):
            offset = piece.end
            yield LogPiece(piece.offset, piece.data, piece.dropped)
        if over:
            return
        await asyncio.sleep(POLL_S)
        if await asyncio.to_thread(logstore.size, directory) < offset:
            offset = 0  # another build of it has begun


def _read(directory: Path, offset: int) -> list[logstore.Piece]:
    return list(logstore.read_pieces(directory, offset))


def _over(conn: Connection, uid: str) -> bool:
    image = objects.find_by_uid(conn, uid)
    return image is None or image.status.get("phase") in ("Ready", "Failed")
