"""Copies of a whole database in one consistent state: a SQLite file, whichever database it came from.

The copy has the schema of this version of Nodus, so it also moves a server from one database to the other.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, func, insert, inspect, select, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from nodus.server.store import dialects, migrations
from nodus.server.store.context import lock_objects
from nodus.server.store.errors import StoreCorrupt, StoreTooNew, StoreUnreachable, translate
from nodus.server.store.schema import changes, metadata, orgs, sequences

_ROWS = 500
_MARGIN = 1_000_000
"""What a restored database's versions are ahead of any that a client can have seen after the copy was made."""


def snapshot(url: str, target: Path) -> None:
    """Copy a database, as it is at one moment, into a new SQLite file; its servers go on meanwhile.

    Args:
        url: of the database.
        target: the file; must not be there.

    Raises:
        StoreUnreachable: there is no such database, or it can't be read.
        StoreTooNew: it has another schema than this version of Nodus.
        StoreCorrupt: the copy does not pass SQLite's check.
    """
    parsed = dialects.parse_url(url)
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        if parsed.get_backend_name() == "sqlite":
            _copy_sqlite(Path(str(parsed.database)), target)
        else:
            _copy_rows(parsed, target)
    except SQLAlchemyError as error:
        raise translate(error, dialects.describe(parsed)) from error
    except sqlite3.Error as error:
        raise StoreUnreachable(f"the database {dialects.describe(parsed)} can't be copied: {error}") from error
    check_file(target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def check_file(path: Path) -> None:
    """Check a SQLite file page by page.

    Raises:
        StoreCorrupt: it is damaged, or none.
    """
    try:
        with contextlib.closing(sqlite3.connect(path)) as conn:
            problem = conn.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        problem = str(error)
    if problem != "ok":
        raise StoreCorrupt(f"{path} is damaged ({problem})", fix="Use another backup.")


def blobs_of(path: Path) -> Iterator[tuple[str, int]]:
    """Yield digest and size in bytes of every blob that a copy's rows belong to, each once, in order."""
    with contextlib.closing(sqlite3.connect(path)) as conn:
        yield from conn.execute("SELECT sha256, MAX(size_bytes) FROM blobs GROUP BY sha256 ORDER BY sha256")


def sqlite_file(url: str) -> Path | None:
    """Return where a SQLite database is; None for another database."""
    parsed = dialects.parse_url(url)
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def is_empty(url: str) -> bool:
    """Tell whether a database has nothing of Nodus in it.

    Raises:
        StoreError: it can't be read.
    """
    parsed = dialects.parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return not Path(str(parsed.database)).exists()
    try:
        with _plain(parsed) as engine, engine.connect() as conn:
            return not inspect(conn).has_table(orgs.name)
    except SQLAlchemyError as error:
        raise translate(error, dialects.describe(parsed)) from error


def load(source: Path, url: str) -> None:
    """Fill an empty PostgreSQL database from a copy, all or nothing.

    Args:
        source: a SQLite file with the newest schema.
        url: of the database.

    Raises:
        StoreError: the database can't be written, or is not empty.
    """
    parsed = dialects.parse_url(url)
    try:
        with _plain(parsed) as into, into.begin() as target, _sqlite(source) as engine, engine.connect() as conn:
            if inspect(target).has_table(orgs.name):
                raise StoreUnreachable(
                    f"the database {dialects.describe(parsed)} is not empty", fix="Create another one to restore into."
                )
            migrations.create_fresh(target)
            _transfer(conn, target)
            _continue_counters(target)
    except SQLAlchemyError as error:
        raise translate(error, dialects.describe(parsed)) from error


def begin_anew(conn: Connection) -> None:
    """Make everything that clients remember of versions too old, so that they list again.

    What they saw after the copy was made did not happen; a version given out a second time would hide changes.
    """
    lock_objects(conn)
    rv = int(conn.execute(select(sequences.c.value).where(sequences.c.name == "rv")).scalar_one()) + _MARGIN
    conn.execute(sequences.update().where(sequences.c.name.in_(("rv", "pruned"))).values(value=rv))
    conn.execute(changes.delete())


def _copy_sqlite(source: Path, target: Path) -> None:
    if not source.is_file():
        raise StoreUnreachable(f"there is no database {source}", fix="Say where the server's data is with --data-dir.")
    with (
        contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True, timeout=30)) as reading,
        contextlib.closing(sqlite3.connect(target)) as writing,
    ):
        # In one step: it reads one snapshot of the write-ahead log, whatever is written meanwhile, and holds nobody up.
        reading.backup(writing, pages=-1)
        # One file, without a log beside it.
        writing.execute("PRAGMA journal_mode=DELETE")


def _copy_rows(url: URL, target: Path) -> None:
    with _plain(url) as engine, engine.connect() as conn:
        conn = conn.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with conn.begin(), _sqlite(target) as into, into.begin() as writing:
            if not inspect(conn).has_table("alembic_version"):
                raise StoreUnreachable(f"the database {dialects.describe(url)} is empty")
            revision = migrations.current_revision(conn)
            if revision != migrations.HEAD:
                raise StoreTooNew(
                    f"the database has schema {revision}, and this version of Nodus {migrations.HEAD}",
                    fix="Use the version of Nodus that serves it.",
                )
            migrations.create_fresh(writing)
            _transfer(conn, writing)


def _continue_counters(conn: Connection) -> None:
    """Let the database number on behind the rows that came with their numbers."""
    for table in metadata.sorted_tables:
        column = table.autoincrement_column
        newest = None if column is None else conn.execute(select(func.max(column))).scalar()
        if column is not None and newest:
            values = {"table": table.name, "column": column.name, "newest": newest}
            conn.execute(text("SELECT setval(pg_get_serial_sequence(:table, :column), :newest)"), values)


def _transfer(source: Connection, target: Connection) -> None:
    for table in metadata.sorted_tables:
        rows = source.execution_options(yield_per=_ROWS).execute(select(table))
        for part in rows.mappings().partitions(_ROWS):
            values: list[dict[str, Any]] = [dict(row) for row in part]
            target.execute(insert(table), values)


@contextlib.contextmanager
def _plain(url: URL) -> Iterator[Engine]:
    """An engine without the store's context; closed at the end."""
    engine = create_engine(url, poolclass=NullPool)
    try:
        yield engine
    finally:
        engine.dispose()


@contextlib.contextmanager
def _sqlite(path: Path) -> Iterator[Engine]:
    with _plain(URL.create("sqlite", database=str(path))) as engine:
        yield engine
