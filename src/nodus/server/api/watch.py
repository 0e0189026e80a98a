"""Watches: what is there as ADDED, then every change, one JSON object a line.

Without a resourceVersion the stream starts with the current objects; with one, with the first change after it. A
version that is no longer kept is an ERROR event with code 410, inside the stream: clients that get an HTTP status
instead give up. Bookmarks are sent only when asked for, and then every half minute.

A stream holds little, however slowly it is read: what is there is read page by page, a change is encoded once for all
watchers, and a piece of some kilobytes is the most that waits to be sent.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.errors import BadRequest, NodusError
from nodus.core.kinds import Kind
from nodus.core.selectors import parse_selector
from nodus.server.api import tables
from nodus.server.api.call import Call, field_terms
from nodus.server.api.http import json_bytes
from nodus.server.api.present import project_filter
from nodus.server.api.reading import require_project
from nodus.server.api.streaming import StreamResponse
from nodus.server.kinds import admission_of
from nodus.server.store import changes, objects
from nodus.server.store.changes import Change, Selection
from nodus.server.store.errors import StoreClosed

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

BOOKMARK_INTERVAL_S = 30.0
LONGEST_WAIT_S = 30.0
"""How long a stream without news waits at a time."""
PIECE_BYTES = 32 * 1024
REPLAY_ITEMS = 200
REPLAY_BYTES = 64 * 1024


@dataclass(slots=True)
class _Watch:
    """What one stream was asked for."""

    call: Call
    kind: Kind
    selection: Selection
    sees: Callable[[Object], bool]
    table: bool
    bookmarks: bool
    timeout_s: float | None

    def shown(self, obj: Object, now: datetime) -> bytes:
        """The object as the watcher gets it, as JSON."""
        wire: dict[str, Any] = admission_of(self.kind).render(obj.to_wire())
        if self.table:
            version = {"resourceVersion": wire["metadata"]["resourceVersion"]}
            wire = tables.table(self.kind, [wire], now, version)
        return json_bytes(wire)

    def shown_once(self, change: Change) -> bytes:
        """The same for a change, made once for all watchers; Tables once a second, because they hold ages."""
        now = self.call.services.clock.now()
        form = ("Table", int(now.timestamp())) if self.table else "object"
        found = change.encoded.get(form)
        if found is None:
            found = self.shown(change.object, now)
            if self.table:
                change.encoded.pop(next((key for key in change.encoded if key != "object"), None), None)
            change.encoded[form] = found
        return found

    def bookmark(self, rv: int) -> bytes:
        """A bookmark: everything up to ``rv`` was sent."""
        metadata = {"resourceVersion": str(rv)}
        head = {"kind": self.kind.name, "apiVersion": self.kind.api_version, "metadata": metadata}
        return json_bytes({"type": "BOOKMARK", "object": head}) + b"\n"


def line(type_: str, shown: bytes) -> bytes:
    """One event as a line."""
    return b'{"type":"' + type_.encode() + b'","object":' + shown + b"}\n"


async def watch(call: Call, kind: Kind) -> Response:
    """Open a watch on a collection."""
    call.principal.require("watch", kind, call.project)
    labels = parse_selector(call.query("labelSelector") or "")
    fields = field_terms(call, kind)
    timeout_s = call.number("timeoutSeconds", 0, 86_400)
    wanted = _Watch(
        call=call, kind=kind, selection=Selection(kind, labels, fields), sees=project_filter(call.principal, kind),
        table=tables.wants_table(call.request), bookmarks=call.flag("allowWatchBookmarks"),
        timeout_s=None if timeout_s is None else float(timeout_s),
    )  # fmt: skip
    since = _version(call)

    async def read(token: str | None) -> objects.Page:
        return await call.services.store.read(_page, wanted, labels, fields, token)

    # The first page comes before the answer begins, so that a project that is not there is a 404.
    first = await read(None) if since is None else None
    return StreamResponse(_events(wanted, read, first, since), call.services.stopping, "application/json")


def _version(call: Call) -> int | None:
    text = call.query("resourceVersion")
    if text in (None, "0"):
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise BadRequest(f"resourceVersion={text!r} is no version", fix="Use the one of a list or an object.")
    return int(text)


def _page(conn: Connection, wanted: _Watch, labels: Any, fields: Any, token: str | None) -> objects.Page:
    project = wanted.call.project
    if token is None:
        require_project(conn, project)
    return objects.list_(
        conn, wanted.kind, project, labels=labels, fields=fields, limit=REPLAY_ITEMS, most_bytes=REPLAY_BYTES,
        continue_=token, visible=wanted.sees,
    )  # fmt: skip


async def _events(
    wanted: _Watch, read: Callable[[str | None], Awaitable[objects.Page]], first: objects.Page | None, since: int | None
) -> AsyncIterator[bytes]:
    gauge = wanted.call.services.metrics.watches
    gauge.inc()
    replay = _Replay(wanted, read)
    try:
        if first is not None:
            since = first.resource_version
            replaying, first = replay.pieces(first), None  # what was sent is not kept
            async with aclosing(replaying) as pieces:
                async for piece in pieces:
                    yield piece
        async with aclosing(_live(wanted, replay, since or 0)) as pieces:
            async for piece in pieces:
                yield piece
    except StoreClosed:
        return
    except NodusError as error:
        yield line("ERROR", json_bytes(error.to_status()))
    finally:
        gauge.dec()


class _Replay:
    """What is there when a watch begins, as ADDED, page by page.

    Pages after the first may already have changes that the live part comes to later; those are not sent twice.
    """

    def __init__(self, wanted: _Watch, read: Callable[[str | None], Awaitable[objects.Page]]) -> None:
        self._wanted = wanted
        self._read = read
        self._sent: dict[str, int] = {}
        self._newest = 0

    async def pieces(self, page: objects.Page) -> AsyncGenerator[bytes, None]:
        """Yield the lines of the page and of those that follow it."""
        wanted, begun = self._wanted, page.resource_version
        while True:
            items = page.items[::-1]
            token, later = page.continue_, page.snapshot > begun
            self._newest = max(self._newest, page.snapshot)
            del page  # a slow reader holds one piece, not the page
            piece = b""
            while items:
                obj = items.pop()
                wanted.selection.show(obj.uid)
                if later:
                    self._sent[obj.uid] = obj.resource_version
                piece += line("ADDED", wanted.shown(obj, wanted.call.services.clock.now()))
                if len(piece) >= PIECE_BYTES or not items:
                    yield piece
                    piece = b""
            if token is None:
                return
            page = await self._read(token)

    def covers(self, change: Change) -> bool:
        """Whether what was sent is already as new as a change."""
        if change.rv > self._newest:
            self._sent.clear()
            return False
        return change.rv <= self._sent.get(change.uid, 0)


async def _live(wanted: _Watch, replay: _Replay, position: int) -> AsyncGenerator[bytes, None]:
    feed = wanted.call.services.store.feed
    kinds = frozenset({wanted.kind.name})
    now_s = asyncio.get_running_loop().time
    end_s = math.inf if wanted.timeout_s is None else now_s() + wanted.timeout_s
    bookmark_s = now_s() + BOOKMARK_INTERVAL_S if wanted.bookmarks else math.inf
    while True:
        found, reached = await feed.after(position, kinds)
        piece = b""
        for change in found:
            position = change.rv
            if not replay.covers(change):
                piece += await _line_of(wanted, change)
            if len(piece) >= PIECE_BYTES:
                break
        else:
            position = reached
        more = position < reached
        del found  # while the piece waits to be sent, nothing else is held for this watcher
        if piece:
            yield piece
        if now_s() >= bookmark_s:
            yield wanted.bookmark(position)
            bookmark_s = now_s() + BOOKMARK_INTERVAL_S
        if (left_s := end_s - now_s()) <= 0:
            return
        if not more:
            await feed.wait(position, max(0.0, min(left_s, bookmark_s - now_s(), LONGEST_WAIT_S)))


async def _line_of(wanted: _Watch, change: Change) -> bytes:
    """The line of a change; empty when the watcher does not see it."""
    if wanted.call.project is not None and change.project != wanted.call.project:
        return b""
    if not wanted.sees(change.object):
        return b""
    if wanted.selection.unsure(change):
        wanted.selection.tell(change, await wanted.call.services.store.read(changes.object_before, change))
    type_ = wanted.selection.classify(change)
    return b"" if type_ is None else line(type_, wanted.shown_once(change))
