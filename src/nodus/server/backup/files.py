"""Copying files that live on meanwhile, each whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

_CHUNK_BYTES = 1 << 20


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
    """Copy a directory with owners, modes, times and links; return the bytes of its files.

    What vanishes meanwhile is left out, and so is what is neither a file, a directory nor a link.

    Raises:
        OSError: the target can't be written.
    """
    size = 0
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, info in _entries(source):
        here, there = source / name, target / name
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(info.st_mode):
                size += copy_tree(here, there)
            elif stat.S_ISLNK(info.st_mode):
                os.symlink(os.readlink(here), there)
            elif stat.S_ISREG(info.st_mode):
                shutil.copyfile(here, there, follow_symlinks=False)
                size += info.st_size
            else:
                continue
            _like(info, there)
    return size


def _entries(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            yield name, os.lstat(directory / name)


def _like(info: os.stat_result, path: Path) -> None:
    with contextlib.suppress(PermissionError):  # only root gives files away
        os.chown(path, info.st_uid, info.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(info.st_mode):
        os.chmod(path, stat.S_IMODE(info.st_mode))
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
