"""Deletion: finalizers hold an object, owner references take its dependents along."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from sqlalchemy import Connection, select

from nodus.core.errors import NotFound
from nodus.server.store import rows
from nodus.server.store.codec import from_us
from nodus.server.store.context import lock_objects, now_us
from nodus.server.store.object import Object, from_row
from nodus.server.store.schema import object_owners, objects

Propagation = Literal["Background", "Foreground", "Orphan"]
FOREGROUND = "foregroundDeletion"
"""Finalizer of an owner that waits for its dependents to go first."""


def delete(conn: Connection, obj: Object, propagation: Propagation = "Background") -> None:
    """Delete an object, or mark it for deletion while finalizers hold it.

    Background deletes the object and then its dependents; Foreground keeps it until they are gone; Orphan leaves them.
    All of it happens in the caller's transaction; only finalizers make it last longer.

    Raises:
        NotFound: the object is gone already.
    """
    lock_objects(conn)
    current = _read(conn, obj.uid)
    if current is None:
        raise NotFound(f'{obj.kind} "{obj.name}" not found', details={"kind": obj.kind, "name": obj.name})
    if propagation == "Orphan":
        for dependent in dependents(conn, current.uid):
            _disown(conn, dependent, current.uid)
        _finish(conn, _mark(conn, current))
        return
    if propagation == "Foreground" and dependents(conn, current.uid):
        current = _mark(conn, current, FOREGROUND)
        for dependent in dependents(conn, current.uid):
            _delete_dependent(conn, dependent, current.uid, propagation)
        return
    _finish(conn, _mark(conn, current))


def dependents(conn: Connection, owner_uid: str) -> list[Object]:
    """Return the objects that name ``owner_uid`` as an owner."""
    query = (
        select(objects)
        .join(object_owners, object_owners.c.uid == objects.c.uid)
        .where(object_owners.c.owner_uid == owner_uid)
        .order_by(objects.c.rv)
    )
    return [from_row(row) for row in conn.execute(query)]


def release_if_free(conn: Connection, obj: Object) -> None:
    """Remove an object under deletion whose last finalizer is gone."""
    if obj.deleted_at is not None and not obj.finalizers:
        _remove(conn, obj)


def _read(conn: Connection, uid: str) -> Object | None:
    row = conn.execute(select(objects).where(objects.c.uid == uid)).first()
    return None if row is None else from_row(row)


def _mark(conn: Connection, obj: Object, finalizer: str | None = None) -> Object:
    """Set the deletion time where something holds the object; one that nothing holds is about to go anyway."""
    finalizers = obj.finalizers
    if finalizer is not None and finalizer not in finalizers:
        finalizers = [*finalizers, finalizer]
    if not finalizers or (obj.deleted_at is not None and finalizers == obj.finalizers):
        return obj
    deleted_at = obj.deleted_at or from_us(now_us(conn))
    return rows.save(conn, obj, replace(obj, deleted_at=deleted_at, finalizers=finalizers))


def _finish(conn: Connection, obj: Object) -> None:
    if not obj.finalizers:
        _remove(conn, obj)


def _remove(conn: Connection, obj: Object) -> None:
    below = dependents(conn, obj.uid)
    rows.remove(conn, obj)
    for dependent in below:
        _delete_dependent(conn, dependent, obj.uid, "Background")
    for reference in obj.owner_references:
        _tell_waiting_owner(conn, str(reference["uid"]))


def _delete_dependent(conn: Connection, dependent: Object, owner_uid: str, propagation: Propagation) -> None:
    if any(reference["uid"] != owner_uid for reference in dependent.owner_references):
        # Somebody else owns it too and keeps it.
        _disown(conn, dependent, owner_uid)
    elif _read(conn, dependent.uid) is not None:
        delete(conn, dependent, propagation)


def _disown(conn: Connection, dependent: Object, owner_uid: str) -> None:
    left = [reference for reference in dependent.owner_references if reference["uid"] != owner_uid]
    rows.save(conn, dependent, replace(dependent, owner_references=left))


def _tell_waiting_owner(conn: Connection, owner_uid: str) -> None:
    owner = _read(conn, owner_uid)
    if owner is None or FOREGROUND not in owner.finalizers or dependents(conn, owner_uid):
        return
    left = [name for name in owner.finalizers if name != FOREGROUND]
    release_if_free(conn, rows.save(conn, owner, replace(owner, finalizers=left)))
