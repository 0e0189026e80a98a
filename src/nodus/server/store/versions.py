"""Versions of an object's spec that stay resolvable after the object moved on: ``name@version``.

Environments use it: version 1.0.0 answers as it did when it was published, whatever 1.1.0 changed.
"""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Connection, bindparam, insert, select, update

from nodus.server.store.codec import dumps, loads
from nodus.server.store.context import now_us, org_of
from nodus.server.store.schema import versions

_T = versions.c
_FIND = select(_T.spec).where(_T.object == bindparam("object"), _T.version == bindparam("version"))
_ALL = select(_T.version).where(_T.object == bindparam("object")).order_by(_T.created_us, _T.version)


def put(conn: Connection, uid: str, version: str, spec: dict[str, Any]) -> None:
    """Keep ``spec`` as what ``version`` of the object means; replaces what was kept under that version."""
    if find(conn, uid, version) is None:
        row = {"object": uid, "version": version, "org": org_of(conn), "spec": dumps(spec), "created_us": now_us(conn)}
        conn.execute(insert(versions), row)
    else:
        conn.execute(update(versions).where(_T.object == uid, _T.version == version).values(spec=dumps(spec)))


def find(conn: Connection, uid: str, version: str) -> dict[str, Any] | None:
    """The spec of a version, or ``None`` when the object never had that version."""
    text = conn.execute(_FIND, {"object": uid, "version": version}).scalar()
    return None if text is None else cast("dict[str, Any]", loads(text))


def list_(conn: Connection, uid: str) -> list[str]:
    """Every version the object has had, oldest first."""
    return list(conn.execute(_ALL, {"object": uid}).scalars())
