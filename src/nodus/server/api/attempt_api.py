"""What a run asks the server for from inside: who it is, its tasks, its gradings and episodes, its task events.

The same paths serve people: ``GET .../taskevents`` is how the curves of a run are read. An attempt's token reaches its
own TrainingJob only (``auth.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.errors import BadRequest, Cause, Forbidden, Invalid, NotFound, Unavailable
from nodus.core.kinds import Kind
from nodus.server.api import attempt_bodies as bodies
from nodus.server.api.attempt_bodies import PHASES, shown
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import json_response, json_type, read_object
from nodus.server.api.reading import find
from nodus.server.store import taskevents

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

ATTEMPT_BODY_LIMIT_BYTES = 8 * 1024 * 1024
EVENTS_LIMIT = 1000
EVENT_TYPES = ("Stage", "Metrics", "Diagnostics", "Progress", "Log", "Checkpoint")


async def self_(call: Call) -> Response:
    """``GET /self``: the run this token belongs to."""
    attempt = call.principal.attempt
    if attempt is None:
        raise NotFound("only a running attempt has a self", fix="`nodus whoami` tells who an API key is.")
    return json_response(
        {
            "kind": "TrainingJob" if attempt.training_job else "Sandbox" if attempt.sandbox else "Job",
            "name": attempt.training_job or attempt.sandbox or attempt.job,
            "project": attempt.project,
            "attempt": attempt.name,
            "epoch": attempt.epoch,
            "index": attempt.index,
            "job": attempt.job,
            "trainingJob": attempt.training_job,
        }
    )


async def tasks(call: Call, kind: Kind) -> Response:
    """``POST .../tasks``: the prompts of the run's splits, without answers."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("create", kind, call.project, name, "tasks")
    await read_object(call.request, optional=True)
    obj = await call.services.store.read(find, call, kind, name)
    files = await _training(call).task_files(obj)
    return json_response({"files": files})


async def gradings(call: Call, kind: Kind) -> Response:
    """``POST .../gradings``: verdicts on completions, in order; those recorded before are returned as they were."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("create", kind, call.project, name, "gradings")
    attempt = call.principal.attempt
    if attempt is None:
        raise Forbidden("only the run's own attempt submits completions")
    body = await read_object(call.request, ATTEMPT_BODY_LIMIT_BYTES)
    phase, step, completions = bodies.read_gradings(body)
    obj = await call.services.store.read(find, call, kind, name)
    verdicts = await _training(call).grade(obj, attempt.name, phase, step, completions, beside=attempt.uid)
    return json_response({"verdicts": verdicts})


async def steps(call: Call, kind: Kind) -> Response:
    """``POST .../steps``: what the environment says after the last turn of each episode, in order; null at its end."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("create", kind, call.project, name, "steps")
    attempt = call.principal.attempt
    if attempt is None:
        raise Forbidden("only the run's own attempt plays episodes")
    body = await read_object(call.request, ATTEMPT_BODY_LIMIT_BYTES)
    phase, step, episodes = bodies.read_steps(body)
    obj = await call.services.store.read(find, call, kind, name)
    replies = await _training(call).step(obj, attempt.name, phase, step, episodes, beside=attempt.uid)
    return json_response({"replies": replies})


def _training(call: Call) -> Any:
    if call.services.training is None:
        raise Unavailable("this server does not run training", fix="Ask the server that runs controllers.")
    return call.services.training


async def post_taskevents(call: Call, kind: Kind) -> Response:
    """``POST .../taskevents``: what a trainer reports; a repeated report changes nothing."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("create", kind, call.project, name, "taskevents")
    attempt = call.principal.attempt
    if attempt is None:
        raise Forbidden("only the run's own attempt reports task events")
    events = _read_events(await read_object(call.request, ATTEMPT_BODY_LIMIT_BYTES))
    obj, new = await call.services.store.write(_append, call, kind, name, attempt.name, events)
    if new and call.services.manager is not None:
        call.services.manager.wake(kind.name, obj.uid)
    return json_response({"accepted": len(events), "new": new})


def _append(
    conn: Connection, call: Call, kind: Kind, name: str, attempt: str, events: list[dict[str, Any]]
) -> tuple[Object, int]:
    obj = find(conn, call, kind, name)
    return obj, taskevents.append(conn, obj.uid, attempt, events)


def _read_events(body: dict[str, Any]) -> list[dict[str, Any]]:
    events = body.get("events")
    if not isinstance(events, list) or len(events) > EVENTS_LIMIT:
        raise Invalid(
            "task events can't be read",
            causes=[Cause("events", "FieldValueInvalid", f"a list of at most {EVENTS_LIMIT} is expected")],
        )
    causes: list[Cause] = []
    for number, event in enumerate(events):
        path = f"events[{number}]"
        if not isinstance(event, dict):
            causes.append(Cause(path, "FieldValueInvalid", f"an object is expected, this is a {json_type(event)}"))
            continue
        if not isinstance(event.get("id"), str) or not 0 < len(event["id"]) <= 253:
            causes.append(Cause(f"{path}.id", "FieldValueInvalid", "a string of 1 to 253 characters is expected"))
        if event.get("type") not in EVENT_TYPES:
            causes.append(
                Cause(
                    f"{path}.type",
                    "FieldValueInvalid",
                    f"{shown(event.get('type'))} is not one of {', '.join(EVENT_TYPES)}",
                )
            )
    if causes:
        raise Invalid("task events can't be read", causes=causes[:20])
    return events


async def get_taskevents(call: Call, kind: Kind) -> Response:
    """``GET .../taskevents``: a page of task events in the order of their recording."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name, "taskevents")
    limit, after = call.number("limit", 1, 5000) or 500, call.query("after") or call.query("continue")
    type_, phase = call.query("eventType"), call.query("phase")
    if phase is not None and phase not in PHASES:
        raise BadRequest(f"phase={phase!r} is not one of {', '.join(PHASES)}")
    items, token = await call.services.store.read(
        _page, call, kind, name, type_, phase, call.query("attempt"), after, limit
    )
    return json_response({"items": items, "continue": token} if token else {"items": items})


def _page(
    conn: Connection, call: Call, kind: Kind, name: str, type_: str | None, phase: str | None, attempt: str | None,
    after: str | None, limit: int,
) -> tuple[list[dict[str, Any]], str | None]:  # fmt: skip
    obj = find(conn, call, kind, name)
    return taskevents.list_(conn, obj.uid, type_=type_, phase=phase, attempt=attempt, after=after, limit=limit)
