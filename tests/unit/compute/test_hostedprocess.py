"""What a hosted process holds open: as much as it needs, and nothing once it is closed, however it came to that."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodus.server.compute.local.hostedprocess import READER_PATIENCE_S, STANDSTILL_S, WINDOW_BYTES, HostedProcess
from nodus.server.compute.local.processlog import STDOUT, ProcessLog

OWNER = (os.getuid(), os.getgid())
NEEDED = 9
"""A file of switches, a chunk and its index; three pipes."""


def descriptors() -> set[int]:
    # The listing's own is gone by the time it is looked at.
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}


@contextlib.contextmanager
def room_for(count: int) -> Iterator[None]:
    """Let this process open so many further descriptors."""
    used, limit, free = descriptors(), 0, 0
    while free < count:
        free += limit not in used
        limit += 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_and_close(directory: Path) -> None:
    process = HostedProcess("p", ProcessLog(directory), tty=False, timeout_s=None, now=0.0)
    try:
        for fd in process.make_pipes(OWNER, stdin=True):
            os.close(fd)
    finally:
        process.close()


@pytest.mark.parametrize("room", range(NEEDED + 1))
def test_nothing_stays_open_whatever_could_not_be_opened(tmp_path: Path, room: int) -> None:
    before = descriptors()
    with room_for(room):
        if room == NEEDED:
            open_and_close(tmp_path / "p")
        else:
            with pytest.raises(OSError, match="Too many open files"):
                open_and_close(tmp_path / "p")
    assert descriptors() == before


class Flow:
    """A process that has written so much, and whoever reads along."""

    def __init__(self, directory: Path) -> None:
        self.process = HostedProcess("p", ProcessLog(directory), tty=False, timeout_s=None, now=0.0)
        self.now = 0.0

    def wrote(self, count: int) -> None:
        for start in range(0, count, 1 << 20):
            self.process.log.write(STDOUT, b"x" * min(1 << 20, count - start))

    def paused_for(self, seconds: float, **offsets: int) -> bool:
        """Let readers ask for these offsets, twice a second, for so long; tell whether the process is slowed down."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            for name, offset in offsets.items():
                self.process.saw(name, offset, self.now)
            self.process.decide_flow(self.now)
        return self.process.paused


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    made = Flow(tmp_path / "p")
    yield made
    made.process.close()


def test_process_is_slowed_down_for_a_reader_that_comes_on(flow: Flow) -> None:
    flow.wrote(WINDOW_BYTES)
    assert flow.paused_for(1, slow=0)
    for offset in range(1, 100):
        assert flow.paused_for(5, slow=offset) is (flow.process.log.total_bytes - offset >= WINDOW_BYTES)
        flow.wrote(1)
    assert not flow.paused_for(1, slow=WINDOW_BYTES)


def test_process_is_not_held_for_ever_by_who_asks_for_the_same_again_and_again(flow: Flow) -> None:
    assert not flow.paused_for(300, again=0)  # it may wait for the first byte as long as it likes
    flow.wrote(WINDOW_BYTES)
    assert flow.paused_for(STANDSTILL_S - 2, again=0)
    assert not flow.paused_for(4, again=0)
    flow.wrote(WINDOW_BYTES)
    assert not flow.paused_for(60, again=0)
    assert "again" in flow.process.readers  # somebody is there all the same
    assert flow.paused_for(1, again=1)  # and reads along again


def test_reader_that_left_holds_nobody_up(flow: Flow) -> None:
    flow.wrote(WINDOW_BYTES)
    assert flow.paused_for(1, gone=0)
    assert not flow.paused_for(READER_PATIENCE_S + 1)
    assert flow.process.readers == {}
