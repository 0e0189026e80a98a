"""Logs of Sandboxes: what its own command wrote, and what its processes did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.responses import Response

from nodus.core.kinds import ATTEMPT, SANDBOX, Kind
from nodus.server.api import runlogs
from nodus.server.api.call import Call, checked_name
from nodus.server.api.processes import found, of_sandbox, service_of
from nodus.server.api.reading import find
from nodus.server.api.streaming import StreamResponse
from nodus.server.store import objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

NEXT_ATTEMPT_S = 0.5


async def log(call: Call, kind: Kind) -> Response:
    """``GET .../log``: what a Sandbox's own command wrote, or one of its processes, named by its number."""
    if kind is SANDBOX:
        name = checked_name(kind, call.params["name"])
        call.principal.require("get", kind, call.project, name, "log")
        number = call.query("process")
        if number is None:
            sandbox = await call.services.store.read(find, call, kind, name)
            query = runlogs.query_of(call)
            service_of(call)
            return StreamResponse(_own(call, sandbox, query), call.services.stopping, runlogs.MEDIA_TYPE)
        process = await call.services.store.read(of_sandbox, call, name, number)
    else:
        process = await found(call, kind, "get", "log")
    body = _of_process(call, process, runlogs.query_of(call))
    return StreamResponse(body, call.services.stopping, runlogs.MEDIA_TYPE)


async def _own(call: Call, sandbox: Object, query: runlogs.Query) -> AsyncIterator[bytes]:
    """The newest attempt's output; with ``follow`` also of those after it, until the Sandbox is stopped."""
    done: set[str] = set()
    while True:
        uid, over = await call.services.store.read(_newest, sandbox.uid)
        if uid is not None and uid not in done:
            async for chunk in runlogs.attempt_log(call, uid, query if not done else query.whole):
                yield chunk
            done.add(uid)
            continue
        if over or not query.follow:
            return
        await asyncio.sleep(NEXT_ATTEMPT_S)


def _newest(conn: Connection, uid: str) -> tuple[str | None, bool]:
    sandbox = objects.find_by_uid(conn, uid)
    told = sandbox.status.get("attempt") if sandbox is not None else None
    attempt = objects.find(conn, ATTEMPT, sandbox.project, told["name"]) if sandbox is not None and told else None
    over = sandbox is None or sandbox.status.get("phase") in ("Stopped", "Failed")
    return (attempt.uid if attempt is not None else None), over


async def _of_process(call: Call, process: Object, query: runlogs.Query) -> AsyncIterator[bytes]:
    """A process's output, both streams in the order in which they came."""
    service = service_of(call)
    directory = call.services.backend.processes.log_directory(process.spec["attempt"], process.uid)
    offset = await runlogs.first_offset(call, directory, query)
    wait_s = None if query.follow else 0.0
    pieces = service.follow(process, offset, wait_s=wait_s, reader=f"log-{call.request.scope['state']['request_id']}")
    async for chunk in runlogs.rendered(directory, pieces, query):
        yield chunk
