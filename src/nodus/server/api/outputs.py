"""Outputs of runs: listed, and downloaded by signed redirect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.errors import OutputIndexRequired, OutputNotFound
from nodus.core.kinds import ATTEMPT, JOB, TRAINING_JOB, Kind
from nodus.server.api.blobs import redirect
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import json_response
from nodus.server.api.reading import find
from nodus.server.controllers import jobslots, jobstatus
from nodus.server.store import objects
from nodus.server.store.cascade import dependents

if TYPE_CHECKING:
    from sqlalchemy import Connection


async def outputs(call: Call, kind: Kind) -> Response:
    """``GET .../outputs``: the files a run left."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name, "outputs")
    found = await call.services.store.read(_outputs, call, kind, name)
    return json_response({"items": found})


async def output(call: Call, kind: Kind, path: str) -> Response:
    """``GET .../outputs/{path}``: a redirect to one file, with the digest to check it against."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name, "outputs")
    index, rank = call.number("index"), call.number("rank")
    found = await call.services.store.read(_outputs, call, kind, name)
    matching = [
        item for item in found
        if item["name"] == path and index in (None, item.get("index", 0)) and rank in (None, item.get("rank", 0))
    ]  # fmt: skip
    if not matching:
        near = sorted({str(item["name"]) for item in found})
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


def _outputs(conn: Connection, call: Call, kind: Kind, name: str) -> list[dict[str, Any]]:
    obj = find(conn, call, kind, name)
    if kind is JOB and jobslots.is_indexed(obj.spec):
        # An index's outputs are there when it ended; the Job lists only some of them, and only at its end.
        attempts = [child for child in dependents(conn, obj.uid) if child.kind == ATTEMPT.name]
        if attempts:
            return list(jobstatus.outputs(obj, jobslots.slots_of(obj.spec, attempts)))
    listed: list[dict[str, Any]] = obj.status.get("outputs") or []
    if kind is not TRAINING_JOB:
        return listed
    # A TrainingJob lists names and sizes; the digests are its Job's.
    job = objects.find(conn, JOB, call.project, str(obj.status.get("job") or name))
    kept = {item["name"]: item for item in (job.status.get("outputs") or [])} if job is not None else {}
    return [{**kept.get(item["name"], {}), **item} for item in listed] if listed else list(kept.values())
