"""Files of a Sandbox, touched from inside it by a forked process with the Sandbox's own rights.

Whatever a path leads through, links and races included, it leads nowhere that the Sandbox's own processes could not go.
Bytes travel through a pipe to the server; what came of it, through another::

    get     result: {"type": "file", "size", "mode", "modTime"}, then the bytes on the data pipe
            result: {"type": "directory"}, then a JSON line for each entry on the data pipe
            with "within": [directories], only what is below one of them, wherever the path leads through
    put     bytes on the data pipe, then the result: {"size", "sha256"}
    delete  result: {}

A failure is ``{"error": word, "message": text}``. A file is put in place whole or not at all: the server that gives up
half-way closes the result pipe first, which is looked at before the file takes its place.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import select
import shutil
import signal
import stat
import time
from collections.abc import Iterator, Sequence
from typing import Any

BLOCK_BYTES = 256 * 1024
MAX_ENTRIES = 100_000
_WORDS = {
    errno.ENOENT: "NotFound",
    errno.ENOTDIR: "NotFound",
    errno.EISDIR: "Directory",
    errno.ENOTEMPTY: "NotEmpty",
    errno.EACCES: "Denied",
    errno.EPERM: "Denied",
    errno.EROFS: "Denied",
    errno.ENOSPC: "NoSpace",
    errno.EDQUOT: "NoSpace",
    errno.EFBIG: "TooLarge",
}


class Failed(Exception):
    """What was asked for can't be done; ``word`` says why to the server."""

    def __init__(self, word: str, message: str) -> None:
        super().__init__(message)
        self.word = word


def fork(request: dict[str, Any], data: int, result: int) -> int:
    """Do what ``request`` asks for in a process of its own and return its pid.

    Args:
        request: ``do`` is ``get``, ``put`` or ``delete``; the rest are that function's arguments.
        data: Pipe end for the file's bytes.
        result: Pipe end for what came of it.

    Raises:
        OSError: When no process can be started.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _keep_only(data, result)
        serve(request, data, result)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the last frame of a forked process: it must not go on as process one
        with contextlib.suppress(OSError):
            _say(result, {"error": "Other", "message": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(code)


def refuse(result: int, error: OSError) -> None:
    """Say that a request can't be carried out at all."""
    with contextlib.suppress(OSError):
        _say(result, {"error": "Other", "message": error.strerror or str(error)})


def serve(request: dict[str, Any], data: int, result: int) -> None:
    """Carry out one request on this process's own files."""
    try:
        match request["do"]:
            case "get":
                _get(request["path"], request.get("within") or (), data, result)
            case "put":
                _say(result, _put(request, data, result))
            case "delete":
                _delete(request["path"], recursive=bool(request.get("recursive")))
                _say(result, {})
            case other:
                raise Failed("Other", f"unknown request {other!r}")
    except Failed as failed:
        _say(result, {"error": failed.word, "message": str(failed)})
    except OSError as error:
        word = _WORDS.get(error.errno or 0, "Other")
        _say(result, {"error": word, "message": error.strerror or str(error)})


def _keep_only(*kept: int) -> None:
    low = 0
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 4096)


def _say(result: int, value: dict[str, Any]) -> None:
    os.write(result, json.dumps(value).encode() + b"\n")


def _get(path: str, within: Sequence[str], data: int, result: int) -> None:
    # O_NONBLOCK: opening a FIFO that nobody writes to must not hang.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if within and not _is_within(fd, within):
        raise Failed("Elsewhere", f"it is not below {' or '.join(within)}")
    info = os.fstat(fd)
    if stat.S_ISDIR(info.st_mode):
        lines = _entries(fd)
        _say(result, {"type": "directory"})
        os.close(result)
        for block in lines:
            _write_all(data, block)
        return
    if not stat.S_ISREG(info.st_mode):
        raise Failed("NotRegular", "it is a device, pipe or socket")
    _say(result, {"type": "file", "size": info.st_size, **_looks(info)})
    os.close(result)
    # Files of /proc have no size and content all the same.
    left = info.st_size or BLOCK_BYTES * 64
    while left and (block := os.read(fd, min(left, BLOCK_BYTES))):
        _write_all(data, block)
        left -= len(block)


