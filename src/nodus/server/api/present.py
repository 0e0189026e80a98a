"""Objects as a client may see them, and what a dry run promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nodus.core.clock import parse_rfc3339, rfc3339
from nodus.core.digests import digest_of
from nodus.core.kinds import API_KEY, BUDGET, Kind
from nodus.server.api.auth import Principal
from nodus.server.billing.estimates import binding
from nodus.server.kinds import admission_of
from nodus.server.kinds.base import Draft
from nodus.server.kinds.billing import present_budget
from nodus.server.store import keys
from nodus.server.store.codec import from_us
from nodus.server.store.context import now_us

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object


def present(conn: Connection, kind: Kind, obj: Object) -> dict[str, Any]:
    """An object's wire form as clients get it."""
    wire = admission_of(kind).render(obj.to_wire())
    if kind is BUDGET:
        return present_budget(conn, obj, wire)
    return present_key(conn, obj, wire) if kind is API_KEY else wire


def present_key(conn: Connection, obj: Object, wire: dict[str, Any]) -> dict[str, Any]:
    """An APIKey with its last use, and Expired from the moment on that it is."""
    status = dict(wire["status"])
    used = keys.last_use(conn, obj.uid)
    if used is not None:
        status["lastUsedTime"] = rfc3339(used)
    ends = status.get("expirationTime")
    if ends and parse_rfc3339(ends) <= from_us(now_us(conn)):
        status["phase"] = "Expired"
    return {**wire, "status": status}


def project_filter(principal: Principal, kind: Kind) -> Callable[[Object], bool]:
    """Which objects of a kind the caller may know of."""
    if kind.namespaced and not principal.projects:
        return _all
    return lambda obj: principal.sees_object(kind, obj)


def _all(obj: Object) -> bool:
    return True


def dry_run_etag(draft: Draft, preview: dict[str, Any]) -> str:
    """The ETag of what would be created: spec, compiled Job, prices and capacity.

    Never a generated name, nor anything that changes while what was agreed to does not: the time that the plan is good
    for, what money is left, what was measured meanwhile.
    """
    estimate = preview.get("estimate")
    plan = {**preview, "estimate": binding(estimate)} if estimate else preview
    return '"' + digest_of([draft.kind.name, draft.spec, plan]).removeprefix("sha256:")[:32] + '"'
