"""The data directory: its lock and server.json."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodus.server import datadir
from nodus.server.datadir import DataDirError, DataDirLock, Locked, ServerInfo

HOLD = """
import sys
from pathlib import Path
from nodus.server.datadir import DataDirLock

lock = DataDirLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock of ``tmp_path``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_lock_is_exclusive_and_names_its_holder(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    assert datadir.holder(tmp_path) == other.pid
    datadir.write_info(tmp_path, ServerInfo("http://127.0.0.1:1", other.pid, "2026-01-01T00:00:00Z"))
    with pytest.raises(Locked, match=r"http://127\.0\.0\.1:1") as caught:
        DataDirLock.acquire(tmp_path)
    assert caught.value.pid == other.pid


def test_lock_goes_with_its_process_whatever_children_live(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    other.kill()
    other.wait()
    lock = DataDirLock.acquire(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, close_fds=False
    )
    try:
        lock.release()
        assert datadir.holder(tmp_path) is None
        lock.release()
    finally:
        child.communicate()


def test_directory_is_made_private(tmp_path: Path) -> None:
    DataDirLock.acquire(tmp_path / "a" / "b").release()
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_directory_that_can_not_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="file") as caught:
        DataDirLock.acquire(tmp_path / "file" / "data")
    assert "\n" not in str(caught.value)


def test_info_is_replaced_whole_and_damage_reads_as_none(tmp_path: Path) -> None:
    assert datadir.read_info(tmp_path) is None
    info = ServerInfo("http://x", os.getpid(), "2026-01-01T00:00:00Z")
    datadir.write_info(tmp_path, info)
    assert datadir.read_info(tmp_path) == info
    assert [path.name for path in tmp_path.iterdir()] == ["server.json"]
    (tmp_path / "server.json").write_text('{"url": ')
    assert datadir.read_info(tmp_path) is None
