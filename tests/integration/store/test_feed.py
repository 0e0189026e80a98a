"""The feed: order, resuming, what selectors make of a change, other processes, and slow readers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, text

from nodus.core.clock import FakeClock
from nodus.core.errors import Expired
from nodus.core.kinds import KINDS
from nodus.core.selectors import parse_selector
from nodus.server.store import Object, Store, StoreClosed, changes, feed, objects
from nodus.server.store.changes import Change, Selection
from nodus.testing.eventually import eventually

JOB, ATTEMPT = KINDS["Job"], KINDS["Attempt"]
MakeJob = Callable[..., Object]
_RING = feed._Bell.ring


async def take(changes_: AsyncIterator[Change], count: int) -> list[tuple[str, str, int]]:
    async with asyncio.timeout(20):
        return [(c.type, c.name, c.rv) for c in [await anext(changes_) for _ in range(count)]]


async def create(store: Store, name: str, **options: Any) -> Object:
    return await store.write(objects.create, JOB, "default", name, {}, **options)


async def test_subscribe_yields_what_is_committed_from_now_on(store: Store) -> None:
    await create(store, "before")
    stream = store.feed.subscribe(["Job"], since=await store.feed.position())
    job = await create(store, "a")
    await store.write(objects.create, ATTEMPT, "default", "other-kind", {})
    await store.write(objects.update_status, job.uid, {"phase": "Running"})
    await store.write(objects.delete, job)
    assert await take(stream, 3) == [("ADDED", "a", 2), ("MODIFIED", "a", 4), ("DELETED", "a", 5)]


async def test_subscribe_without_since_starts_now(store: Store) -> None:
    await create(store, "before")
    stream = store.feed.subscribe()
    first = asyncio.ensure_future(anext(stream))
    await asyncio.to_thread(eventually, lambda: store.feed._bells)
    await create(store, "a")
    assert (await first).name == "a"


async def test_changes_carry_the_object_as_it_was(store: Store) -> None:
    job = await create(store, "a", labels={"v": "1"}, status={"phase": "Queued"})
    await store.write(objects.update_status, job.uid, {"phase": "Running"})
    await store.write(objects.delete, job)
    found, reached = await store.feed.after(0)
    assert [change.object.status for change in found] == [
        {"phase": "Queued"},
        {"phase": "Running"},
        {"phase": "Running"},
    ]
    assert [change.wire["metadata"]["resourceVersion"] for change in found] == ["1", "2", "3"]
    assert found[1].seen_before == {"labels": {"v": "1"}, "fields": {"status.phase": "Queued"}}
    assert reached == 3


async def test_resume_reads_the_past_from_the_database_and_then_goes_live(store: Store) -> None:
    for name in "abc":
        await create(store, name)
    stream = store.feed.subscribe(["Job"], since=1)
    assert await take(stream, 2) == [("ADDED", "b", 2), ("ADDED", "c", 3)]
    await create(store, "d")
    assert await take(stream, 1) == [("ADDED", "d", 4)]


async def test_a_reader_far_behind_misses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_KEEP", 10)
    monkeypatch.setattr(feed, "_CHUNK", 7)
    stream = store.feed.subscribe(["Job"], since=await store.feed.position())
    await create(store, "job-0")
    assert await take(stream, 1) == [("ADDED", "job-0", 1)]
    for number in range(1, 60):
        await create(store, f"job-{number}")
    await asyncio.to_thread(eventually, lambda: store.feed._floor >= 30)
    assert [name for _, name, _ in await take(stream, 59)] == [f"job-{number}" for number in range(1, 60)]


async def test_what_is_kept_is_bounded_by_bytes_and_the_rest_comes_from_the_database(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_KEEP_BYTES", 20_000)
    monkeypatch.setattr(feed, "_CHUNK_BYTES", 10_000)
    since = await store.feed.position()
    await asyncio.to_thread(eventually, lambda: store.feed._thread)
    for number in range(40):
        await create(store, f"big-{number}", annotations={"a": "x" * 4_000})
    await asyncio.to_thread(eventually, lambda: store.feed._cursor == since + 40)
    assert sum(change.size for change in store.feed._recent) <= 45_000
    found, _ = await store.feed.after(since)
    assert 1 <= len(found) <= 4
    names = [name for _, name, _ in await take(store.feed.subscribe(["Job"], since=since), 40)]
    assert names == [f"big-{number}" for number in range(40)]


async def test_a_change_wakes_a_loop_once_however_many_wait(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rings: list[int] = []
    monkeypatch.setattr(feed._Bell, "ring", lambda bell: rings.append(len(bell._waiting)) or _RING(bell))
    rv = await store.feed.position()
    waiting = [asyncio.create_task(store.feed.wait(rv, timeout_s=20)) for _ in range(500)]
    await asyncio.sleep(0)
    await create(store, "a")
    assert all(await asyncio.gather(*waiting))
    assert rings == [500]
    # Who gives up, or whose time is over, leaves nothing behind.
    late = asyncio.create_task(store.feed.wait(rv + 1, timeout_s=20))
    assert not await store.feed.wait(rv + 1, timeout_s=0.01)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    (bell,) = store.feed._bells.values()
    assert not bell._waiting


async def test_many_subscribers_see_the_same_under_concurrent_writes(store: Store) -> None:
    streams = [store.feed.subscribe(["Job"], since=0) for _ in range(20)]
    readers = [asyncio.create_task(take(stream, 100)) for stream in streams]
    await asyncio.gather(*(create(store, f"job-{number}") for number in range(100)))
    results = await asyncio.gather(*readers)
    assert [rv for _, _, rv in results[0]] == list(range(1, 101))
    assert all(result == results[0] for result in results)


async def test_another_process_is_heard(open_store: Callable[[], Store]) -> None:
    here, there = open_store(), open_store()
    stream = here.feed.subscribe(since=await here.feed.position())
    await there.feed.position()
    await create(there, "elsewhere")
    assert await take(stream, 1) == [("ADDED", "elsewhere", 1)]


async def test_a_resource_version_older_than_the_window_is_expired(store: Store, clock: FakeClock) -> None:
    for name in "abc":
        await create(store, name)
    clock.advance(changes.RETAIN_S + 1)
    await create(store, "d")
    assert await store.write(changes.prune) == 3
    with pytest.raises(Expired, match="resourceVersion 2 is too old"):
        await store.feed.after(2)
    assert [change.name for change in (await store.feed.after(3))[0]] == ["d"]


async def test_a_resource_version_never_given_out_is_expired(store: Store) -> None:
    with pytest.raises(Expired):
        await anext(store.feed.subscribe(since=99))


async def test_changes_are_bounded_by_rows_in_batches(store: Store) -> None:
    for number in range(12):
        await create(store, f"job-{number}")
    removed = [await store.write(changes.prune, keep_rows=5, batch=4) for _ in range(3)]
    assert removed == [4, 3, 0]
    assert [change.rv for change in (await store.feed.after(7))[0]] == [8, 9, 10, 11, 12]


async def test_waiting_times_out_and_wakes(store: Store) -> None:
    rv = await store.feed.position()
    assert not await store.feed.wait(rv, timeout_s=0.01)
    waiting = asyncio.create_task(store.feed.wait(rv, timeout_s=20))
    await create(store, "a")
    assert await waiting


async def test_closing_ends_subscriptions(store: Store) -> None:
    stream = store.feed.subscribe(since=await store.feed.position())
    waiting = asyncio.create_task(take(stream, 1))
    await asyncio.to_thread(eventually, lambda: store.feed._bells)
    await asyncio.to_thread(store.close)
    with pytest.raises(StoreClosed):
        await waiting


def test_numbers_become_visible_in_their_order(open_store: Callable[[], Store]) -> None:
    """A writer that takes a number and commits late can't be overtaken: who resumes below it sees it."""
    slow, fast = open_store(), open_store()
    took_number, others_tried = threading.Event(), threading.Event()

    def late(conn: Connection) -> int:
        made = objects.create(conn, JOB, "default", "late", {})
        took_number.set()
        assert others_tried.wait(20)
        return made.resource_version

    def quick(conn: Connection) -> int:
        others_tried.set()
        return objects.create(conn, JOB, "default", "quick", {}).resource_version

    with ThreadPoolExecutor() as threads:
        first = threads.submit(slow.write_sync, late)
        assert took_number.wait(20)
        if fast.dialect == "sqlite":
            others_tried.set()
        second = threads.submit(fast.write_sync, quick)
        seen: list[int] = []
        position = 0
        while len(seen) < 2:
            found, position = fast.read_sync(changes.read_after, position)
            seen += [change.rv for change in found]
        assert (first.result(), second.result()) == (1, 2)
    assert seen == [1, 2]


