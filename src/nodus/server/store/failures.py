"""How often the controllers' passes over an object failed in a row: kept here so that the count outlives a server."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, select, text

from nodus.server.store.codec import from_us
from nodus.server.store.context import lock_objects, now_us
from nodus.server.store.schema import failures


class Failures(NamedTuple):
    """Failed passes with none between them that went well."""

    times: int
    since: datetime
    """When the first of them failed."""


def note(conn: Connection, uid: str) -> Failures | None:
    """Count one more failed pass; return all in a row, or None when the object is gone."""
    lock_objects(conn)
    statement = text(
        "INSERT INTO failures (object, org, count, since_us) SELECT uid, org, 1, :now FROM objects WHERE uid = :uid "
        "ON CONFLICT (object) DO UPDATE SET count = failures.count + 1 RETURNING count, since_us"
    )
    row = conn.execute(statement, {"uid": uid, "now": now_us(conn)}).one_or_none()
    return None if row is None else Failures(int(row[0]), from_us(row[1]))


def find(conn: Connection, uid: str) -> Failures | None:
    """Return the failed passes in a row of an object; None where the last one went well."""
    row = conn.execute(select(failures.c.count, failures.c.since_us).where(failures.c.object == uid)).one_or_none()
    return None if row is None else Failures(int(row[0]), from_us(row[1]))


def clear(conn: Connection, uid: str) -> None:
    """Forget failed passes: one went well, or the object was given up."""
    lock_objects(conn)
    conn.execute(failures.delete().where(failures.c.object == uid))
