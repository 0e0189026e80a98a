"""The three ways an object's row changes (added, saved, removed), each with its indexes and its change row."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, insert, update
from sqlalchemy.dialects import postgresql, sqlite

from nodus.core.errors import AlreadyExists, Conflict
from nodus.core.kinds import KINDS
from nodus.core.selectors import field_text
from nodus.server.store import billed
from nodus.server.store.appended import Appended
from nodus.server.store.codec import clean, dumps
from nodus.server.store.context import context, give_back_rv, next_rv, now_us, org_of
from nodus.server.store.object import Object, image_of, to_columns
from nodus.server.store.prepared import Prepared
from nodus.server.store.schema import changes, object_fields, object_labels, object_owners, objects

_ADD = Prepared(
    {
        "sqlite": sqlite.insert(objects).on_conflict_do_nothing(),
        "postgresql": postgresql.insert(objects).on_conflict_do_nothing(),
    },
    [column.key for column in objects.c],
)
_SAVED = ("generation", "rv", "deleted_us", "labels", "annotations", "owners", "finalizers", "spec", "status")
_SAVE = Prepared(
    update(objects)
    .where(objects.c.uid == bindparam("the_uid"), objects.c.rv == bindparam("old_rv"))
    .values({name: bindparam(f"new_{name}") for name in _SAVED})
)
_REMOVE = Prepared(delete(objects).where(objects.c.uid == bindparam("the_uid")))
_CHANGES = Appended(changes)


def add(conn: Connection, obj: Object) -> Object:
    """Insert a new object and return it with its resourceVersion.

    Raises:
        AlreadyExists: the kind has an object of that name in the project; nothing was written.
    """
    rv, org = next_rv(conn), org_of(conn)
    obj = replace(obj, resource_version=rv)
    columns = to_columns(obj)
    if _ADD.run(conn, {**columns, "org": org}) != 1:
        give_back_rv(conn)
        plural = KINDS[obj.kind].plural if obj.kind in KINDS else obj.kind.lower()
        raise AlreadyExists(
            f'{plural}.nodus.dev "{obj.name}" already exists',
            fix="Use another name, or delete the existing object first.",
            details={"kind": plural, "name": obj.name},
        )
    _index(conn, obj.uid, org, {}, _entries(obj))
    _record(conn, "ADDED", obj, columns, None)
    return obj


def save(conn: Connection, old: Object, new: Object) -> Object:
    """Replace ``old`` by ``new`` and return that with its resourceVersion.

    Raises:
        Conflict: the row is no longer as ``old`` has it, or is gone.
    """
    rv = next_rv(conn)
    new = replace(new, resource_version=rv)
    columns = to_columns(new)
    values = {f"new_{name}": columns[name] for name in _SAVED}
    if _SAVE.run(conn, {**values, "the_uid": old.uid, "old_rv": old.resource_version}) != 1:
        raise stale(old)
    before, after = _entries(old), _entries(new)
    if before != after:
        _index(conn, new.uid, org_of(conn), before, after)
    _record(conn, "MODIFIED", new, columns, old)
    return new


def remove(conn: Connection, obj: Object) -> Object:
    """Delete the row with everything that hangs on its uid; return the object under the deletion's resourceVersion."""
    rv = next_rv(conn)
    if _REMOVE.run(conn, {"the_uid": obj.uid}) != 1:
        raise stale(obj)
    context(conn).there.clear()
    billed.remember(conn, obj)
    gone = replace(obj, resource_version=rv)
    _record(conn, "DELETED", gone, to_columns(gone), obj)
    return gone


def stale(obj: Object) -> Conflict:
    """Return the error for a write that lost against another one."""
    return Conflict(
        f'{obj.kind} "{obj.name}" changed since resourceVersion {obj.resource_version}',
        fix="Read the object again and repeat the change.",
        details={"kind": obj.kind, "name": obj.name},
    )


def declared_fields(obj: Object) -> dict[str, str]:
    """Return the values of the fields that the kind declares as selectable, as selectors compare them."""
    kind = KINDS.get(obj.kind)
    if kind is None or not kind.selectable_fields:
        return {}
    wire = obj.spec if obj.kind == "Event" else {"spec": obj.spec, "status": obj.status}
    found = ((path, field_text(wire, path)) for path in kind.selectable_fields)
    return {path: value for path, value in found if value is not None}


INDEXED_LENGTH = 256
"""Longer values are found by their beginning and compared after."""


def indexed(value: str) -> str:
    """Return a field's value as the index holds it: what is longer is found by its beginning and compared after."""
    return clean(value)[:INDEXED_LENGTH]


_Entries = dict[tuple[str, str], str]


def _entries(obj: Object) -> _Entries:
    """Return all index entries of an object: (table, key) -> value."""
    entries = {("label", key): value for key, value in obj.labels.items()}
    entries |= {("field", path): indexed(value) for path, value in declared_fields(obj).items()}
    entries |= {("owner", str(reference["uid"])): "" for reference in obj.owner_references}
    return entries


def _ends(table: Table, key: str) -> Prepared:
    return Prepared(delete(table).where(table.c.uid == bindparam("the_uid"), table.c[key] == bindparam("the_key")))


@functools.cache
def _begins(name: str, count: int) -> Prepared:
    """The statement that adds ``count`` entries at once, for which a database takes little longer than for one."""
    table, key = _TABLES[name]
    rows: list[dict[str, Any]] = [
        {"uid": bindparam("uid"), "org": bindparam("org"), key: bindparam(f"key_{number}")}
        | ({"value": bindparam(f"value_{number}")} if "value" in table.c else {})
        for number in range(count)
    ]
    return Prepared(insert(table).values(rows))


# Per kind of entry its table and what it is found by.
_TABLES = {"label": (object_labels, "key"), "field": (object_fields, "path"), "owner": (object_owners, "owner_uid")}
_ENDS = {name: _ends(table, key) for name, (table, key) in _TABLES.items()}
_AT_ONCE = 16


def _index(conn: Connection, uid: str, org: str, before: _Entries, after: _Entries) -> None:
    for entry, value in before.items():
        if after.get(entry) != value:
            _ENDS[entry[0]].run(conn, {"the_uid": uid, "the_key": entry[1]})
    for name in _TABLES:
        fresh = [
            (key, value) for (kind, key), value in after.items() if kind == name and before.get((kind, key)) != value
        ]
        for start in range(0, len(fresh), _AT_ONCE):
            some = fresh[start : start + _AT_ONCE]
            values = {"uid": uid, "org": org}
            for number, (key, value) in enumerate(some):
                values[f"key_{number}"], values[f"value_{number}"] = key, value
            _begins(name, len(some)).run(conn, values)


def _record(conn: Connection, type_: str, obj: Object, columns: dict[str, Any], before: Object | None) -> None:
    seen = None if before is None else dumps({"labels": before.labels, "fields": declared_fields(before)})
    _CHANGES.add(
        conn,
        {
            "rv": obj.resource_version,
            "org": org_of(conn),
            "kind": obj.kind,
            "project": obj.project or "",
            "name": obj.name,
            "uid": obj.uid,
            "type": type_,
            "at_us": now_us(conn),
            "before": seen,
            "image": image_of(columns),
        },
    )
