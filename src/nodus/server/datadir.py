"""The data directory of a server: its exclusive lock and ``server.json``.

Used by the server (which takes the lock) and by ``nodus status`` and ``nodus down`` (which ask who holds it). Standard
library only: both commands must start quickly.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodus.server.files import replace_file

LOCK_FILE = "server.lock"
SERVER_FILE = "server.json"
LOG_FILE = "server.log"
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = "hhqqi4x"


class DataDirError(RuntimeError):
    """The data directory can't be used; the message is one line saying why and what to do."""


class Locked(DataDirError):
    """Another server runs on the directory.

    Args:
        message: one line.
        pid: process id of that server, or ``None`` when it can't be told (another PID namespace).
    """

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What ``server.json`` says of the last server of a data directory."""

    url: str
    """Origin to reach it at from this machine."""
    pid: int
    started_at: str
    """RFC 3339, UTC."""


class DataDirLock:
    """The exclusive lock of a data directory, held until :meth:`release` or the end of the process.

    A POSIX record lock: it belongs to this process alone, so no forked or exec'd child can keep it alive. The price is
    that this process must not open and close the file again while it holds the lock.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def acquire(cls, data_dir: Path) -> DataDirLock:
        """Create the directory when needed (0700) and lock it.

        Raises:
            Locked: another process holds the lock.
            DataDirError: the directory can't be created or written.
        """
        try:
            data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataDirError(f"cannot use the data directory {data_dir}: {_reason(error)}") from error
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = holder(data_dir)
            os.close(fd)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise DataDirError(f"cannot lock the data directory {data_dir}: {_reason(error)}") from error
            raise Locked(_already(data_dir, pid), pid) from None
        return cls(fd)

    def release(self) -> None:
        """Give the directory up; further calls do nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def holder(data_dir: Path) -> int | None:
    """The pid of the server that runs on ``data_dir``, or ``None`` when none does.

    Never call it in the process that holds the lock: closing the file would drop it.
    """
    try:
        fd = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        ask = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, ask))
    finally:
        os.close(fd)
    return None if kind == fcntl.F_UNLCK else int(pid)


def read_info(data_dir: Path) -> ServerInfo | None:
    """What ``server.json`` says, or ``None`` when there is none that can be read."""
    try:
        found: dict[str, Any] = json.loads((data_dir / SERVER_FILE).read_text(encoding="utf-8"))
        return ServerInfo(str(found["url"]), int(found["pid"]), str(found["startedAt"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_info(data_dir: Path, info: ServerInfo) -> None:
    """Replace ``server.json`` in one step; supervisors re-read it at any time.

    Raises:
        OSError: the disk is full or the directory is gone.
    """
    text = json.dumps({"url": info.url, "pid": info.pid, "startedAt": info.started_at})
    # Not durable: after a power failure no server runs, and the next one writes its own.
    replace_file(data_dir / SERVER_FILE, text, durable=False)


def _already(data_dir: Path, pid: int | None) -> str:
    info = read_info(data_dir)
    where = f" at {info.url}" if info else ""
    who = f" (pid {pid})" if pid else ""
    return f"Nodus already runs on {data_dir}{where}{who}; stop it with `nodus down` or use another --data-dir"


def _reason(error: OSError) -> str:
    return "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
