"""What a hosted process holds open: as much as it needs, and nothing once it is closed, however it came to that."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodus.server.compute.local.hostedprocess import HostedProcess
from nodus.server.compute.local.processlog import ProcessLog

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
