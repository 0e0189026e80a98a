"""Reading objects: get and list, each on one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.errors import NotFound
from nodus.core.kinds import AUDIT_EVENT, ENVIRONMENT, PROJECT, USAGE_RECORD, Kind
from nodus.server.api import auditing, billing, tables
from nodus.server.api.auth import CATALOG_PROJECT
from nodus.server.api.call import Call, checked_name, field_terms, not_found
from nodus.server.api.http import json_response
from nodus.server.api.present import present, project_filter
from nodus.server.store import objects
from nodus.server.store.audit import AuditPage
from nodus.server.training.lookups import aliased_environment

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object


PAGE_BYTES = 8 * 1024 * 1024
"""A page ends once its objects are so large together, whatever was asked for; ``continue`` leads to the rest."""


async def get(call: Call, kind: Kind) -> Response:
    """One object, as JSON or as a one-row Table."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("get", kind, call.project, name)
    if kind is AUDIT_EVENT:
        wire = await auditing.get_event(call, name)
    elif kind in billing.SERVED:
        wire = await billing.get(call, kind, name)
    else:
        wire = await call.services.store.read(_get, call, kind, name)
    if tables.wants_table(call.request):
        version = {"resourceVersion": wire["metadata"]["resourceVersion"]}
        return json_response(tables.table(kind, [wire], call.services.clock.now(), version))
    return json_response(wire)


def _get(conn: Connection, call: Call, kind: Kind, name: str) -> dict[str, Any]:
    try:
        obj = find(conn, call, kind, name)
    except NotFound:
        # Runs may name an Environment of the catalog by its alias, so reading it does too; writing never does.
        other = aliased_environment(conn, CATALOG_PROJECT, name) if _in_catalog(call, kind) else None
        if other is None:
            raise
        obj = find(conn, call, kind, other.name)
    return present(conn, kind, obj)


def _in_catalog(call: Call, kind: Kind) -> bool:
    return kind is ENVIRONMENT and call.project == CATALOG_PROJECT


def find(conn: Connection, call: Call, kind: Kind, name: str) -> Object:
    """The named object, if the caller may see it.

    Raises:
        NotFound: it is not there, or it is out of the key's reach.
    """
    obj = objects.find(conn, kind, call.project, name)
    if obj is None or not project_filter(call.principal, kind)(obj):
        raise not_found(kind, name)
    return obj


async def list_objects(call: Call, kind: Kind) -> Response:
    """A page of a collection, as a List or as a Table."""
    call.principal.require("list", kind, call.project)
    page: objects.Page | AuditPage | billing.Page
    if kind is USAGE_RECORD and call.query("groupBy"):
        return json_response(await billing.summary(call))
    if kind in billing.SERVED:
        page = await billing.list_(call, kind)
        wires = page.items
    elif kind is AUDIT_EVENT:
        page = await auditing.list_events(call)
        wires = page.items
    else:
        wires, page = await call.services.store.read(_list, call, kind)
    metadata: dict[str, Any] = {"resourceVersion": str(page.resource_version)}
    if page.continue_:
        metadata["continue"] = page.continue_
    if tables.wants_table(call.request):
        return json_response(tables.table(kind, wires, call.services.clock.now(), metadata))
    head = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata}
    return json_response({**head, "items": wires})


def _list(conn: Connection, call: Call, kind: Kind) -> tuple[list[dict[str, Any]], objects.Page]:
    require_project(conn, call.project)
    page = objects.list_(
        conn, kind, call.project,
        labels=call.query("labelSelector"), fields=field_terms(call, kind),
        limit=call.number("limit", 1, 10_000), continue_=call.query("continue"),
        most_bytes=PAGE_BYTES, visible=project_filter(call.principal, kind),
    )  # fmt: skip
    return [present(conn, kind, obj) for obj in page.items], page


def require_project(conn: Connection, project: str | None) -> None:
    """Check that a project is there.

    Raises:
        NotFound: it is not.
    """
    if project is not None and not objects.exists(conn, PROJECT, None, project):
        raise not_found(PROJECT, project)
