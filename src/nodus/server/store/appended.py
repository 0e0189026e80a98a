"""Rows that only ever get appended and that no transaction reads: changes, the audit trail, the books.

They wait until the group of transactions commits: SQLite takes many in one statement in little more than the time for
one, and PostgreSQL in one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, insert

from nodus.server.store.context import context
from nodus.server.store.prepared import Prepared, run_many, run_sql

_MOST_AT_ONCE = 64


class Appended:
    """Appends rows to a table, each with all of ``columns``."""

    def __init__(self, table: Table, columns: Sequence[str] | None = None) -> None:
        self._one = Prepared(insert(table).inline(), columns or [column.key for column in table.c])
        self._many: dict[int, str] = {}

    def add(self, conn: Connection, row: Mapping[str, Any]) -> None:
        """Append a row, at the latest with the commit."""
        context(conn).later.append((self, row))

    def write(self, conn: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows now."""
        sql, order, _ = self._one.form(conn.dialect)
        if order is None:
            run_many(conn, sql, rows)
            return
        start = 0
        while start < len(rows):
            # Powers of two: few different statements, each of them prepared once.
            count = min(_MOST_AT_ONCE, 1 << (len(rows) - start).bit_length() - 1)
            if count not in self._many:
                head, values = sql.split(" VALUES ")
                self._many[count] = f"{head} VALUES {', '.join([values] * count)}"
            some = rows[start : start + count]
            run_sql(conn, self._many[count], [row[name] for row in some for name in order])
            start += count


def write_later(conn: Connection) -> None:
    """Write the rows that wait; called before a commit."""
    later = context(conn).later
    by_table: dict[Appended, list[Mapping[str, Any]]] = {}
    for appended, row in later:
        by_table.setdefault(appended, []).append(row)
    later.clear()
    for appended, rows in by_table.items():
        appended.write(conn, rows)
