"""Objects as a client may see them, and what a dry run promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nodus.core.clock import rfc3339
from nodus.core.digests import digest_of
from nodus.core.kinds import API_KEY, EVENT, PROJECT, Kind
from nodus.server.api.auth import Principal
from nodus.server.kinds import admission_of
from nodus.server.kinds.base import Draft
from nodus.server.store import keys

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object


def present(conn: Connection, kind: Kind, obj: Object) -> dict[str, Any]:
    """An object's wire form as clients get it."""
    wire = admission_of(kind).render(obj.to_wire())
    if kind is API_KEY:
        used = keys.last_use(conn, obj.uid)
        if used is not None:
            wire = {**wire, "status": {**wire["status"], "lastUsedTime": rfc3339(used)}}
    return wire


def project_filter(principal: Principal, kind: Kind) -> Callable[[Object], bool]:
    """Which objects the caller may see: those of its projects, events about those, and keys that reach no further."""
    if not principal.projects:
        return _all
    if kind is PROJECT:
        return lambda obj: principal.sees(obj.name)
    if kind is EVENT:
        return lambda obj: principal.sees(str(obj.spec.get("involvedObject", {}).get("namespace", "")))
    if kind is API_KEY:
        return lambda obj: bool(obj.spec.get("projects")) and all(map(principal.sees, obj.spec["projects"]))
    return lambda obj: obj.project is None or principal.sees(obj.project)


def _all(obj: Object) -> bool:
    return True


def dry_run_etag(draft: Draft, preview: dict[str, Any]) -> str:
    """The ETag of what would be created: spec, compiled Job and prices, and never a generated name."""
    estimate = {key: value for key, value in preview.get("estimate", {}).items() if key != "validUntil"}
    plan = {**preview, "estimate": estimate} if estimate else preview
    return '"' + digest_of([draft.kind.name, draft.spec, plan]).removeprefix("sha256:")[:32] + '"'
