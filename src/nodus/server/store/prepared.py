"""Statements of the hot path: declared with SQLAlchemy Core as all others, compiled once, run by the driver itself.

SQLAlchemy spends five to ten times as long on one small statement as SQLite does. A statement that runs for every
request is worth its own form:

    _FIND = Prepared(select(objects).where(objects.c.uid == bindparam("uid")))
    row = _FIND.first(conn, {"uid": uid})

It runs in the connection's transaction, rows have the columns as attributes, and errors are SQLAlchemy's. What it can't
do: lists of values (``IN`` with one parameter), and types that SQLAlchemy converts, such as JSON and dates.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Executable
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError


class Form(NamedTuple):
    """A statement in one database's terms."""

    sql: str
    order: tuple[str, ...] | None
    """Names of the values in their order; None where the database takes them by name."""
    constants: dict[str, Any]
    """Values that the statement has of its own."""


class Prepared:
    """A statement that is compiled once for each database.

    Args:
        statement: the Core statement, its values as ``bindparam``; or one for each dialect by name.
        columns: of an INSERT, the columns it is given.
    """

    __slots__ = ("_columns", "_forms", "_row", "_statement")

    def __init__(self, statement: Executable | Mapping[str, Executable], columns: Sequence[str] | None = None) -> None:
        self._statement = statement
        self._columns = columns
        self._forms: dict[str, Form] = {}
        self._row: Any = None

    def first(self, conn: Connection, values: Mapping[str, Any]) -> Any:
        """Run it and return the first row, or None where there is none."""
        found = self._run(conn, values).fetchone()
        return None if found is None else self._named(found)

    def all(self, conn: Connection, values: Mapping[str, Any]) -> list[Any]:
        """Run it and return every row."""
        return [self._named(row) for row in self._run(conn, values).fetchall()]

    def scalar(self, conn: Connection, values: Mapping[str, Any]) -> Any:
        """Run it and return the first column of the first row, or None where there is none."""
        found = self._run(conn, values).fetchone()
        return None if found is None else found[0]

    def run(self, conn: Connection, values: Mapping[str, Any]) -> int:
        """Run it and return how many rows it changed."""
        return int(self._run(conn, values).rowcount)

    def _run(self, conn: Connection, values: Mapping[str, Any]) -> Any:
        sql, order, constants = self.form(conn.dialect)
        if constants:
            values = {**constants, **values}
        return run_sql(conn, sql, values if order is None else [values[name] for name in order])

    def form(self, dialect: Dialect) -> Form:
        """Return the statement as a database takes it."""
        return self._forms.get(dialect.name) or self._compile(dialect)

    def _compile(self, dialect: Dialect) -> Form:
        statement: Any = self._statement
        if isinstance(statement, Mapping):
            statement = statement[dialect.name]
        compiled = statement.compile(dialect=dialect, column_keys=self._columns)
        order = compiled.positiontup
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        form = Form(str(compiled), None if order is None else tuple(order), constants)
        # What a SELECT selects, and what a write returns.
        if self._row is None and (columns := getattr(statement, "exported_columns", None)):
            self._row = _row_of([column.key for column in columns])
        self._forms[dialect.name] = form
        return form

    def _named(self, row: Any) -> Any:
        return row if self._row is None else self._row(row)


def _row_of(names: list[str]) -> Callable[[Sequence[Any]], Any]:
    made: Any = namedtuple("_Row", names)  # type: ignore[misc]  # the names come from the statement
    return cast("Callable[[Sequence[Any]], Any]", made._make)


def run_sql(conn: Connection, sql: str, values: Any) -> Any:
    """Run SQL in the driver's own form and return its cursor.

    Raises:
        DBAPIError: as SQLAlchemy has it.
    """
    driver: Any = conn.connection.dbapi_connection
    try:
        return driver.execute(sql, values)
    except conn.dialect.loaded_dbapi.Error as error:
        raise _wrapped(conn, driver, sql, values, error) from error


def run_many(conn: Connection, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Run SQL in the driver's own form once for each of several values, on PostgreSQL in one round trip.

    Raises:
        DBAPIError: as SQLAlchemy has it.
    """
    driver: Any = conn.connection.dbapi_connection
    try:
        with driver.cursor() as cursor:
            cursor.executemany(sql, rows)
    except conn.dialect.loaded_dbapi.Error as error:
        raise _wrapped(conn, driver, sql, rows, error) from error


def _wrapped(conn: Connection, driver: Any, sql: str, given: Any, error: BaseException) -> BaseException:
    """Return SQLAlchemy's form of a driver's error; a connection that is lost with it is given up."""
    lost = conn.dialect.is_disconnect(error, driver, None)  # type: ignore[arg-type]
    found = DBAPIError.instance(
        sql, given, error, conn.dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=conn.dialect
    )
    if lost:
        conn.invalidate(found)
    return found
