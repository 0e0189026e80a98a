"""Engines for the two databases, set up the way the store needs them."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from nodus.server.store.context import Shared, attach
from nodus.server.store.errors import StoreUnreachable

READERS = 8
PG_WRITERS = 4
_BUSY_MS = 10_000
# Larger files are checked page by page as they are read; reading one whole would delay every start.
_CHECK_BYTES = 32 * 2**20


def parse_url(url: str) -> URL:
    """Return the URL of a database the store supports.

    Raises:
        StoreUnreachable: not a URL, or of another database.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreUnreachable(f"{url!r} is no database URL", fix="Use sqlite:///PATH or postgresql://...") from error
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed.set(drivername="sqlite")
    raise StoreUnreachable(f"{url!r} is no database Nodus runs on", fix="Use sqlite:///PATH or postgresql://...")


def describe(url: URL) -> str:
    """Return the database's name for messages: its path, or its URL without the password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.render_as_string(hide_password=True)


def make_engines(url: URL, shared: Shared, *, sync: bool) -> tuple[Engine, Engine]:
    """Return the engine for writers and the one for readers, not yet connected.

    Args:
        url: from :func:`parse_url`.
        shared: attached to every connection.
        sync: False skips the wait for the disk at a commit; for tests only.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, shared, sync=sync, read_only=False), _sqlite(url, shared, sync=sync, read_only=True)
    return _postgresql(url, shared, sync=sync, read_only=False), _postgresql(url, shared, sync=sync, read_only=True)


def prepare_sqlite_file(url: URL) -> None:
    """Make the file's directory and the file itself, readable by this user alone.

    Raises:
        StoreUnreachable: it can't be made.
    """
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        message = f"the database {path} can't be opened: {error.strerror}"
        raise StoreUnreachable(message, fix="Check that the directory exists and is writable.") from error


def small_enough_to_check(url: URL) -> bool:
    """Tell whether the whole SQLite file is checked at open."""
    path = Path(str(url.database))
    return path.stat().st_size <= _CHECK_BYTES


class VersionProbe:
    """Tells by a number that changes whether anything was committed to a SQLite database, by whatever process.

    It costs some microseconds and no disk access: SQLite keeps the number in shared memory. For one thread at a time.
    """

    def __init__(self, path: str) -> None:
        self._conn = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._execute: Callable[[str], sqlite3.Cursor] = self._conn.execute

    def version(self) -> int:
        """Return the number; the same one as before means that nothing was committed since."""
        return int(self._execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Let go of the database."""
        self._conn.close()


def _sqlite(url: URL, shared: Shared, *, sync: bool, read_only: bool) -> Engine:
    engine = create_engine(
        url,
        connect_args={"check_same_thread": False, "timeout": _BUSY_MS / 1000, "isolation_level": None},
        pool_size=READERS if read_only else 1,
        # Threads of the server read too, beside the store's own.
        max_overflow=READERS if read_only else 0,
        pool_reset_on_return="rollback",
    )
    begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"

    @event.listens_for(engine, "connect")
    def _connect(driver: Any, record: Any) -> None:
        attach(record.info, shared)
        driver.execute("PRAGMA foreign_keys=ON")
        driver.execute(f"PRAGMA synchronous={'FULL' if sync else 'OFF'}")
        # KiB. Readers are many, and what they don't find is in the system's cache.
        driver.execute(f"PRAGMA cache_size=-{4_000 if read_only else 16_000}")
        driver.execute("PRAGMA temp_store=MEMORY")
        if read_only:
            driver.execute("PRAGMA query_only=ON")
        else:
            _write_ahead(driver)
            driver.execute("PRAGMA journal_size_limit=67108864")

    @event.listens_for(engine, "begin")
    def _begin(conn: Any) -> None:
        conn.exec_driver_sql(begin)

    return engine


def _write_ahead(driver: sqlite3.Connection) -> None:
    # Switching a new file to its log wants the file alone and is refused at once, whatever the connection's own wait,
    # while another server that starts at the same moment does the same.
    deadline = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            driver.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _postgresql(url: URL, shared: Shared, *, sync: bool, read_only: bool) -> Engine:
    settings = f"-c lock_timeout={_BUSY_MS} -c idle_in_transaction_session_timeout=60000 -c deadlock_timeout=200"
    if not sync:
        settings += " -c synchronous_commit=off"
    try:
        engine = create_engine(
            url,
            connect_args={"options": settings, "connect_timeout": 10, "application_name": "nodus"},
            pool_size=READERS if read_only else PG_WRITERS,
            max_overflow=READERS if read_only else 0,
            pool_pre_ping=True,
            # One snapshot for all statements of a read; writers look at what is committed after they got their locks.
            isolation_level="REPEATABLE READ" if read_only else "READ COMMITTED",
        )
    except (ImportError, NoSuchModuleError) as error:
        fix = "Install the extra: pip install 'nodus-platform[postgres]'."
        raise StoreUnreachable("PostgreSQL's driver psycopg isn't installed", fix=fix) from error

    @event.listens_for(engine, "connect")
    def _connect(driver: Any, record: Any) -> None:
        attach(record.info, shared)
        if read_only:
            driver.read_only = True

    return engine
