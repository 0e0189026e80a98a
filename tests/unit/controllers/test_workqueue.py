"""The queue that passes are taken from."""

from __future__ import annotations

import asyncio

import pytest

from nodus.core.clock import FakeClock, SystemClock
from nodus.server.controllers.workqueue import WorkQueue


def take_all(queue: WorkQueue[str]) -> list[str]:
    found = []
    while (key := queue.next_ready()) is not None:
        found.append(key)
        queue.done(key)
    return found


def test_key_added_twice_is_worked_on_once() -> None:
    queue: WorkQueue[str] = WorkQueue(FakeClock())
    for key in ("a", "b", "a"):
        queue.add(key)
    assert take_all(queue) == ["a", "b"]


def test_key_added_while_it_is_worked_on_comes_again_afterwards() -> None:
    queue: WorkQueue[str] = WorkQueue(FakeClock())
    queue.add("a")
    assert queue.next_ready() == "a"
    queue.add("a")
    assert queue.next_ready() is None
    queue.done("a")
    assert take_all(queue) == ["a"]


def test_delays_are_kept_and_the_shorter_one_wins() -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add_after("a", 10)
    queue.add_after("a", 2)
    queue.add_after("a", 5)
    assert take_all(queue) == []
    clock.advance(2.1)
    assert take_all(queue) == ["a"]
    clock.advance(20)
    assert take_all(queue) == []


def test_failures_wait_longer_each_time_up_to_a_bound_and_start_over_after_success() -> None:
    queue: WorkQueue[str] = WorkQueue(FakeClock(), base_delay_s=1, max_delay_s=8)
    delays = [queue.failed("a") for _ in range(6)]
    assert all(0.8 * bound <= delay <= bound for delay, bound in zip(delays, (1, 2, 4, 8, 8, 8), strict=True))
    queue.forget("a")
    assert queue.failed("a") <= 1


@pytest.mark.parametrize("delay_s", [0.0, 0.02])
async def test_waiting_worker_wakes_for_a_key(delay_s: float) -> None:
    queue: WorkQueue[str] = WorkQueue(SystemClock())
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in ("a", "b", "c"):
        queue.add_after(key, delay_s)
    assert sorted(await asyncio.wait_for(asyncio.gather(*waiting), 5)) == ["a", "b", "c"]


@pytest.mark.parametrize("ticks", range(4))
async def test_worker_that_is_cancelled_as_a_key_comes_ends_and_leaves_the_key(ticks: int) -> None:
    # A cancellation that came within a tick of the key was forgotten: a server then never stopped.
    queue: WorkQueue[str] = WorkQueue(SystemClock())
    queue.add_after("later", 60)  # so that it waits with a time limit
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0.01)  # a real moment, in which it begins to wait
    queue.add("a")
    for _ in range(ticks):
        await asyncio.sleep(0)
    if worker.done():
        assert worker.result() == "a"
        return
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert queue.next_ready() == "a"
