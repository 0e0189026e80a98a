"""The store: one object through which the server reads and writes its database.

Runs in the server process; every other module hands it plain functions of a connection:

    store = Store.open("sqlite:////data/nodus.db", SystemClock())
    job = await store.write(objects.create, KINDS["Job"], "default", "j1", spec)
    page = await store.read(objects.list_, KINDS["Job"], "default")

A write is acknowledged (the await returns) only after its commit is on disk. A function may be run more than once and
must have no effects but on the database. States: open -> closed; a closed store refuses with StoreClosed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, insert, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from nodus.core.clock import Clock
from nodus.core.ids import new_uid
from nodus.server.store import dialects, migrations
from nodus.server.store.blobs import BlobStore
from nodus.server.store.codec import to_us
from nodus.server.store.context import Shared
from nodus.server.store.errors import StoreClosed, StoreCorrupt, is_bug, is_lost, is_retryable, translate
from nodus.server.store.feed import Feed, make_feed
from nodus.server.store.memo import Memo
from nodus.server.store.schema import orgs, sequences
from nodus.server.store.writer import GroupWriter, Job

P = ParamSpec("P")
T = TypeVar("T")

_SEQUENCES = ("rv", "pruned", "taskevents")


class Store:
    """A database that is open; made by :meth:`open`.

    Attributes:
        url: the database's URL.
        dialect: ``sqlite`` or ``postgresql``.
        org: uid of the org that transactions act for.
        blobs: content-addressed files beside the database.
        feed: the changes to objects, as they happen.
    """

    def __init__(self, url: URL, shared: Shared, writer: Engine, reader: Engine, data_dir: Path) -> None:
        self.url = url
        self.dialect = shared.dialect
        self.org = shared.org
        self.clock = shared.clock
        self.where = dialects.describe(url)
        self.blobs = BlobStore(data_dir / "blobs")
        self._write_engine, self._read_engine = writer, reader
        self._readers = ThreadPoolExecutor(dialects.READERS, thread_name_prefix="nodus-store-reader")
        self._closed = False
        self._outbox_lock = threading.Lock()
        self._outbox: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        self._memo = Memo(dialects.VersionProbe(str(url.database))) if self.dialect == "sqlite" else None
        self.feed: Feed = make_feed(url, self.read_sync)
        threads = 1 if self.dialect == "sqlite" else dialects.PG_WRITERS
        self._writer = GroupWriter(writer, threads, self.where, self.feed.wake)

    @classmethod
    def open(
        cls, url: str, clock: Clock, *, data_dir: Path | None = None, org_name: str = "nodus", sync: bool = True
    ) -> Store:
        """Open the database, creating or migrating it as needed.

        Args:
            url: ``sqlite:///relative``, ``sqlite:////absolute`` or ``postgresql://user@host/db``.
            clock: the source of object timestamps.
            data_dir: where blobs go; by default the SQLite file's directory.
            org_name: name of the org created in an empty database.
            sync: False skips waiting for the disk at commits; for tests only.

        Raises:
            StoreError: one of :mod:`nodus.server.store.errors`, with one line that says what is wrong.
        """
        parsed = dialects.parse_url(url)
        backend = parsed.get_backend_name()
        if backend == "sqlite":
            dialects.prepare_sqlite_file(parsed)
        if data_dir is None:
            data_dir = Path(str(parsed.database)).parent if backend == "sqlite" else Path.cwd()
        shared = Shared(clock, backend)
        writer, reader = dialects.make_engines(parsed, shared, sync=sync)
        try:
            with writer.begin() as conn:
                if backend == "sqlite" and dialects.small_enough_to_check(parsed):
                    _check(conn, dialects.describe(parsed))
                migrations.migrate(conn)
                shared.org = _bootstrap(conn, org_name, to_us(clock.now()))
        except SQLAlchemyError as error:
            writer.dispose()
            raise translate(error, dialects.describe(parsed)) from error
        return cls(parsed, shared, writer, reader, data_dir)

    async def write(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn(conn, *args)`` in a transaction of its own and return its result once that is committed.

        Raises:
            StoreError: the database failed; nothing of ``fn`` is kept.
            Exception: whatever ``fn`` raised; nothing of it is kept.
        """
        self._refuse_if_closed()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = Job(partial(fn, **kwargs) if kwargs else fn, args, future, loop)
        with self._outbox_lock:
            waiting = self._outbox.get(loop)
            if waiting is None:
                waiting = self._outbox[loop] = []
                # Handed over when every task that is ready now has run: what they write goes into one commit, and the
                # writer does not fight them for the interpreter meanwhile.
                loop.call_soon(self._hand_over, loop)
            waiting.append(job)
        return await future

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._outbox_lock:
            jobs = self._outbox.pop(loop, [])
        try:
            self._writer.submit(*jobs)
        except StoreClosed as error:
            for job in jobs:
                if not job.future.done():
                    job.future.set_exception(error)

    def write_sync(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like :meth:`write`, for threads and tests; blocks."""
        if self._writer.owns_current_thread():
            raise AssertionError("a transaction must not wait for another one; pass its connection on instead")
        future: Future[T] = Future()
        self._writer.submit(Job(partial(fn, **kwargs) if kwargs else fn, args, future, None))
        return future.result()

    async def read(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn(conn, *args)`` on a read-only snapshot of the database and return its result."""
        self._refuse_if_closed()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, partial(self.read_sync, fn, *args, **kwargs))

    async def read_memo(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like :meth:`read`, for small questions that every request asks again (whose key is this?).

        The answer is that of the database as it is now; while nothing is committed, by this process or another, the
        last one is returned without reading. Arguments must be hashable and the answer is shared: read-only. It is read
        on the event loop where that is a matter of microseconds (SQLite), so ask for a few rows by index only.
        """
        self._refuse_if_closed()
        if self._memo is None:
            return await self.read(fn, *args, **kwargs)
        found: T = self._memo.get((fn, args, tuple(kwargs.items())), partial(self.read_sync, fn, *args, **kwargs))
        return found

    def read_sync(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like :meth:`read`, for threads and tests; blocks."""
        self._refuse_if_closed()
        for last in (False, False, True):
            try:
                with self._read_engine.connect() as conn, conn.begin():
                    return fn(conn, *args, **kwargs)
            except DBAPIError as error:
                if is_bug(error):
                    raise
                if last or not (is_lost(error) or is_retryable(error)):
                    raise translate(error, self.where) from error
            except SQLAlchemyError as error:
                raise translate(error, self.where) from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Finish the queued writes and let go of the database."""
        if self._closed:
            return
        for loop in list(self._outbox):
            self._hand_over(loop)
        self._writer.close()
        self.feed.close()
        self._closed = True
        if self._memo is not None:
            self._memo.close()
        self._readers.shutdown(wait=True)
        self._read_engine.dispose()
        self._write_engine.dispose()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")


def _check(conn: Connection, where: str) -> None:
    problem = conn.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if problem != "ok":
        fix = "Restore the file from a backup, or move it away to start afresh."
        what = " ".join(str(problem).split())
        raise StoreCorrupt(f"the database {where} is damaged ({what})", fix=fix)


def _bootstrap(conn: Connection, org_name: str, now_us: int) -> str:
    """Make sure that the counters and one org are there, and return the org's uid."""
    known = set(conn.execute(select(sequences.c.name)).scalars())
    missing = [{"name": name, "value": 0} for name in _SEQUENCES if name not in known]
    if missing:
        conn.execute(insert(sequences), missing)
    org = conn.execute(select(orgs.c.uid).order_by(orgs.c.created_us).limit(1)).scalar()
    if org is None:
        org = new_uid()
        conn.execute(insert(orgs), {"uid": org, "name": org_name, "created_us": now_us})
    return org