def test_a_rolled_back_change_is_never_seen(store: Store, make_job: MakeJob) -> None:
    def fail(conn: Connection) -> None:
        objects.create(conn, JOB, "default", "ghost", {})
        conn.execute(text("SELECT 1 FROM nowhere"))

    with pytest.raises(Exception, match="nowhere"):
        store.write_sync(fail)
    make_job("real")
    found, _ = store.read_sync(changes.read_after, 0)
    assert [(change.rv, change.name) for change in found] == [(1, "real")]


def classify(store: Store, selection: Selection, since: int) -> list[tuple[str | None, str]]:
    found, _ = store.read_sync(changes.read_after, since)
    return [(selection.classify(change), change.name) for change in found]


def test_an_object_that_stops_matching_is_deleted_for_the_watcher(store: Store, make_job: MakeJob) -> None:
    job = make_job("a", labels={"app": "web"}, status={"phase": "Queued"})
    store.write_sync(objects.update_status, job.uid, {"phase": "Running"})
    store.write_sync(objects.update_status, job.uid, {"phase": "Running", "step": 1})
    store.write_sync(objects.update_status, job.uid, {"phase": "Failed"})
    store.write_sync(objects.delete, job)
    by_phase = Selection(JOB, fields=parse_selector("status.phase=Running"))
    expected = [(None, "a"), ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), (None, "a")]
    assert classify(store, by_phase, 0) == expected
    # Who resumes in the middle has shown nothing and knows from the image before.
    assert classify(store, Selection(JOB, fields=parse_selector("status.phase=Running")), 2) == expected[2:]
    assert classify(store, Selection(JOB, labels=parse_selector("app=web")), 3) == [("MODIFIED", "a"), ("DELETED", "a")]


