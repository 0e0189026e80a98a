"""The audit trail: every write that was done, in the transaction that did it: who, what, when, never the values.

It is read as objects of kind AuditEvent, which are made from its rows; nothing changes them, and pruning drops the
oldest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, select

from nodus.core.clock import rfc3339
from nodus.core.selectors import Requirement, matches_fields
from nodus.server.store import pagetokens
from nodus.server.store.appended import Appended
from nodus.server.store.codec import clean, dumps, from_us, loads
from nodus.server.store.context import now_us, org_of
from nodus.server.store.schema import audit

RETAIN_S = 90 * 24 * 3600
RETAIN_ROWS = 1_000_000
MAX_FIELDS = 50
# Nobody asks for the number it gets.
_TRAIL = Appended(audit, [column.key for column in audit.c if column.key != "seq"])
_COLUMNS = {
    "spec.user": audit.c.user,
    "spec.verb": audit.c.verb,
    "spec.object.kind": audit.c.kind,
    "spec.object.name": audit.c.name,
    "spec.object.namespace": audit.c.project,
    "spec.requestId": audit.c.request_id,
}
_CHUNK = 200


@dataclass(frozen=True, slots=True)
class Actor:
    """Who writes, and in which request."""

    user: str
    """Such as ``usr_ada``."""
    credential: str
    """Name of the APIKey or Attempt, or what else it was done with."""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What is written to."""

    kind: str
    name: str
    project: str | None = None
    uid: str = ""
    subresource: str = ""
    fields: Sequence[str] = field(default=())
    """Paths that changed."""


def record(conn: Connection, actor: Actor, verb: str, target: Target) -> None:
    """Note a write, in the transaction that does it."""
    row = {
        "org": org_of(conn),
        "at_us": now_us(conn),
        "user": actor.user[:63],
        "credential": actor.credential[:63],
        "verb": verb[:32],
        "kind": target.kind[:63],
        "project": target.project or "",
        "name": clean(target.name)[:253],
        "uid": target.uid,
        "subresource": clean(target.subresource)[:253],
        "fields": dumps(list(target.fields)[:MAX_FIELDS]),
        "request_id": actor.request_id[:128],
    }
    _TRAIL.add(conn, row)


@dataclass(frozen=True, slots=True)
class AuditPage:
    """AuditEvents, newest first."""

    items: list[dict[str, Any]]
    resource_version: int
    continue_: str | None = None
    """Token of the next page; None on the last."""


def list_(
    conn: Connection,
    fields: tuple[Requirement, ...],
    *,
    limit: int | None = None,
    continue_: str | None = None,
) -> AuditPage:
    """Return AuditEvents in wire form, newest first.

    Args:
        conn: a transaction.
        fields: terms of a field selector.
        limit: most items of the page; None gives a thousand.
        continue_: the token of the page before.

    Raises:
        BadRequest: the token can't be read.
    """
    newest = conn.execute(select(func.max(audit.c.seq)).where(audit.c.org == org_of(conn))).scalar() or 0
    wanted, below = limit or 1000, pagetokens.decode(continue_)
    conditions: list[ColumnElement[bool]] = [audit.c.org == org_of(conn)]
    for term in fields:
        if term.key in _COLUMNS and term.operator in ("=", "in"):
            conditions.append(_COLUMNS[term.key].in_(term.values))
    items: list[dict[str, Any]] = []
    while True:
        page = select(audit).where(*conditions).order_by(audit.c.seq.desc()).limit(min(_CHUNK, wanted + 1))
        if below is not None:
            page = page.where(audit.c.seq < below)
        rows = conn.execute(page).all()
        for row in rows:
            wire = _wire(row)
            if not matches_fields(fields, wire):
                continue
            if len(items) == wanted:
                return AuditPage(items, newest, pagetokens.encode(int(items[-1]["metadata"]["resourceVersion"])))
            items.append(wire)
        if len(rows) < min(_CHUNK, wanted + 1):
            return AuditPage(items, newest)
        below = rows[-1].seq


def find(conn: Connection, name: str) -> dict[str, Any] | None:
    """Return the AuditEvent of that name in wire form, or None."""
    number = name.removeprefix("audit-")
    if not (number.isascii() and number.isdecimal() and len(number) < 19 and name != number):
        return None
    row = conn.execute(select(audit).where(audit.c.seq == int(number), audit.c.org == org_of(conn))).first()
    return None if row is None else _wire(row)


def prune(conn: Connection, *, keep_s: float = RETAIN_S, keep_rows: int = RETAIN_ROWS, batch: int = 500) -> int:
    """Drop up to ``batch`` of the oldest rows beyond what is kept; return how many went."""
    newest = conn.execute(select(func.max(audit.c.seq))).scalar() or 0
    cut_us = now_us(conn) - int(keep_s * 1e6)
    oldest = select(audit.c.seq, audit.c.at_us).order_by(audit.c.seq).limit(batch)
    doomed = [row.seq for row in conn.execute(oldest) if row.at_us < cut_us or row.seq <= newest - keep_rows]
    if doomed:
        conn.execute(delete(audit).where(audit.c.seq.in_(doomed)))
    return len(doomed)


def _wire(row: Any) -> dict[str, Any]:
    at = rfc3339(from_us(row.at_us))
    target = {
        "kind": row.kind, "name": row.name, "namespace": row.project, "uid": row.uid, "subresource": row.subresource
    }  # fmt: skip
    spec: dict[str, Any] = {
        "time": at,
        "user": row.user,
        "credential": row.credential,
        "verb": row.verb,
        "object": {key: value for key, value in target.items() if value},
        "fields": loads(row.fields),
        "requestId": row.request_id,
    }
    metadata = {"name": f"audit-{row.seq}", "resourceVersion": str(row.seq), "creationTimestamp": at}
    return {
        "apiVersion": "nodus.dev/v1",
        "kind": "AuditEvent",
        "metadata": metadata,
        "spec": {key: value for key, value in spec.items() if value not in ("", [])},
        "status": {},
    }
