"""Copying files that live on meanwhile, each whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

DEEPEST = 250
_CHUNK_BYTES = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.EACCES, errno.EPERM}
"""What is the matter with a file that vanished, became another kind of file, or can't be read."""


def copy_hashed(source: Path, target: Path, mode: int = 0o600) -> str:
    """Copy a file, on the disk once this returns, and return the sha256 of what was copied.

    Args:
        source: a file.
        target: appears whole, or not at all.
        mode: of the copy.

    Raises:
        OSError: one can't be read or the other not be written.
    """
    hashed = hashlib.sha256()
    draft = target.with_name(f".{target.name}.draft")
    try:
        with source.open("rb") as reading, draft.open("wb") as writing:
            os.fchmod(writing.fileno(), mode)
            while chunk := reading.read(_CHUNK_BYTES):
                hashed.update(chunk)
                writing.write(chunk)
            writing.flush()
            os.fsync(writing.fileno())
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return hashed.hexdigest()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_tree(source: Path, target: Path) -> int:
    """Copy a directory with owners, modes, times, links and holes; return how many bytes that were.

    Programs that nobody trusts may be changing it: no link in it is followed. What vanishes meanwhile or can't be read
    is left out, and so is what is neither a file, a directory nor a link, or is below :data:`DEEPEST` directories.

    Raises:
        OSError: the target can't be written.
    """
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        here = os.open(source, _DIRECTORY & ~os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    with _closing(here), _closing(os.open(target, _DIRECTORY)) as there:
        return _copy_entries(here, there, DEEPEST)


def _copy_entries(here: int, there: int, levels: int) -> int:
    return sum(_copy_entry(name, here, there, levels) for name in sorted(os.listdir(here)))


def _copy_entry(name: str, here: int, there: int, levels: int) -> int:
    info = _unless_gone(os.lstat, name, dir_fd=here)
    if info is None:
        return 0
    if stat.S_ISLNK(info.st_mode):
        link = _unless_gone(os.readlink, name, dir_fd=here)
        if link is not None:
            os.symlink(link, name, dir_fd=there)
            with contextlib.suppress(PermissionError):
                os.chown(name, info.st_uid, info.st_gid, dir_fd=there, follow_symlinks=False)
        return 0
    if not stat.S_ISREG(info.st_mode) and not (stat.S_ISDIR(info.st_mode) and levels):
        return 0
    opened = _unless_gone(os.open, name, _DIRECTORY if stat.S_ISDIR(info.st_mode) else _FILE, dir_fd=here)
    if opened is None:
        return 0
    with _closing(opened):
        # What was opened may be another file than the one that was looked at.
        info = os.fstat(opened)
        if stat.S_ISDIR(info.st_mode):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=there)
            with _closing(os.open(name, _DIRECTORY, dir_fd=there)) as made:
                size = _copy_entries(opened, made, levels - 1)
                _like(info, made)
            return size
        if not stat.S_ISREG(info.st_mode):
            return 0
        with _closing(os.open(name, _NEW, 0o600, dir_fd=there)) as made:
            size = _copy_content(opened, made, info.st_size)
            _like(info, made)
        return size


def _copy_content(here: int, there: int, size: int) -> int:
    """Copy what is no hole of the first bytes of a file, however it changes meanwhile; return how much that was."""
    copied = at = 0
    while at < size:
        try:
            at = os.lseek(here, at, os.SEEK_DATA)
            end = min(os.lseek(here, at, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # Only a hole is left.
            raise
        os.lseek(there, at, os.SEEK_SET)
        while at < end and (sent := os.sendfile(there, here, at, end - at)):
            at += sent
            copied += sent
        if at < end:
            break
    os.ftruncate(there, size)
    return copied


def _unless_gone(call: Callable[..., T], *args: Any, dir_fd: int) -> T | None:
    try:
        return call(*args, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return None


def _like(info: os.stat_result, fd: int) -> None:
    with contextlib.suppress(PermissionError):  # only root gives files away
        os.fchown(fd, info.st_uid, info.st_gid)
    os.fchmod(fd, stat.S_IMODE(info.st_mode))
    os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns))


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