def test_selectors_over_fields_no_index_holds(store: Store, make_job: MakeJob) -> None:
    job = make_job("a", status={"step": 1})
    store.write_sync(objects.update_status, job.uid, {"step": 2})
    store.write_sync(objects.update_status, job.uid, {"step": 3})
    selection = Selection(JOB, fields=parse_selector("status.step=1"))
    selection.show(job.uid)
    assert classify(store, selection, 1) == [("DELETED", "a"), (None, "a")]


def test_who_resumes_with_a_selector_over_such_a_field_is_told_from_the_change_before(
    store: Store, make_job: MakeJob
) -> None:
    job = make_job("a", status={"step": 1})
    for step in (2, 1, 3):
        store.write_sync(objects.update_status, job.uid, {"step": step})
    (_, was_two, was_one), _ = store.read_sync(changes.read_after, 1)
    for change, expected in ((was_two, "ADDED"), (was_one, "DELETED")):
        selection = Selection(JOB, fields=parse_selector("status.step=1"))
        assert selection.unsure(change)
        selection.tell(change, store.read_sync(changes.object_before, change))
        assert selection.classify(change) == expected
        assert not selection.unsure(change)
    # Nothing is known any more: better one DELETED too many than an object that stays for ever.
    store.write_sync(changes.prune, keep_rows=1)
    selection = Selection(JOB, fields=parse_selector("status.step=1"))
    selection.tell(was_one, store.read_sync(changes.object_before, was_one))
    assert selection.classify(was_one) == "DELETED"
