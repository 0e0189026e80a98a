"""Events: what happened to objects, for people.

They are stored as objects of kind Event, so that lists and watches work as for any other. A repeated one is counted
instead of stored again.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from sqlalchemy import Connection, select

from nodus.core.clock import parse_rfc3339, rfc3339
from nodus.core.errors import Conflict
from nodus.core.kinds import EVENT
from nodus.server.store import objects as store_objects
from nodus.server.store import rows
from nodus.server.store.codec import from_us, to_us
from nodus.server.store.context import lock_objects, now_us, org_of
from nodus.server.store.object import Object, api_version, from_row
from nodus.server.store.schema import objects

EventType = Literal["Normal", "Warning"]
RETAIN_S = 7 * 24 * 3600
RETAIN_ROWS = 50_000
_MAX_MESSAGE = 4096


def record(conn: Connection, obj: Object, type_: EventType, reason: str, message: str) -> Object:
    """Note that something happened to ``obj``; return the Event.

    Args:
        conn: a write transaction.
        obj: what it happened to.
        type_: Normal or Warning.
        reason: CamelCase, for programs.
        message: for people; the same text of the same object and reason is the same Event, counted.
    """
    lock_objects(conn)
    message = message[:_MAX_MESSAGE]
    now = rfc3339(from_us(now_us(conn)))
    name = _name(obj, type_, reason, message)
    known = store_objects.find(conn, EVENT, None, name)
    if known is not None:
        spec = known.spec | {"count": known.spec["count"] + 1, "lastTime": now}
        return store_objects.update(conn, known, spec=spec)
    involved = {"apiVersion": api_version(obj.kind), "kind": obj.kind, "name": obj.name, "uid": obj.uid}
    if obj.project is not None:
        involved["namespace"] = obj.project
    spec = {
        "type": type_,
        "reason": reason,
        "message": message,
        "count": 1,
        "firstTime": now,
        "lastTime": now,
        "involvedObject": involved,
    }
    return store_objects.create(conn, EVENT, None, name, spec)


def prune(conn: Connection, *, keep_s: float = RETAIN_S, keep_rows: int = RETAIN_ROWS, batch: int = 200) -> int:
    """Delete up to ``batch`` of the oldest Events beyond the retained window; return how many went."""
    lock_objects(conn)
    mine = (objects.c.org == org_of(conn), objects.c.kind == EVENT.name)
    query = select(objects).where(*mine).order_by(objects.c.rv)
    # The resourceVersion moves when an Event is counted again: the lowest ones were seen longest ago.
    cut = (
        conn.execute(
            query.with_only_columns(objects.c.rv)
            .order_by(None)
            .order_by(objects.c.rv.desc())
            .offset(keep_rows)
            .limit(1)
        ).scalar()
        or 0
    )
    oldest = now_us(conn) - int(keep_s * 1e6)
    gone = 0
    for row in conn.execute(query.limit(batch)).all():
        event = from_row(row)
        if event.resource_version > cut and _last_us(event) >= oldest:
            break
        try:
            rows.remove(conn, event)
        except Conflict:
            # Another server pruned it first.
            continue
        gone += 1
    return gone


def _last_us(event: Object) -> int:
    return to_us(parse_rfc3339(event.spec["lastTime"]))


def _name(obj: Object, type_: str, reason: str, message: str) -> str:
    digest = hashlib.sha256("\0".join((obj.uid, type_, reason, message)).encode()).hexdigest()[:16]
    return f"{obj.name[:200]}.{digest}"
