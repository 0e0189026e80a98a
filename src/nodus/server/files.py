"""Files that are replaced in one step, names that outlive a power failure, and waiting for descriptors.

Standard library only: supervisors and ``nodus status`` use it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import tempfile
from pathlib import Path


def replace_file(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a file (0600) that has the old or the new content whatever happens; its directory must be there.

    Args:
        path: the file.
        text: its content.
        durable: whether the new content must still be there after a power failure once this returned.

    Raises:
        OSError: the disk is full, or the directory can't be written.
    """
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_filesystem(path: Path) -> None:
    """Make everything written so far on a path's file system durable.

    For a tree of many files: one call, where syncing each by itself takes milliseconds a file.

    Raises:
        OSError: The disk is out of order.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", str(path))
    finally:
        os.close(handle)


def readable(timeout_s: float, *descriptors: int) -> bool:
    """Wait until one of the descriptors can be read or was closed at its other end; False when time ran out.

    Unlike ``select``, it takes descriptors of 1024 and above, which a server with many connections has.
    """
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))
