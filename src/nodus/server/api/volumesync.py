"""Volumes from inside a run: make what it wrote so far a revision, or take over what others have committed.

::

    POST /_nodus/v1/volumes/{name}/commit     -> {"volume", "revision"}
    POST /_nodus/v1/volumes/{name}/reload     -> {"volume", "revision"}

Only a running attempt of a Job that mounts the Volume for writing may call them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import anyio.to_thread
from starlette.responses import Response

from nodus.core.errors import Conflict, Forbidden, NotFound
from nodus.core.kinds import JOB, VOLUME
from nodus.server import revisions
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import json_response
from nodus.server.controllers import memberspec
from nodus.server.controllers.lookups import Lookups
from nodus.server.store import objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

# Two calls of one Job at a time would compare with a base that the other is changing.
_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()


async def sync(call: Call) -> Response:
    """``POST /_nodus/v1/volumes/{name}/{verb}``: from a run: commit what it wrote to a Volume, or reload the newest."""
    name, verb = checked_name(VOLUME, call.params["name"]), call.params["verb"]
    if verb not in ("commit", "reload"):
        raise NotFound(f"there is no {verb[:40]!r}", fix="Use commit or reload.")
    attempt = call.principal.attempt
    if attempt is None or not attempt.job:
        raise Forbidden("only a running Job has Volumes to commit", fix="From outside, upload: nodus volume put.")
    job = await call.services.store.read(objects.get, JOB, attempt.project, attempt.job)
    mounted = [mount for mount in job.spec.get("volumes") or () if mount["volume"] == name]
    if not mounted:
        raise NotFound(f"the Job {job.name} does not mount a volume {name}")
    if name not in memberspec.written_volumes(job.spec):
        raise Conflict(f"the Job {job.name} mounts volume {name} read-only, at a revision that stays")
    lookups = Lookups(call.services)
    async with _locks.setdefault(job.uid, asyncio.Lock()):
        revision = await (_commit if verb == "commit" else _reload)(call, lookups, job, name)
    return json_response({"volume": name, "revision": revision})


async def _commit(call: Call, lookups: Lookups, job: Object, name: str) -> int:
    tree = await anyio.to_thread.run_sync(lookups.written_to, job, name)

    def commit(conn: Connection) -> int:
        revisions.require_free(conn, objects.get(conn, VOLUME, job.project, name), job.uid)
        return lookups.commit(conn, job, name, tree)

    revision = await call.services.store.write(commit)
    await anyio.to_thread.run_sync(lookups.note_committed, job, name, tree)
    return revision


async def _reload(call: Call, lookups: Lookups, job: Object, name: str) -> int:
    base, newest, revision = await call.services.store.read(lookups.newest, job, name)
    try:
        await anyio.to_thread.run_sync(lookups.reload, job, name, base, newest)
    except OSError as error:
        raise Conflict(
            f"volume {name} can't be reloaded: {error.filename or ''} {error.strerror}".strip(),
            fix="The run has put a link or a directory where a file belongs; remove it.",
        ) from error
    return revision
