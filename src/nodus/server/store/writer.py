"""Threads that run waiting transactions together and commit them at once.

One write to disk per commit is what limits a database; functions that wait at the same time share it. One that
raises is undone alone, by a savepoint. Called by :class:`nodus.server.store.engine.Store` only.

A batch that fails as a whole (a deadlock, a full disk, a lost connection) is rolled back and its functions are run
again one by one, so that only the guilty one fails; functions must therefore have no effects but on the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError

from nodus.core.errors import NodusError
from nodus.server.store.appended import write_later
from nodus.server.store.context import context, write_numbers
from nodus.server.store.errors import StoreClosed, StoreUnreachable, is_bug, is_lost, is_retryable, translate

MAX_BATCH = 256
MAX_TRIES = 8
_MANY = 8
"""From so many transactions on it is worth that the event loop stands aside."""
STAND_ASIDE_S = 0.01
"""How long the event loop waits at most for a batch to run."""
GATHER_S = 0.002
"""How long a batch waits for the next of those who are expected to come."""
GATHER_AT_MOST_S = 0.015
"""How long it waits for all of them together."""


@dataclass(slots=True)
class Job:
    """One waiting transaction and where its outcome goes."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    future: asyncio.Future[Any] | Future[Any]
    loop: asyncio.AbstractEventLoop | None
    value: Any = None
    error: BaseException | None = field(default=None)


class _BatchLost(Exception):
    """The whole transaction is gone; ``cause`` says why."""

    def __init__(self, cause: BaseException, *, at_commit: bool = False) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.at_commit = at_commit


class _Unguarded(Exception):
    """A function failed after it had written, and there is no savepoint to return to."""


class GroupWriter:
    """A pool of writer threads over one queue.

    Args:
        engine: gives each thread its connection.
        threads: 1 for SQLite, which has one writer; several for PostgreSQL.
        where: the database's name in error messages.
        on_change: called after a commit that changed objects.
    """

    def __init__(self, engine: Engine, threads: int, where: str, on_change: Callable[[], None]) -> None:
        self._engine = engine
        self._where = where
        self._on_change = on_change
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closed = False
        self._expected = 0
        self._gate = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, name=f"nodus-store-writer-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, *jobs: Job) -> None:
        """Queue transactions.

        Raises:
            StoreClosed: after :meth:`close`.
        """
        with self._gate:
            if self._closed:
                raise StoreClosed("the store is closed")
            for job in jobs:
                self._queue.put(job)

    def owns_current_thread(self) -> bool:
        """Tell whether the caller is a transaction of this writer, where waiting for another would never end."""
        return threading.current_thread() in self._threads

    def close(self) -> None:
        """Finish what is queued, then stop the threads."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        slot = _Slot(self._engine)
        try:
            while True:
                job = self._queue.get()
                if job is None:
                    return
                batch, last = self._drain(job)
                try:
                    self._settle(slot, batch)
                except BaseException as error:  # noqa: BLE001 - this thread must live on, and nobody wait for ever
                    slot.drop()
                    _fail(batch, error)
                if last:
                    return
        finally:
            slot.drop()

    def _drain(self, first: Job) -> tuple[list[Job], bool]:
        """Return what waits, together with what is likely to come in a moment.

        Whoever got an answer from the batch before usually asks again at once. Waiting for them costs less than a
        commit for each half of them, and spares two threads the fight for one interpreter.
        """
        batch = [first]
        end_s = time.monotonic() + GATHER_AT_MOST_S
        while len(batch) < MAX_BATCH:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                if len(batch) >= self._expected or time.monotonic() >= end_s:
                    break
                try:
                    job = self._queue.get(timeout=GATHER_S)
                except queue.Empty:
                    break
            if job is None:
                return batch, True
            batch.append(job)
        return batch, False

    def _settle(self, slot: _Slot, batch: list[Job]) -> None:
        batch = [job for job in batch if not job.future.cancelled()]
        if len(batch) > 1:
            try:
                if self._run_group(slot, batch):
                    self._on_change()
                self._expect(len(batch))
                _deliver(batch)
                return
            except _BatchLost as lost:
                slot.reset(lost.cause)
                if lost.at_commit and is_lost(lost.cause):
                    _fail(batch, self._explain(lost))
                    return
        for job in batch:
            self._run_alone(slot, job)
            self._expect(1)
            _deliver([job])

    def _expect(self, answered: int) -> None:
        """Note before answers go out how many may come back; several threads don't wait for each other's."""
        if len(self._threads) == 1:
            self._expected = answered + self._queue.qsize()

    def _run_group(self, slot: _Slot, batch: list[Job]) -> bool:
        """Run several together. Most that fail do so before they write; on SQLite savepoints are for the others."""
        if self._engine.dialect.name != "sqlite":
            return self._run_batch(slot, batch)
        try:
            return self._run_batch(slot, batch, unguarded=True)
        except _Unguarded as failed:
            slot.reset(failed)
            return self._run_batch(slot, batch)

    def _run_alone(self, slot: _Slot, job: Job) -> None:
        for attempt in range(MAX_TRIES):
            try:
                if self._run_batch(slot, [job]):
                    self._on_change()
                return
            except _BatchLost as lost:
                slot.reset(lost.cause)
                again = is_retryable(lost.cause) or (is_lost(lost.cause) and not lost.at_commit and attempt < 2)
                if not again or attempt + 1 == MAX_TRIES:
                    job.error = self._explain(lost)
                    return
                # Jitter, so that two transactions that deadlocked don't meet again.
                time.sleep(random.uniform(0, 0.005 * 2**attempt))

    def _explain(self, lost: _BatchLost) -> BaseException:
        if not isinstance(lost.cause, SQLAlchemyError) or is_bug(lost.cause):
            return lost.cause
        if lost.at_commit and is_lost(lost.cause):
            message = f"the connection to {self._where} was lost during a commit; whether it took place is unknown"
            return StoreUnreachable(message, fix="Read the object again before repeating the request.")
        return translate(lost.cause, self._where)

    def _run_batch(self, slot: _Slot, batch: list[Job], *, unguarded: bool = False) -> bool:
        """Run and commit; True when objects changed. Every job has its value or error when this returns.

        Args:
            slot: the connection.
            batch: what to run.
            unguarded: without savepoints.

        Raises:
            _BatchLost: all of it has to be rolled back.
            _Unguarded: likewise, because a function failed that had written.
        """
        try:
            conn = slot.connection()
            transaction = conn.begin()
        except SQLAlchemyError as error:
            raise _BatchLost(error) from error
        ctx = context(conn)
        ctx.begin()
        try:
            if len(batch) == 1:
                _run_only(conn, batch[0])
                if batch[0].error is not None:
                    transaction.rollback()
                    return False
            else:
                run = _run_unguarded if unguarded else _run_in_savepoint
                with _alone(batch):
                    for job in batch:
                        run(conn, job)
                    write_numbers(conn)
                    write_later(conn)
            write_numbers(conn)
            write_later(conn)
        except (_BatchLost, _Unguarded):
            raise
        except SQLAlchemyError as error:
            raise _BatchLost(error) from error
        try:
            transaction.commit()
        except SQLAlchemyError as error:
            raise _BatchLost(error, at_commit=True) from error
        return ctx.changed


class _Slot:
    """One thread's connection, opened when needed and again after it was lost."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._conn: Connection | None = None

    def connection(self) -> Connection:
        if self._conn is None:
            self._conn = self._engine.connect()
        return self._conn

    def reset(self, cause: BaseException) -> None:
        """Undo the transaction that failed; a connection that was lost, or fails at that too, is given up."""
        if self._conn is not None and not is_lost(cause):
            try:
                self._conn.rollback()
                return
            except SQLAlchemyError:
                # The same fault again; the next transaction opens another connection or reports it.
                pass
        self.drop()

    def drop(self) -> None:
        if self._conn is not None:
            conn, self._conn = self._conn, None
            try:
                conn.invalidate()
                conn.close()
            except SQLAlchemyError:
                # The connection is broken already; that is why it is dropped.
                return


