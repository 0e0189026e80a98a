"""An attempt's directory: what the server and the supervisor tell each other, and what outlives both.

Standard library only: the supervisor imports it. Layout of ``<data>/attempts/<attempt uid>/`` (mode 0700)::

    spec.json     what to run, written once by the server; 0600, it holds secrets and the attempt's token
    lock          held with flock by the supervisor for as long as it lives: the proof of life
    status.json   phase, process ids, exit; written by the holder of the lock only, atomically
    stop.json     a request to stop; written by the server, honoured also when the supervisor starts only later
    control.sock  tells the supervisor to look at stop.json now
    exec.sock     of a Sandbox: starts processes and touches files in it (see ``processhost``)
    run/api.sock  what the command sees as /run/nodus/api.sock; beside it events.sock
    progress.json what the command reported, newest of each; events.jsonl, all of it up to a bound (see ``telemetry``)
    checkpoint.json   the newest checkpoint that the command saved (see ``checkpoints``)
    log/          captured output (see ``logstore``)
    workspace/ outputs/ termination/   what the command writes
    processes/    of a Sandbox: output and status of each process (see ``processlog``)

An attempt's command is started at most once: the supervisor writes ``status.json`` before it starts the command, and a
supervisor that finds one never starts it again. A lock that is free beside a status that isn't final means that the
supervisor died: the attempt is lost, and its processes died with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nodus.server.files import replace_file

STARTING, RUNNING, EXITED = "Starting", "Running", "Exited"
EVENTS_SOCKET = "events.sock"
"""In the attempts directory: supervisors send an attempt's uid here, as a datagram, when its status changes."""


class AttemptDir:
    """Paths and files of one attempt.

    Args:
        path: The directory; it need not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.key = self.path.name
        self.spec = self.path / "spec.json"
        self.lock = self.path / "lock"
        self.status = self.path / "status.json"
        self.stop = self.path / "stop.json"
        self.log = self.path / "log"
        self.run = self.path / "run"
        self.workspace = self.path / "workspace"
        self.outputs = self.path / "outputs"
        self.termination = self.path / "termination"
        self.processes = self.path / "processes"
        self.exec_socket = self.path / "exec.sock"

    def read_spec(self) -> dict[str, Any] | None:
        """Return what to run, or None when it isn't written (whole) yet."""
        return read_json(self.spec)

    def read_status(self) -> dict[str, Any] | None:
        """Return what the supervisor last recorded, or None before it did."""
        return read_json(self.status)

    def read_stop(self) -> dict[str, Any] | None:
        """Return the request to stop, or None."""
        return read_json(self.stop)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Record a status durably. Only the holder of the lock may."""
        write_json(self.status, {**status, "updatedAt": time.time()})

    def take_lock(self, wait_s: float = 0.0) -> int | None:
        """Take the lock and return the descriptor that holds it, or None when another process has it.

        Args:
            wait_s: How long to go on trying; a probe by :meth:`alive` holds the lock for an instant.
        """
        fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except OSError:
                if time.monotonic() >= end:
                    os.close(fd)
                    return None
            time.sleep(0.01)

    def alive(self) -> bool:
        """Tell whether a supervisor holds the lock."""
        try:
            fd = os.open(self.lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except OSError:
            return True
        finally:
            os.close(fd)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None when there is no such file or it is no object."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file (0600) with JSON, so that it has the old or the new content whatever happens, and keeps it."""
    replace_file(path, json.dumps(value, separators=(",", ":")))


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a path of the same unix socket that fits ``sun_path`` (108 bytes), however deep its directory is."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)