def _is_within(fd: int, directories: Sequence[str]) -> bool:
    """Tell where an open file is, by what was opened: links have been followed."""
    found = os.readlink(f"/proc/self/fd/{fd}")
    return any(f"{found}/".startswith(f"{directory}/") for directory in directories)


def _looks(info: os.stat_result) -> dict[str, str]:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(0, min(info.st_mtime, 2**40))))
    return {"mode": f"{stat.S_IMODE(info.st_mode):04o}", "modTime": when}


def _entries(directory: int) -> Iterator[bytes]:
    with os.scandir(directory) as found:
        names: list[str] = []
        for entry in found:
            names.append(entry.name)
            if len(names) > MAX_ENTRIES:
                raise Failed("TooLarge", f"the directory holds more than {MAX_ENTRIES} entries")
    names.sort()
    return _described(directory, names)


def _described(directory: int, names: list[str]) -> Iterator[bytes]:
    for name in names:
        try:
            info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            continue  # Gone since it was listed.
        mode = info.st_mode
        kind = "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"
        entry: dict[str, Any] = {"name": name, "dir": stat.S_ISDIR(mode), "type": kind}
        entry |= {"size": info.st_size, **_looks(info)}
        if stat.S_ISLNK(mode):
            with contextlib.suppress(OSError):
                entry |= {"type": "symlink", "target": os.readlink(name, dir_fd=directory)}
                entry["toDirectory"] = stat.S_ISDIR(os.stat(name, dir_fd=directory).st_mode)
        yield json.dumps(entry).encode() + b"\n"


def _put(request: dict[str, Any], data: int, result: int) -> dict[str, Any]:
    path = request["path"]
    if path.endswith("/"):
        os.makedirs(path, exist_ok=True)
        return {"size": 0}
    # Through a link, as programs write: the link stays and its target changes.
    path = os.path.realpath(path)
    if os.path.isdir(path):
        raise Failed("Directory", "it is a directory")
    parent, name = os.path.split(path)
    os.makedirs(parent, exist_ok=True)
    directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    draft = f".nodus-{os.urandom(8).hex()}"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            size, sha256 = _receive(data, fd, int(request["limit"]))
            os.fchmod(fd, _mode_of(request.get("mode"), name, directory))
        finally:
            os.close(fd)
        if _given_up(result):
            raise Failed("GivenUp", "the upload ended early")
        expected = request.get("expectedSHA256")
        if expected and expected != sha256 and expected != _digest(name, directory):
            raise Failed("Mismatch", f"neither the bytes sent (sha256 {sha256}) nor the file as it is has {expected}")
        os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=directory)
        raise
    return {"size": size, "sha256": sha256}


def _receive(data: int, fd: int, limit: int) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    while block := os.read(data, BLOCK_BYTES):
        size += len(block)
        if size > limit:
            raise Failed("TooLarge", f"the file is over {limit} bytes")
        digest.update(block)
        _write_all(fd, block)
    return size, digest.hexdigest()


def _mode_of(mode: int | None, name: str, directory: int) -> int:
    """Return the permissions asked for, else those of the file as it is, else ``0644``."""
    if mode is not None:
        return mode
    try:
        return stat.S_IMODE(os.stat(name, dir_fd=directory).st_mode)
    except OSError:
        return 0o644


def _given_up(result: int) -> bool:
    poller = select.poll()
    poller.register(result, 0)
    return bool(poller.poll(0))


def _digest(name: str, directory: int) -> str | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if stat.S_ISREG(os.fstat(fd).st_mode) else None


def _delete(path: str, *, recursive: bool) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
    elif recursive:
        shutil.rmtree(path)
    else:
        os.rmdir(path)


def _write_all(fd: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(fd, view) :]
