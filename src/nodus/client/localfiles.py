"""Which files of this machine go into a Volume, and what is left out."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nodus.core.errors import NodusError

MOST_FILES = 100_000
"""Of one revision; a walk through links stops here."""
Skipped = Callable[[str], None]
"""Is told of each file that is left out: its path and why."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file, or bytes, and where it goes."""

    place: str
    """Path in the Volume."""
    source: Path | bytes
    mode: int = 0o644
    size: int = 0
    sha256: str = ""


def warn_skipped(what: str) -> None:
    """Issue a Python warning that a file was left out."""
    warnings.warn(f"left out {what}", stacklevel=3)


def files_of(
    source: str | os.PathLike[str],
    target: str,
    *,
    inside: bool = False,
    follow_symlinks: bool = False,
    skipped: Skipped | None = None,
) -> list[LocalFile]:
    """Return what a file or directory of this machine becomes in a Volume.

    A link to a file inside the directory becomes a copy. Other links, sockets, pipes and devices are left out.

    Args:
        source: A file, which goes to the target; or a directory, whose contents go below it.
        target: Path in the Volume; one that ends in a slash takes a file under its own name.
        inside: Whether a file goes below the target in any case.
        follow_symlinks: Whether to take what links lead to, wherever that is.
        skipped: Is told of what is left out; a Python warning when unset.

    Raises:
        NodusError: When there is nothing to take, or a name or a file can't be read.
    """
    start, base = Path(source), target.strip("/")
    if start.is_file():
        name = f"{base}/{start.name}" if inside or target.endswith("/") or not base else base
        return [_local(name.lstrip("/"), start)]
    if not start.is_dir():
        raise NodusError(f"{start} is neither a file nor a directory", fix="Check the path.")
    walk = _Walk(start, follow_symlinks, skipped or warn_skipped)
    found: list[LocalFile] = []
    for path in walk.files():
        if len(found) == MOST_FILES:
            raise NodusError(
                f"{start} holds more than {MOST_FILES} files", fix="Put an archive, or several volumes, of them."
            )
        found.append(_local(f"{base}/{path.relative_to(start).as_posix()}".lstrip("/"), path))
    if not found:
        fix = "Check the path; a volume keeps no empty directories."
        if walk.links:
            fix = "Everything in it is a link; --follow-symlinks (follow_symlinks=True) takes what they lead to."
        raise NodusError(f"{start} holds no files", fix=fix)
    return found


class _Walk:
    def __init__(self, start: Path, follow_symlinks: bool, skipped: Skipped) -> None:
        self._start, self._follow, self._skipped = start, follow_symlinks, skipped
        self._root = start.resolve()
        self.links = 0
        """How many links were left out."""

    def files(self) -> Iterator[Path]:
        """Yield every file that is taken, in the order of their names.

        Raises:
            NodusError: When a directory can't be read.
        """
        yield from self._below(self._start, (_identity(self._start.stat()),))

    def _below(self, directory: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
        try:
            with os.scandir(directory) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError as error:
            raise NodusError(f"{directory} can't be read: {error.strerror}", fix="Check its permissions.") from error
        for entry in entries:
            path = directory / entry.name
            if entry.is_symlink() and (why := self._why_not(path)) is not None:
                self.links += 1
                self._skip(path, why)
            elif path.is_dir():
                known = _identity(path.stat())
                if known in above:
                    self.links += 1
                    self._skip(path, "a symbolic link to a directory that it stands in")
                else:
                    yield from self._below(path, (*above, known))
            elif path.is_file():
                yield path
            else:
                self._skip(path, "neither a file nor a directory")

    def _why_not(self, link: Path) -> str | None:
        """Why a link is left out, or None when what it leads to is taken."""
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):  # nothing there, or links that lead to each other
            return "a symbolic link that leads nowhere"
        if self._follow:
            return None
        if not target.is_relative_to(self._root):
            return "a symbolic link that leads out of the directory"
        return "a symbolic link to a directory" if target.is_dir() else None

    def _skip(self, path: Path, why: str) -> None:
        self._skipped(f"{path.relative_to(self._start).as_posix()}: {why}")


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _local(place: str, path: Path) -> LocalFile:
    try:
        place.encode()
    except UnicodeEncodeError as error:
        raise NodusError(f"the name of {os.fsencode(path)!r} is not UTF-8", fix="Rename the file.") from error
    try:
        info = path.stat()
    except OSError as error:
        raise NodusError(f"{path} can't be read: {error.strerror}", fix="Check its permissions.") from error
    return LocalFile(place, path, 0o755 if stat.S_IMODE(info.st_mode) & 0o100 else 0o644, info.st_size)
