"""Objects: create, get, list, update and delete, each with its change row in the caller's transaction.

Functions of a connection; ``kind`` is a record of :mod:`nodus.core.kinds`. Updates are compare-and-swap on the
resourceVersion that the caller read. A write that changes nothing writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, select

from nodus.core.errors import NotFound
from nodus.core.ids import new_uid
from nodus.core.kinds import Kind
from nodus.server.store import leases, rows
from nodus.server.store.cascade import Propagation, delete, release_if_free
from nodus.server.store.codec import from_us
from nodus.server.store.context import context, lock_objects, now_us, org_of, rv_now
from nodus.server.store.listing import Page, list_
from nodus.server.store.object import Object, from_row, owner_reference
from nodus.server.store.prepared import Prepared
from nodus.server.store.schema import objects

__all__ = [
    "Object",
    "Page",
    "Propagation",
    "create",
    "current",
    "delete",
    "exists",
    "find",
    "find_by_uid",
    "get",
    "get_by_uid",
    "list_",
    "update",
    "update_status",
]

_T = objects.c
_NAMED = (
    _T.org == bindparam("org"),
    _T.kind == bindparam("kind"),
    _T.project == bindparam("project"),
    _T.name == bindparam("name"),
)
_BY_NAME = Prepared(select(objects).where(*_NAMED))
_IS_THERE = Prepared(select(_T.name).where(*_NAMED))
_BY_UID = Prepared(select(objects).where(_T.uid == bindparam("uid"), _T.org == bindparam("org")))


def create(
    conn: Connection,
    kind: Kind,
    project: str | None,
    name: str,
    spec: Mapping[str, Any],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    owner: Object | None = None,
    owner_references: Sequence[Mapping[str, Any]] = (),
    status: Mapping[str, Any] | None = None,
    uid: str | None = None,
) -> Object:
    """Insert an object and return it.

    Args:
        conn: a write transaction.
        kind: its kind.
        project: its project; None for kinds of the whole org.
        name: unique within kind and project.
        spec: stored as given.
        labels: indexed.
        annotations: not indexed.
        finalizers: names of what must let go before the object can be deleted.
        owner: the object that runs this one, and whose deletion deletes it.
        owner_references: references to further owners.
        status: its first status.
        uid: given where something outside has to know it beforehand (a sealed secret); else random.

    Raises:
        AlreadyExists: the name is taken.
    """
    obj = Object(
        kind=kind.name,
        uid=uid or new_uid(),
        project=project if kind.namespaced else None,
        name=name,
        generation=1,
        resource_version=0,
        created_at=from_us(now_us(conn)),
        labels=dict(labels or {}),
        annotations=dict(annotations or {}),
        owner_references=[*([] if owner is None else [owner_reference(owner)]), *map(dict, owner_references)],
        finalizers=list(finalizers),
        spec=dict(spec),
        status=dict(status or {}),
    )
    return rows.add(conn, obj)


def find(conn: Connection, kind: Kind, project: str | None, name: str) -> Object | None:
    """Return the object of that name, or None."""
    key = {"org": org_of(conn), "kind": kind.name, "project": _project(kind, project), "name": name}
    row = _BY_NAME.first(conn, key)
    return None if row is None else from_row(row)


def exists(conn: Connection, kind: Kind, project: str | None, name: str) -> bool:
    """Tell whether there is an object of that name."""
    ctx = context(conn)
    known = (kind.name, _project(kind, project), name)
    if known in ctx.there:
        return True
    key = {"org": ctx.shared.org, "kind": known[0], "project": known[1], "name": name}
    found = _IS_THERE.scalar(conn, key) is not None
    if found and ctx.locked:
        ctx.there.add(known)
    return found


def get(conn: Connection, kind: Kind, project: str | None, name: str) -> Object:
    """Return the object of that name.

    Raises:
        NotFound: there is none.
    """
    found = find(conn, kind, project, name)
    if found is None:
        raise _missing(kind.plural, name)
    return found


def current(conn: Connection, obj: Object) -> Object:
    """Return an object that this transaction wrote as it is now; costs nothing when that was its last write.

    Raises:
        NotFound: it is gone again.
    """
    return obj if rv_now(conn) == obj.resource_version else get_by_uid(conn, obj.uid)


def find_by_uid(conn: Connection, uid: str) -> Object | None:
    """Return the object with that uid, or None."""
    row = _BY_UID.first(conn, {"uid": uid, "org": org_of(conn)})
    return None if row is None else from_row(row)


def get_by_uid(conn: Connection, uid: str) -> Object:
    """Return the object with that uid.

    Raises:
        NotFound: there is none, or no more.
    """
    found = find_by_uid(conn, uid)
    if found is None:
        raise NotFound(f"no object has the uid {uid!r}", details={"uid": uid})
    return found


def update(
    conn: Connection,
    obj: Object,
    *,
    spec: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] | None = None,
    owner_references: Sequence[Mapping[str, Any]] | None = None,
    status: Mapping[str, Any] | None = None,
) -> Object:
    """Change what is given, wholly, of an object as it was read; return it as it is now.

    A changed spec raises the generation. When the last finalizer of an object under deletion goes, so does the object.

    Raises:
        Conflict: somebody changed the object since, or it is gone.
    """
    new = replace(
        obj,
        spec=obj.spec if spec is None else dict(spec),
        labels=obj.labels if labels is None else dict(labels),
        annotations=obj.annotations if annotations is None else dict(annotations),
        finalizers=obj.finalizers if finalizers is None else list(finalizers),
        owner_references=obj.owner_references if owner_references is None else [dict(o) for o in owner_references],
        status=obj.status if status is None else dict(status),
    )
    lock_objects(conn)
    if new == obj:
        current = find_by_uid(conn, obj.uid)
        if current is None or current.resource_version != obj.resource_version:
            raise rows.stale(obj)
        return obj
    if new.spec != obj.spec:
        new = replace(new, generation=obj.generation + 1)
    saved = rows.save(conn, obj, new)
    release_if_free(conn, saved)
    return saved


def update_status(
    conn: Connection,
    uid: str,
    status: Mapping[str, Any],
    *,
    expect_rv: int | None = None,
    fence: leases.Fence | None = None,
) -> Object:
    """Replace the whole status of an object; an equal one leaves no change.

    Args:
        conn: a write transaction.
        uid: the object.
        status: the new status.
        expect_rv: the resourceVersion that the object must still have; None writes over whatever is there.
        fence: a lease that must still be held.

    Raises:
        NotFound: the object is gone.
        Conflict: it isn't at ``expect_rv`` any more.
        StaleLease: the lease was taken over.
    """
    if fence is not None:
        leases.check(conn, fence.key, fence.token)
    lock_objects(conn)
    old = get_by_uid(conn, uid)
    if expect_rv is not None and old.resource_version != expect_rv:
        raise rows.stale(replace(old, resource_version=expect_rv))
    if old.status == status:
        return old
    return rows.save(conn, old, replace(old, status=dict(status)))


def _project(kind: Kind, project: str | None) -> str:
    return (project or "") if kind.namespaced else ""


def _missing(plural: str, name: str) -> NotFound:
    return NotFound(f'{plural}.nodus.dev "{name}" not found', details={"kind": plural, "name": name})
