"""Watches: what is there as ADDED, then every change, one JSON object a line.

Without a resourceVersion the stream starts with the current objects; with one, with the first change after it. A
version that is no longer kept is an ERROR event with code 410, inside the stream: clients that get an HTTP status
instead give up. Bookmarks are sent only when asked for.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.errors import BadRequest, NodusError
from nodus.core.kinds import Kind
from nodus.core.selectors import parse_selector
from nodus.server.api import tables
from nodus.server.api.auth import Standing
from nodus.server.api.call import Call
from nodus.server.api.http import json_bytes
from nodus.server.api.present import project_filter
from nodus.server.api.reading import require_project
from nodus.server.api.streaming import StreamResponse
from nodus.server.kinds import admission_of
from nodus.server.store import objects
from nodus.server.store.changes import Change, Selection
from nodus.server.store.errors import StoreClosed

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

BOOKMARK_INTERVAL_S = 30.0


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

    def line(self, type_: str, wire: dict[str, Any]) -> bytes:
        """One event as a line."""
        shown: dict[str, Any] = admission_of(self.kind).render(wire)
        if self.table:
            version = {"resourceVersion": wire["metadata"]["resourceVersion"]}
            shown = tables.table(self.kind, [shown], self.call.services.clock.now(), version)
        return json_bytes({"type": type_, "object": shown}) + b"\n"

    def bookmark(self, rv: int) -> bytes:
        """A bookmark: everything up to ``rv`` was sent."""
        metadata = {"resourceVersion": str(rv)}
        head = {"kind": self.kind.name, "apiVersion": self.kind.api_version, "metadata": metadata}
        return json_bytes({"type": "BOOKMARK", "object": head}) + b"\n"


async def watch(call: Call, kind: Kind) -> Response:
    """Open a watch on a collection."""
    call.principal.require("watch", kind, call.project)
    labels = parse_selector(call.query("labelSelector") or "")
    fields = parse_selector(call.query("fieldSelector") or "")
    timeout_s = call.number("timeoutSeconds", 0, 86_400)
    wanted = _Watch(
        call=call, kind=kind, selection=Selection(labels, fields), sees=project_filter(call.principal, kind),
        table=tables.wants_table(call.request), bookmarks=call.flag("allowWatchBookmarks"),
        timeout_s=None if timeout_s is None else float(timeout_s),
    )  # fmt: skip
    since = _version(call)
    if since is not None:
        return _respond(wanted, [], since)
    first, now = await call.services.store.read(_current, wanted, labels, fields)
    return _respond(wanted, first, now)


def _respond(wanted: _Watch, first: list[Object], since: int) -> Response:
    body = _events(wanted, first, since)
    return StreamResponse(body, wanted.call.services.stopping, "application/json")


def _version(call: Call) -> int | None:
    text = call.query("resourceVersion")
    if text in (None, "0"):
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise BadRequest(f"resourceVersion={text!r} is no version", fix="Use the one of a list or an object.")
    return int(text)


def _current(conn: Connection, wanted: _Watch, labels: Any, fields: Any) -> tuple[list[Object], int]:
    project = wanted.call.project
    require_project(conn, project)
    page = objects.list_(conn, wanted.kind, project, labels=labels, fields=fields)
    return page.items, page.resource_version


async def _events(wanted: _Watch, first: list[Object], position: int) -> AsyncIterator[bytes]:
    gauge = wanted.call.services.metrics.watches
    gauge.inc()
    try:
        for obj in first:
            if wanted.sees(obj):
                wanted.selection.show(obj.uid)
                yield wanted.line("ADDED", obj.to_wire())
        async for line in _live(wanted, position):
            yield line
    except StoreClosed:
        return
    except NodusError as error:
        yield _error(error)
    finally:
        gauge.dec()


def _error(error: NodusError) -> bytes:
    return json_bytes({"type": "ERROR", "object": error.to_status()}) + b"\n"


async def _live(wanted: _Watch, position: int) -> AsyncIterator[bytes]:
    feed = wanted.call.services.store.feed
    kinds = frozenset({wanted.kind.name})
    clock = wanted.call.services.clock
    end_s = clock.monotonic() + wanted.timeout_s if wanted.timeout_s is not None else math.inf
    bookmark_due = False
    standing = Standing(wanted.call.request, wanted.call.services)
    while True:
        await standing.check()
        found, position = await feed.after(position, kinds)
        lines = [line for change in found if (line := _line_of(wanted, change)) is not None]
        if lines:
            yield b"".join(lines)
        elif bookmark_due and wanted.bookmarks:
            yield wanted.bookmark(position)
        left_s = end_s - clock.monotonic()
        if left_s <= 0:
            return
        bookmark_due = not await feed.wait(position, min(left_s, BOOKMARK_INTERVAL_S))


def _line_of(wanted: _Watch, change: Change) -> bytes | None:
    if wanted.call.project is not None and change.project != wanted.call.project:
        return None
    if not wanted.sees(change.object):
        return None
    type_ = wanted.selection.classify(change)
    return None if type_ is None else wanted.line(type_, change.wire)