@contextlib.contextmanager
def _alone(batch: list[Job]) -> Iterator[None]:
    """Let the event loop stand aside while many functions run, for some milliseconds at most.

    Two threads that want the interpreter at the same time take it from each other at every statement, and each time the
    other core's caches are cold: both together then take half as long again. The wait for the disk is not meant.
    """
    loop = batch[0].loop
    if loop is None or len(batch) < _MANY:
        yield
        return
    running = threading.Lock()
    running.acquire()
    try:
        loop.call_soon_threadsafe(running.acquire, True, STAND_ASIDE_S)
    except RuntimeError:
        # The loop was closed while its tasks waited.
        pass
    try:
        yield
    finally:
        running.release()


def _run_only(conn: Connection, job: Job) -> None:
    job.value = job.error = None
    try:
        job.value = job.fn(conn, *job.args)
    except (NodusError, IntegrityError, DataError, ProgrammingError) as error:
        job.error = error
    except DBAPIError as error:
        raise _BatchLost(error) from error
    except Exception as error:  # noqa: BLE001 - a caller's function may raise anything; its caller gets it back
        job.error = error


def _run_unguarded(conn: Connection, job: Job) -> None:
    """Run one of several on SQLite, which undoes a failed statement by itself."""
    ctx = context(conn)
    driver: Any = conn.connection.dbapi_connection
    mark, written = ctx.mark(), driver.total_changes
    _run_only(conn, job)
    if job.error is not None:
        if driver.total_changes != written:
            raise _Unguarded
        ctx.undo(mark)


def _run_in_savepoint(conn: Connection, job: Job) -> None:
    ctx = context(conn)
    # A lock that a job before took stays until the commit; one that this job takes goes with its savepoint.
    mark, locked = ctx.mark(), ctx.locked
    _savepoint(conn, "SAVEPOINT job")
    _run_only(conn, job)
    if job.error is not None:
        _savepoint(conn, "ROLLBACK TO SAVEPOINT job")
        ctx.undo(mark)
        ctx.locked = locked
    _savepoint(conn, "RELEASE SAVEPOINT job")


def _savepoint(conn: Connection, statement: str) -> None:
    """Run a statement without arguments or result by the driver alone: through SQLAlchemy it costs five times as much.

    Raises:
        DBAPIError: it failed; SQLAlchemy says what that means for the connection.
    """
    driver: Any = conn.connection.dbapi_connection
    try:
        driver.execute(statement)
    except conn.dialect.loaded_dbapi.Error:
        conn.exec_driver_sql(statement)


def _fail(batch: list[Job], error: BaseException) -> None:
    waiting = [job for job in batch if not job.future.done()]
    for job in waiting:
        job.error = error
    _deliver(waiting)


def _deliver(batch: list[Job]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in batch:
        if job.loop is not None:
            by_loop.setdefault(job.loop, []).append(job)
        elif job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.value)
    for loop, jobs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, jobs)
        except RuntimeError:
            # The loop was closed while its tasks waited; nobody is left to tell.
            continue


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.value)
