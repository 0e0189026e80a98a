"""Outputs of runs: listed, and downloaded by signed redirect."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.errors import BadRequest, OutputIndexRequired, OutputNotFound
from nodus.core.kinds import ATTEMPT, JOB, TRAINING_JOB, Kind
from nodus.server import outputlists
from nodus.server.api.blobs import redirect
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import json_response
from nodus.server.api.reading import find
from nodus.server.controllers import jobslots, jobstatus
from nodus.server.outputlists import Carrier
from nodus.server.store import objects
from nodus.server.store.cascade import dependents

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object


MOST_ITEMS = 100_000
"""Of one answer, also where no limit is asked for."""
SUGGESTED = 10


async def outputs(call: Call, kind: Kind) -> Response:
    """``GET .../outputs``: the files a run left, all of them or page by page."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name, "outputs")
    limit = call.number("limit", 1, MOST_ITEMS) or MOST_ITEMS
    start = _position(call.query("after") or call.query("continue"))
    carriers = await call.services.store.read(_carriers, call, kind, name)
    found = await asyncio.to_thread(_page, call, kind, carriers, start, limit)
    more = len(found) > limit
    return json_response({"items": found[:limit], **({"continue": str(start + limit)} if more else {})})


def _position(token: str | None) -> int:
    if token is None:
        return 0
    if not (token.isascii() and token.isdecimal() and len(token) < 16):
        raise BadRequest(f"after={token[:60]!r} is no `continue` of a page", fix="Begin again without it.")
    return int(token)


def _page(call: Call, kind: Kind, carriers: list[Carrier], start: int, limit: int) -> list[dict[str, Any]]:
    """One item more than asked for, where there is one."""
    items = outputlists.whole(call.services.store.blobs, carriers, start)
    return [_shown(kind, item) for item in islice(items, limit + 1)]


def _shown(kind: Kind, item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "sizeBytes": item["size"]} if kind is TRAINING_JOB and "size" in item else item


async def output(call: Call, kind: Kind, path: str) -> Response:
    """``GET .../outputs/{path}``: a redirect to one file, with the digest to check it against."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name, "outputs")
    index, rank = call.number("index"), call.number("rank")
    carriers = await call.services.store.read(_carriers, call, kind, name)
    matching, near = await asyncio.to_thread(_matching, call, carriers, path, index, rank)
    if not matching:
        fix = f"There are: {', '.join(near[:10])}." if near else "It has no outputs; they come when it has ended."
        raise OutputNotFound(f"{kind.singular} {name} has no output {path[:200]!r}", fix=fix)
    having = sorted({item.get("index", 0) for item in matching})
    if len(having) > 1:
        raise OutputIndexRequired(
            f"several indexes have an output {path!r}",
            fix=f"Say which with index (`nodus cp --index N`): {jobslots.ranges(having)}.",
        )
    sha256 = str(matching[0].get("sha256") or "").removeprefix("sha256:")
    if not sha256 or not call.services.store.blobs.exists(sha256):
        raise OutputNotFound(f"the file of output {path!r} is not kept any more")
    return redirect(call.request, call.services, sha256, path)


def _matching(
    call: Call, carriers: list[Carrier], path: str, index: int | None, rank: int | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The outputs of a name, and some of the names there are."""
    if index is not None:
        carriers = [carrier for carrier in carriers if carrier.index in (None, index)]
    matching: list[dict[str, Any]] = []
    near: set[str] = set()
    for item in outputlists.whole(call.services.store.blobs, carriers):
        if len(near) < SUGGESTED:
            near.add(str(item["name"]))
        if item["name"] == path and index in (None, item.get("index", 0)) and rank in (None, item.get("rank", 0)):
            matching.append(item)
    return matching, sorted(near)


def _carriers(conn: Connection, call: Call, kind: Kind, name: str) -> list[Carrier]:
    """Who lists the outputs of a run: its newest attempts, also before it has ended, else the run itself."""
    obj = find(conn, call, kind, name)
    job: Object | None = obj if kind is JOB else None
    if kind is TRAINING_JOB:
        job = objects.find(conn, JOB, call.project, str(obj.status.get("job") or name))
    if job is None:
        return [Carrier(obj.status)]
    attempts = [child for child in dependents(conn, job.uid) if child.kind == ATTEMPT.name]
    found = list(jobstatus.carriers(job, jobslots.slots_of(job.spec, attempts)))
    # Of a run whose attempts are gone, or which was listed by another hand, its own status says what there is.
    return found if any(carrier.files for carrier in found) else [Carrier(job.status)]
