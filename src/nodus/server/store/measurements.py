"""How long the steps and tasks of finished training runs took here, for the estimates of later ones.

A row a run, kept when the run is deleted; of each runtime, model and accelerator the newest :data:`KEPT`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, delete, select

from nodus.server.store.codec import from_us
from nodus.server.store.context import insert_into, now_us, org_of
from nodus.server.store.schema import measurements

KEPT = 20
"""Finished runs that an estimate looks at."""


class Key(NamedTuple):
    """What runs must have in common to take the same time for the same work."""

    runtime: str
    """``PROJECT/NAME``."""
    model: str
    """Repository of the base model, or the Volume it is in."""
    accelerator: str
    """Family, or ``CPU``."""


class Measurement(NamedTuple):
    """Times of one run in microseconds, with the work they were needed for; None where it did nothing of the kind."""

    step_us: int | None
    step_work: int
    """Completion tokens of a step at most."""
    task_us: int | None
    task_work: int
    """Completion tokens of a task at most."""
    startup_us: int | None
    """Of the run beside its steps and tasks: loading, exporting."""
    grade_us: int | None = None
    """What a grader worked on a completion."""


class Recent(NamedTuple):
    """Measurements of the newest runs."""

    runs: tuple[Measurement, ...] = ()
    time: datetime | None = None
    """When the newest of them ended."""


def put(conn: Connection, trainingjob_uid: str, key: Key, found: Measurement, environment: str | None = None) -> None:
    """Keep what a run took; the second time for the same run changes nothing. What is too old to count goes.

    Args:
        conn: a write transaction.
        trainingjob_uid: whose.
        key: what it was a run of.
        found: what it took.
        environment: digest of its environment, whose graders worked.
    """
    row = {"trainingjob": trainingjob_uid, "org": org_of(conn), "at_us": now_us(conn), "environment": environment}
    row |= key._asdict() | found._asdict()
    conn.execute(insert_into(conn, measurements).on_conflict_do_nothing(), row)
    kept = _of(conn, key, measurements.c.trainingjob).limit(KEPT).subquery()
    conn.execute(
        delete(measurements).where(
            measurements.c.org == org_of(conn),
            measurements.c.runtime == key.runtime,
            measurements.c.model == key.model,
            measurements.c.accelerator == key.accelerator,
            measurements.c.trainingjob.not_in(select(kept)),
        )
    )


def recent(conn: Connection, key: Key) -> Recent:
    """Return what the newest runs took, newest first."""
    columns = [measurements.c[name] for name in Measurement._fields]
    rows = conn.execute(_of(conn, key, measurements.c.at_us, *columns).limit(KEPT)).all()
    if not rows:
        return Recent()
    return Recent(tuple(Measurement(*row[1:]) for row in rows), from_us(rows[0].at_us))


def recent_grading(conn: Connection, environment: str) -> tuple[int, ...]:
    """Return what graders of an environment worked on a completion in the newest runs, in microseconds."""
    query = (
        select(measurements.c.grade_us)
        .where(
            measurements.c.org == org_of(conn),
            measurements.c.environment == environment,
            measurements.c.grade_us.is_not(None),
        )
        .order_by(measurements.c.at_us.desc())
        .limit(KEPT)
    )
    return tuple(conn.execute(query).scalars())


def _of(conn: Connection, key: Key, *columns: Any) -> Select[Any]:
    return (
        select(*columns)
        .where(
            measurements.c.org == org_of(conn),
            measurements.c.runtime == key.runtime,
            measurements.c.model == key.model,
            measurements.c.accelerator == key.accelerator,
        )
        .order_by(measurements.c.at_us.desc(), measurements.c.trainingjob)
    )
