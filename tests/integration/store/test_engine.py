"""The engine: grouped commits, what a failing transaction leaves, and faults of the database itself."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from nodus.core.clock import FakeClock, SystemClock
from nodus.core.errors import AlreadyExists
from nodus.core.kinds import KINDS
from nodus.server.store import (
    Object,
    Store,
    StoreClosed,
    StoreCorrupt,
    StoreFull,
    StoreLocked,
    StoreTooNew,
    StoreUnreachable,
    changes,
    leases,
    objects,
)
from nodus.server.store.housekeeping import prune_once
from nodus.testing.eventually import eventually
from nodus.testing.postgres import PostgresServer

JOB = KINDS["Job"]
OpenStore = Callable[[], Store]


def names(store: Store) -> list[str]:
    return store.read_sync(names_in)


def names_in(conn: Connection) -> list[str]:
    return [obj.name for obj in objects.list_(conn, JOB, None).items]


async def test_one_failure_in_a_group_undoes_only_itself(store: Store) -> None:
    def work(conn: Connection, number: int) -> Object:
        made = objects.create(conn, JOB, "default", f"job-{number:03}", {})
        if number % 3 == 0:
            raise ValueError(f"number {number}")
        if number % 3 == 1:
            objects.create(conn, JOB, "default", f"job-{number:03}", {})
        return made

    results = await asyncio.gather(*(store.write(work, number) for number in range(90)), return_exceptions=True)
    for number, result in enumerate(results):
        assert type(result) is (ValueError, AlreadyExists, Object)[number % 3]
    assert await asyncio.to_thread(names, store) == [f"job-{number:03}" for number in range(2, 90, 3)]
    found, _ = await store.read(changes.read_after, 0)
    assert [change.rv for change in found] == list(range(1, 31)), "numbers have no gaps"


async def test_a_violated_constraint_undoes_only_its_own_transaction(store: Store) -> None:
    def broken(conn: Connection) -> None:
        conn.execute(text("INSERT INTO sequences (name, value) VALUES ('rv', 1)"))

    jobs = [store.write(objects.create, JOB, "default", f"job-{number}", {}) for number in range(5)]
    results = await asyncio.gather(*jobs, store.write(broken), return_exceptions=True)
    assert [type(result) for result in results] == [Object] * 5 + [IntegrityError]


async def test_a_cancelled_caller_disturbs_nobody(store: Store) -> None:
    waiting = [asyncio.ensure_future(store.write(objects.create, JOB, "default", f"j{n}", {})) for n in range(50)]
    await asyncio.sleep(0)
    for task in waiting[::2]:
        task.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, Object) for result in results[1::2])


def test_writes_from_many_threads_and_stores(open_store: OpenStore) -> None:
    stores = [open_store(), open_store()]

    def work(number: int) -> int:
        return stores[number % 2].write_sync(objects.create, JOB, "default", f"j{number}", {}).resource_version

    with ThreadPoolExecutor(8) as threads:
        numbers = list(threads.map(work, range(80)))
    assert sorted(numbers) == list(range(1, 81))


def test_a_transaction_cannot_wait_for_another(store: Store) -> None:
    def nested(conn: Connection) -> None:
        store.write_sync(objects.create, JOB, "default", "j", {})

    with pytest.raises(AssertionError, match="must not wait"):
        store.write_sync(nested)


async def test_whatever_a_function_raises_reaches_its_caller_and_the_store_goes_on(store: Store) -> None:
    class Odd(BaseException):
        pass

    def odd(conn: Connection) -> None:
        raise Odd

    with pytest.raises(Odd):
        await store.write(odd)
    both = await asyncio.gather(store.write(odd), store.write(names_in), return_exceptions=True)
    assert isinstance(both[0], Odd)
    await store.write(objects.create, JOB, "default", "j", {})


def test_a_wrong_statement_is_reported_as_it_is(store: Store) -> None:
    def wrong(conn: Connection) -> None:
        conn.execute(text("SELECT 1 FROM nowhere"))

    with pytest.raises(DBAPIError, match="nowhere"):
        store.write_sync(wrong)
    with pytest.raises(DBAPIError, match="nowhere"):
        store.read_sync(wrong)


def test_reading_functions_cannot_write(store: Store) -> None:
    with pytest.raises(StoreUnreachable, match=r"can't be written"):
        store.read_sync(objects.create, JOB, "default", "j", {})


async def test_a_closed_store_finishes_what_was_queued_and_refuses_the_rest(store: Store) -> None:
    waiting = [asyncio.ensure_future(store.write(objects.create, JOB, "default", f"j{n}", {})) for n in range(20)]
    await asyncio.sleep(0)
    await asyncio.to_thread(store.close)
    assert all(isinstance(result, Object) for result in await asyncio.gather(*waiting))
    with pytest.raises(StoreClosed):
        await store.write(objects.create, JOB, "default", "late", {})
    with pytest.raises(StoreClosed):
        await store.read(objects.list_, JOB, None)
    store.close()


def test_what_was_written_is_there_after_opening_again(open_store: OpenStore) -> None:
    first = open_store()
    first.write_sync(objects.create, JOB, "default", "j", {})
    org = first.org
    first.close()
    again = open_store()
    assert again.org == org
    assert names(again) == ["j"]


async def test_housekeeping_bounds_what_grows(store: Store, clock: FakeClock) -> None:
    await store.write(objects.create, JOB, "default", "j", {})
    await store.write(leases.acquire, "Job/1", "me", 60)
    assert await prune_once(store) == 0
    clock.advance(30 * 24 * 3600)
    assert await prune_once(store) == 1


# kill -9 -----------------------------------------------------------------------------------------------------

_WRITER = textwrap.dedent(
    """
    import asyncio, sys
    from nodus.core.clock import SystemClock
    from nodus.core.kinds import KINDS
    from nodus.server.store import Store, objects

    async def main():
        store = Store.open(sys.argv[1], SystemClock())

        async def loop(worker):
            for number in range(1_000_000):
                made = await store.write(objects.create, KINDS["Job"], "default", f"j-{worker}-{number}", {"n": number})
                await store.write(objects.update_status, made.uid, {"phase": "Running"})
                print(made.name, flush=True)

        await asyncio.gather(*(loop(worker) for worker in range(10)))

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("lines", [1, 40, 150])
def test_kill_minus_9_loses_nothing_acknowledged(store_url: str, tmp_path: Path, lines: int) -> None:
    output = tmp_path / "acknowledged"
    with output.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", _WRITER, store_url], stdout=file)
    eventually(lambda: output.read_bytes().count(b"\n") >= lines, timeout_s=50)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    acknowledged = output.read_text().split("\n")[:-1]
    store = Store.open(store_url, SystemClock(), data_dir=tmp_path)
    stored = {obj.name: obj for obj in store.read_sync(objects.list_, JOB, None).items}
    assert set(acknowledged) <= set(stored)
    assert all(stored[name].status == {"phase": "Running"} for name in acknowledged)
    numbers = [change.rv for change in _all_changes(store)]
    assert numbers == list(range(1, len(numbers) + 1))
    store.close()


