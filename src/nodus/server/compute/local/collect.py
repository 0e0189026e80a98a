"""Find a finished attempt's output files and put them into the blob store. Blocking file work; run it in a thread.

What a command wrote is untrusted: links are never followed, and only plain files count. The command and all that it
started are dead by then, so nothing changes under the walk.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from nodus.core.errors import NodusError
from nodus.server.compute.base import Collected, OutputRule
from nodus.server.compute.local.attemptdir import AttemptDir

MAX_FILES = 10_000
MAX_BYTES = 256 << 30
MAX_NAMES_BYTES = 8 << 20
"""Of all names and paths together: the list of outputs is read whole."""
MAX_DEPTH, MAX_PATH_BYTES = 100, 4096
"""Of directories below an output's path: a command can nest them deeper than any walk goes, and than any path is."""

PutFile = Callable[[Path], tuple[str, int]]
"""Stores a file's content; returns its sha256 (64 hex digits) and its size in bytes."""


class OutputsTooLarge(NodusError):
    """The command left more output than is collected."""

    reason, status = "OutputsTooLarge", 422


def collect(attempt: AttemptDir, rules: Sequence[OutputRule], put: PutFile) -> list[Collected]:
    """Store the files that the rules name, by name; a rule that finds nothing gives nothing.

    Raises:
        OutputsTooLarge: When there are more than 10,000 files or 256 GiB, or they are nested too deeply, or their
            paths take too much.
        OSError: When the blob store can't take them.
    """
    spec = attempt.read_spec() or {}
    found: dict[str, Collected] = {}
    total = names = 0
    for rule in rules:
        for name, inside, fd in _files(attempt, spec, rule):
            try:
                total += os.fstat(fd).st_size
                names += len(name) + len(inside)
                if names > MAX_NAMES_BYTES:
                    raise OutputsTooLarge(
                        f"the paths of the run's outputs take more than {MAX_NAMES_BYTES >> 20} MiB",
                        fix="Write fewer files below the output paths, or give them shorter names.",
                    )
                if len(found) >= MAX_FILES or total > MAX_BYTES:
                    raise OutputsTooLarge(
                        f"the run left more than {MAX_FILES} files or {MAX_BYTES >> 30} GiB of outputs",
                        fix="Write fewer or smaller files below the output paths.",
                    )
                sha256, size_bytes = put(Path(f"/proc/self/fd/{fd}"))
            finally:
                os.close(fd)
            found[name] = Collected(name, inside, sha256, size_bytes)
    return sorted(found.values())


def host_path(attempt: AttemptDir, spec: dict[str, Any], inside: str) -> tuple[Path, tuple[str, ...]] | None:
    """Return where a path inside the sandbox is on the host: a directory of ours, and the parts below it.

    None for paths that are not kept, such as those in ``/tmp``.
    """
    roots = {"/workspace": attempt.workspace, "/nodus/outputs": attempt.outputs}
    roots.update({m["path"]: Path(m["host"]) for m in spec.get("mounts", ()) if not m["readonly"]})
    path = PurePosixPath(os.path.normpath(inside))
    for root in sorted(roots, key=len, reverse=True):
        if path.is_relative_to(root):
            return roots[root], path.relative_to(root).parts
    return None


def _files(attempt: AttemptDir, spec: dict[str, Any], rule: OutputRule) -> Iterator[tuple[str, str, int]]:
    """Yield (name, path inside, open descriptor) of each file of a rule; the caller closes the descriptor."""
    place = host_path(attempt, spec, rule.path)
    if place is None:
        return
    root, parts = place
    fd = _open_beneath(root, parts)
    if fd is None:
        return
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        yield rule.name or PurePosixPath(rule.path).name, rule.path, fd
        return
    try:
        if stat.S_ISDIR(mode):
            yield from _walk(fd, rule)
    finally:
        os.close(fd)


def _walk(top: int, rule: OutputRule) -> Iterator[tuple[str, str, int]]:
    for directory, names, files, fd in os.fwalk(".", dir_fd=top, follow_symlinks=False):
        if directory.count("/") > MAX_DEPTH or len(os.fsencode(directory)) > MAX_PATH_BYTES - 256:
            raise OutputsTooLarge(
                f"the run nested directories more than {MAX_DEPTH} deep below {rule.path}",
                fix="Write files closer to the output path.",
            )
        names.sort()
        for name in sorted(files):
            below = shown_name(str(PurePosixPath(directory, name)))
            opened = _open(name, os.O_RDONLY, fd)
            if opened is None:
                continue
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                os.close(opened)
                continue
            yield str(PurePosixPath(rule.name, below)), str(PurePosixPath(rule.path, below)), opened


def shown_name(name: str) -> str:
    """Return a file's name as JSON and clients hold it; bytes that are no UTF-8 are shown escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _open_beneath(root: Path, parts: tuple[str, ...]) -> int | None:
    """Open a path below ``root`` without following a link in any of its parts."""
    fd = _open(str(root), os.O_RDONLY, None)
    for part in parts:
        if fd is None:
            return None
        below = _open(part, os.O_RDONLY, fd)
        os.close(fd)
        fd = below
    return fd


def _open(name: str, flags: int, dir_fd: int | None) -> int | None:
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to must not hang.
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        return None
