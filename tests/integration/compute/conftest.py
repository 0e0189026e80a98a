"""A local backend over a directory of the test's own, with real supervisors and real sandboxes."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodus.server.compute.base import MemberSpec, MemberState
from nodus.server.compute.local import logstore
from nodus.server.compute.local.attemptdir import AttemptDir
from nodus.server.compute.local.backend import LocalBackend
from nodus.server.compute.local.capacity import Machine
from nodus.testing.eventually import eventually

MIB = 1 << 20
MACHINE = Machine(cores=tuple(sorted(os.sched_getaffinity(0))), memory_bytes=8 << 30)


class Members:
    """A backend and what a test does with it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.blobs = data_dir / "test-blobs"
        self.blobs.mkdir(parents=True)
        self.backend = self.open()

    def open(self) -> LocalBackend:
        """Return another backend over the same directory, as a restarted server has it."""
        return LocalBackend(self.data_dir, self._blob_path, self._put_file, machine=MACHINE)

    def spec(self, *command: str, key: str = "attempt-1", **more: Any) -> MemberSpec:
        return MemberSpec(key, command, "nodus/base", token="the-token", **{"memory_bytes": 256 * MIB, **more})

    def start(self, *command: str, key: str = "attempt-1", **more: Any) -> AttemptDir:
        self.backend.start_sync(self.spec(*command, key=key, **more))
        return self.backend.directory(key)

    def run(self, *command: str, key: str = "attempt-1", **more: Any) -> MemberState:
        """Run a command to its end."""
        self.start(*command, key=key, **more)
        return self.ended(key)

    def script(self, text: str, **more: Any) -> MemberState:
        return self.run("sh", "-c", text, **more)

    def ended(self, key: str = "attempt-1", timeout_s: float = 30) -> MemberState:
        def state() -> MemberState | None:
            now = self.backend.read_state(key)
            return now if now.ended else None

        found = eventually(state, timeout_s=timeout_s)
        assert found is not None
        return found

    def running(self, key: str = "attempt-1") -> MemberState:
        eventually(lambda: self.backend.read_state(key).phase == "Running")
        return self.backend.read_state(key)

    def output(self, key: str = "attempt-1") -> str:
        pieces = logstore.read_pieces(self.backend.log_directory(key))
        return b"".join(piece.data for piece in pieces).decode()

    def supervisor(self, key: str = "attempt-1") -> int:
        """Return the pid of a running member's supervisor."""
        status = self.backend.directory(key).read_status()
        assert status is not None
        return int(status["supervisor"])

    def put_blob(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        (self.blobs / digest).write_bytes(data)
        return digest

    def _blob_path(self, digest: str) -> Path:
        return self.blobs / digest

    def _put_file(self, path: Path) -> tuple[str, int]:
        data = path.read_bytes()
        return self.put_blob(data), len(data)

    def close(self) -> None:
        attempts = self.data_dir / "attempts"
        for entry in attempts.iterdir() if attempts.is_dir() else ():
            if entry.is_dir():
                self.backend.stop_sync(entry.name, "Deleted", grace_s=0)
                eventually(lambda at=entry: not AttemptDir(at).alive())  # type: ignore[misc]
        self.backend._zygote.close()
        shutil.rmtree(self.data_dir)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    made = Members(tmp_path / "data")
    yield made
    made.close()


def processes_with(mark: str) -> list[int]:
    """Return the host's processes that have ``mark`` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(int(entry.name))
    return found
