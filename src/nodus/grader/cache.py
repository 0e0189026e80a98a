"""The data that a build fetched, where the environment expects it: a directory it may write to, whose files it can't.

Libraries that read a cache want to lock it and to note that they were there. So the directories of the cache are made
anew, in memory, and its files are links to the build's own, which are read-only. What a completion changes of it is
undone after the completion: a change of a directory, or of a file that was written while the environment was loaded,
shows in its change time, which no program can set.
"""

from __future__ import annotations

import os
import shutil
import time

LOCKS = ".lock"
_CLOCK_REALTIME_COARSE = 5


class Mirror:
    """A copy of a tree of directories with links to its files.

    Args:
        source: The build's cache.
        target: An empty directory that may be written to.
    """

    def __init__(self, source: str, target: str) -> None:
        self._source = source
        self._target = target
        self._seen: dict[str, int] = {}
        self._make()

    def keep(self) -> bool:
        """Undo what was changed since it was made or :meth:`settle` was called; False where that failed."""
        try:
            if self._current() == self._seen:
                return True
            for entry in list(os.scandir(self._target)):
                os.chmod(entry.path, 0o700) if entry.is_dir(follow_symlinks=False) else None
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
            self._make()
        except (OSError, RecursionError):
            return False
        return True

    def settle(self) -> None:
        """Take it as it is now for unchanged: loading the environment leaves locks and notes, which do no harm."""
        self._seen = self._current()
        newest = max(self._seen.values(), default=0)
        # The kernel's stamps go by this clock: a change within the same tick would have the same stamp.
        while time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) <= newest:
            time.sleep(0.0005)

    def _make(self) -> None:
        for directory, names, files in os.walk(self._source):
            inside = os.path.join(self._target, os.path.relpath(directory, self._source))
            os.makedirs(inside, exist_ok=True)
            for name in (*names, *files):
                path = os.path.join(directory, name)
                if os.path.islink(path):
                    os.symlink(os.readlink(path), os.path.join(inside, name))
                elif name in files and not name.endswith(LOCKS):
                    os.symlink(path, os.path.join(inside, name))
        self.settle()

    def _current(self) -> dict[str, int]:
        found = {}
        left = [self._target]
        while left:
            directory = left.pop()
            found[directory] = os.stat(directory).st_ctime_ns
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    elif not entry.is_symlink():
                        found[entry.path] = entry.stat(follow_symlinks=False).st_ctime_ns
        return found


_kept: Mirror | None = None


def use(source: str, target: str) -> Mirror:
    """Make the mirror of this process, which :func:`keep` looks after."""
    global _kept
    _kept = Mirror(source, target)
    return _kept


def settle() -> None:
    """Take this process's mirror as it is now for unchanged."""
    if _kept is not None:
        _kept.settle()


def keep() -> bool:
    """Undo what a completion changed of this process's mirror; False where that failed."""
    return _kept is None or _kept.keep()