def _all_changes(store: Store) -> list[changes.Change]:
    found, position = store.read_sync(changes.read_after, 0)
    while True:
        more, position = store.read_sync(changes.read_after, position)
        if not more:
            return found
        found += more


# Faults of SQLite's file -------------------------------------------------------------------------------------


def _open(path: Path) -> Store:
    return Store.open(f"sqlite:///{path}", SystemClock())


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "nodus.db"
    store = _open(path)
    for number in range(200):
        store.write_sync(objects.create, JOB, "default", f"j{number}", {"text": "x" * 500})
    store.close()
    return path


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "nodus.db"
    path.write_bytes(b"this is a letter to my aunt\n" * 300)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match=rf"the database {path} is damaged \(file is not a database\)") as raised:
        _open(path)
    assert "\n" not in str(raised.value)
    assert path.read_bytes() == before


def test_a_damaged_page_is_found_at_open(filled: Path) -> None:
    with filled.open("r+b") as file:
        file.seek(4096 * 30)
        file.write(b"\xff" * 4096 * 5)
    with pytest.raises(StoreCorrupt, match="is damaged"):
        _open(filled)


def test_a_full_disk_undoes_the_transaction_and_the_store_goes_on(filled: Path) -> None:
    store = _open(filled)

    def limit_pages(conn: Connection, extra: int) -> None:
        used = conn.execute(text("PRAGMA page_count")).scalar_one()
        conn.execute(text(f"PRAGMA max_page_count = {used + extra}"))

    store.write_sync(limit_pages, 2)
    with pytest.raises(StoreFull, match=f"no space left for the database {filled}"):
        store.write_sync(objects.create, JOB, "default", "big", {"text": "x" * 100_000})
    assert "big" not in names(store)
    store.write_sync(objects.create, JOB, "default", "small", {})
    store.write_sync(limit_pages, 1000)
    store.write_sync(objects.create, JOB, "default", "big", {"text": "x" * 100_000})
    assert {"small", "big"} <= set(names(store))
    store.close()


