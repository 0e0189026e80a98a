"""Budgets as rows, for whoever asks with every hold which of them count it."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from nodus.server.store.context import org_of
from nodus.server.store.prepared import Prepared
from nodus.server.store.schema import objects


class BudgetRow(NamedTuple):
    """A Budget as it is stored."""

    uid: str
    name: str
    spec: str
    """JSON."""


_EVERY = Prepared(
    select(objects.c.uid, objects.c.name, objects.c.spec)
    .where(objects.c.org == bindparam("org"), objects.c.kind == "Budget")
    .order_by(objects.c.name)
)


def every(conn: Connection) -> list[BudgetRow]:
    """Return every Budget, by name."""
    return [BudgetRow(row.uid, row.name, row.spec) for row in _EVERY.all(conn, {"org": org_of(conn)})]
