"""Who wrote what, for the audit trail: noted in the transaction that writes, or right after it for paths below objects.

The generic verbs note their writes themselves (:func:`note`). For every other route that may write,
:func:`note_request` is called when it has answered, so that none is forgotten; what a running attempt reports of its
own run is kept elsewhere, by attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.errors import StoreError
from nodus.core.kinds import AUDIT_EVENT, Kind
from nodus.core.selectors import matches_fields
from nodus.server.api.call import Call, field_terms, kind_of, not_found
from nodus.server.store import audit
from nodus.server.store.audit import Actor, AuditPage, Target

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

log = logging.getLogger(__name__)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_DEPTH = 3


def actor_of(call: Call) -> Actor:
    """Who a call is from."""
    return Actor(call.principal.user, call.principal.name, call.request.scope["state"]["request_id"])


def note(conn: Connection, call: Call, verb: str, kind: Kind, obj: Object, before: Object | None = None) -> None:
    """Note a write of an object in the transaction that does it.

    Args:
        conn: the write transaction.
        call: the request.
        verb: create, update, patch or delete.
        kind: of the object.
        obj: as it is now.
        before: as it was; the paths that differ are noted.
    """
    call.audited = True
    if before is not None and before.resource_version == obj.resource_version:
        return
    fields = [] if before is None else changed_paths(_wire(before), _wire(obj))
    target = Target(kind.name, obj.name, obj.project, obj.uid, fields=fields)
    audit.record(conn, actor_of(call), verb, target)


def _wire(obj: Object) -> dict[str, Any]:
    metadata = {"labels": obj.labels, "annotations": obj.annotations, "finalizers": obj.finalizers}
    return {"metadata": metadata, "spec": obj.spec}


def changed_paths(before: Any, after: Any, path: str = "", depth: int = _DEPTH) -> list[str]:
    """Return the paths of what differs between two values, at most three levels deep; never a value."""
    if before == after:
        return []
    if depth == 0 or not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return [path]
    found: list[str] = []
    for key in sorted({*before, *after}):
        found += changed_paths(before.get(key), after.get(key), f"{path}.{key}".lstrip("."), depth - 1)
    return found


async def note_request(call: Call, response: Response) -> None:
    """Note a write that its route did not note itself.

    Args:
        call: the request.
        response: its answer.
    """
    if call.audited or call.method == "GET" or call.principal.attempt is not None:
        return
    if response.status_code >= 400 or "idempotent-replayed" in response.headers:
        return
    sub = call.params.get("sub", "")
    try:
        if "plural" in call.params:
            target = Target(kind_of(call.params).name, call.params.get("name", ""), call.project, subresource=sub)
        else:
            target = Target("Request", call.request.url.path, call.project)
        verb = call.verb or _VERBS.get(call.method, call.method)
        await call.services.store.write(audit.record, actor_of(call), verb, target)
    except StoreError:
        # What was asked for is done and can't be taken back; that it is missing from the trail is in the log.
        log.exception("a write could not be noted in the audit trail", extra={"path": call.request.url.path})


async def note_connection(call: Call, sub: str) -> None:
    """Note that a connection was opened through which its caller may write; ``sub`` is path and verb."""
    target = Target(kind_of(call.params).name, call.params["name"], call.project, subresource=sub)
    await call.services.store.write(audit.record, actor_of(call), sub, target)


# Reading ------------------------------------------------------------------------------------------------------


async def list_events(call: Call) -> AuditPage:
    """A page of AuditEvents that the caller may read, newest first.

    Raises:
        BadRequest: a selector or token can't be read.
    """
    fields = (*field_terms(call, AUDIT_EVENT), *call.principal.audit_terms())
    return await call.services.store.read(
        audit.list_, fields, limit=call.number("limit", 1, 10_000), continue_=call.query("continue")
    )


async def get_event(call: Call, name: str) -> dict[str, Any]:
    """One AuditEvent.

    Raises:
        NotFound: there is none of that name, or the caller may not read it.
    """
    found = await call.services.store.read(audit.find, name)
    if found is None or not matches_fields(call.principal.audit_terms(), found):
        raise not_found(AUDIT_EVENT, name)
    return found