async def test_a_full_disk_fails_only_who_needs_the_space(filled: Path) -> None:
    store = _open(filled)

    def limit_pages(conn: Connection) -> None:
        used = conn.execute(text("PRAGMA page_count")).scalar_one()
        conn.execute(text(f"PRAGMA max_page_count = {used + 10}"))

    await store.write(limit_pages)
    sizes = [10, 200_000, 10, 10]
    writes = [store.write(objects.create, JOB, "default", f"n{n}", {"t": "x" * size}) for n, size in enumerate(sizes)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [Object, StoreFull, Object, Object]
    store.close()


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnreachable, match=r"nodus\.db can't be opened: (Not a directory|File exists)"):
        _open(tmp_path / "file" / "nodus.db")


def test_a_database_of_a_newer_version_is_refused(filled: Path) -> None:
    with sqlite3.connect(filled) as conn:
        conn.execute("UPDATE alembic_version SET version_num = '9999'")
    conn.close()
    with pytest.raises(StoreTooNew, match="revision '9999'"):
        _open(filled)


def test_a_locked_file_is_named(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodus.server.store.dialects._BUSY_MS", 50)
    holder = sqlite3.connect(filled, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreLocked, match="is locked by another process"):
        _open(filled)
    holder.close()


def test_the_file_is_private(filled: Path) -> None:
    assert filled.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("url", ["nonsense", "mysql://x/y", "sqlite://", "sqlite:///:memory:"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(StoreUnreachable, match=r"is no database"):
        Store.open(url, SystemClock())


# Faults of PostgreSQL ----------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_a_deadlock_is_run_again_until_both_succeed(postgres_server: PostgresServer, tmp_path: Path) -> None:
    url = postgres_server.new_database()
    one, two = (Store.open(url, SystemClock(), data_dir=tmp_path) for _ in range(2))
    for name in ("a", "b"):
        one.write_sync(leases.acquire, name, "x", 60)
    meet = threading.Barrier(2)
    tries: list[str] = []

    def cross(conn: Connection, first: str, second: str) -> None:
        tries.append(first)
        lock = text("SELECT token FROM leases WHERE key = :key FOR UPDATE")
        conn.execute(lock, {"key": first})
        if len(tries) <= 2:
            meet.wait(20)
        conn.execute(lock, {"key": second})
        conn.execute(text("UPDATE leases SET token = token + 1 WHERE key = :key"), {"key": second})

    with ThreadPoolExecutor() as threads:
        futures = [threads.submit(one.write_sync, cross, "a", "b"), threads.submit(two.write_sync, cross, "b", "a")]
        for future in futures:
            future.result()
    assert len(tries) > 2, "no deadlock took place"
    one.close()
    two.close()


@pytest.mark.postgres
def test_lost_connections_are_opened_again(postgres_server: PostgresServer, tmp_path: Path) -> None:
    url = postgres_server.new_database()
    store, other = (Store.open(url, SystemClock(), data_dir=tmp_path) for _ in range(2))
    asyncio.run(store.feed.position())
    store.write_sync(objects.create, JOB, "default", "a", {})
    kill = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    other.read_sync(lambda conn: conn.execute(kill).all())
    for number in range(5):
        store.write_sync(objects.create, JOB, "default", f"b{number}", {})
    assert len(names(store)) == 6
    asyncio.run(_feed_reaches(store, 6))
    store.close()
    other.close()


async def _feed_reaches(store: Store, count: int) -> None:
    stream = store.feed.subscribe(since=0)
    async with asyncio.timeout(20):
        assert [(await anext(stream)).rv for _ in range(count)] == list(range(1, count + 1))


@pytest.mark.postgres
def test_a_server_that_is_down_is_one_clear_line_and_back_when_it_is(tmp_path: Path) -> None:
    with PostgresServer.start() as server:
        store = Store.open(server.new_database(), SystemClock(), data_dir=tmp_path)
        store.write_sync(objects.create, JOB, "default", "a", {})
        server.restart()
        store.write_sync(objects.create, JOB, "default", "b", {})
        url = str(store.url)
    with pytest.raises(StoreUnreachable, match=r"can't be used") as raised:
        store.write_sync(objects.create, JOB, "default", "c", {})
    assert "\n" not in str(raised.value)
    with pytest.raises(StoreUnreachable):
        store.read_sync(objects.list_, JOB, None)
    with pytest.raises(StoreUnreachable):
        Store.open(url, SystemClock(), data_dir=tmp_path)
    store.close()
