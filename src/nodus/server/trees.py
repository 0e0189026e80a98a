"""Trees of directories that strangers' code has made: looked through and removed whatever shape they have.

The standard library's walk and removal recurse: a few thousand nested directories end them with a RecursionError.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

MAX_DEPTH = 200
"""Nested directories; nothing that works has as many."""
MAX_PATH_BYTES = 2500
"""Length of a path below its root, so that it stays usable wherever the tree is moved to or mounted."""
_GONE = (errno.ENOENT, errno.ENOTDIR)


class TreeRefused(Exception):
    """A tree breaks a bound; the message says which one, about what made it: ``it made more than ...``."""


def entries(root: Path, most: int | None = None) -> Iterator[os.DirEntry[str]]:
    """Yield everything below a directory, each directory before what is in it; links are not followed.

    Args:
        root: The directory; one that is not there holds nothing.
        most: How many entries there may be; None for any number.

    Raises:
        TreeRefused: There are more, they are nested deeper than ``MAX_DEPTH``, a path is longer than
            ``MAX_PATH_BYTES``, or a directory can't be looked into.
    """
    left = [(os.fspath(root), 0)]
    start, count = len(os.fsencode(root)) + 1, 0
    while left:
        directory, depth = left.pop()
        for entry in _listed(directory, None if most is None else most - count + 1):
            count += 1
            if most is not None and count > most:
                raise TreeRefused(f"it made more than {most} files and directories")
            if len(os.fsencode(entry.path)) - start > MAX_PATH_BYTES:
                raise TreeRefused(f"it made paths of more than {MAX_PATH_BYTES} bytes")
            if entry.is_dir(follow_symlinks=False):
                if depth >= MAX_DEPTH:
                    raise TreeRefused(f"it nested directories more than {MAX_DEPTH} deep")
                left.append((entry.path, depth + 1))
            yield entry


def _listed(directory: str, most: int | None) -> list[os.DirEntry[str]]:
    """Return what is in a directory, no more than ``most``; nothing where it is gone meanwhile."""
    try:
        with os.scandir(directory) as found:
            return list(itertools.islice(found, most))
    except OSError as error:
        if error.errno in _GONE:
            return []
        raise TreeRefused(f"it made a directory that can't be looked into ({error.strerror})") from error


def remove_tree(path: Path) -> bool:
    """Remove a directory and all that is in it, of any depth, without following links; never raises.

    Returns:
        Whether it is gone. What could not be removed stays, and the log says so.
    """
    if not os.path.lexists(path):
        return True
    try:
        # rm works by descriptors of directories: neither depth nor the length of paths is a bound.
        _quietly("rm", "-rf", "--", str(path))
        if os.path.lexists(path):  # perhaps for directories that their owner may not write to
            _quietly("chmod", "-R", "u+rwX", "--", str(path))
            _quietly("rm", "-rf", "--", str(path))
    except OSError:  # no such program
        with contextlib.suppress(OSError, RecursionError):
            shutil.rmtree(path)
    gone = not os.path.lexists(path)
    if not gone:
        log.warning("%s could not be removed; remove it by hand", path)
    return gone


def _quietly(*argv: str) -> None:
    nothing = subprocess.DEVNULL
    subprocess.run(argv, stdin=nothing, stdout=nothing, stderr=nothing, check=False)
