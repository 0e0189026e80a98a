"""What a Job writes to a Volume: a directory of its own, compared with where it began, and merged into the newest.

A working copy lives as long as its Job. Beside it stands its *base*: the files it had when it last agreed with the
Volume, which is the revision that it was made from until the run commits or reloads from inside. Blocking file work.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nodus.core.errors import Invalid
from nodus.server.compute.local.sandbox import host_owner
from nodus.server.files import replace_file
from nodus.server.store.volumes import FileEntry
from nodus.server.uploads import path_problem

if TYPE_CHECKING:
    from nodus.server.store.blobs import BlobStore

EXECUTABLE = 0o100
DEEPEST = 250
"""Directories in each other; a command can nest more than any walk goes through."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make(target: Path, source: Path | None) -> Path:
    """Return a directory that the sandbox's user may write, made from ``source`` where it is not there yet.

    Indexes of a Job that start at the same time share one copy: whoever comes second waits for the first.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(target.parent):
        if not target.is_dir():
            _make(target, source)
    return target


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep others out for the block; the lock goes with the process, however that ends."""
    fd = os.open(directory, _DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _make(target: Path, source: Path | None) -> None:
    draft = target.with_name(f".{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # of a server that was killed
    if source is None:
        draft.mkdir()
    else:
        shutil.copytree(source, draft, symlinks=True, copy_function=shutil.copy)
    give(draft)
    for directory, names, files in os.walk(draft):
        for name in (*names, *files):
            give(Path(directory, name))
    os.rename(draft, target)


def give(path: Path) -> None:
    """Let the sandbox's user own a file or directory."""
    os.chown(path, *host_owner(), follow_symlinks=False)
    if not path.is_symlink():
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & EXECUTABLE else 0o644)


def tree(directory: Path, blobs: BlobStore) -> Iterator[FileEntry]:
    """Store the plain files below a directory as blobs; links and special files are left out.

    Raises:
        Invalid: A file has a name that none in a Volume can have, or directories are nested deeper than a path is long.
    """
    for parent, names, files, fd in os.fwalk(directory, follow_symlinks=False):
        if Path(parent).relative_to(directory).as_posix().count("/") > DEEPEST:
            raise Invalid(f"the run nested directories more than {DEEPEST} deep in a volume", fix="Nest them less.")
        names.sort()
        for name in sorted(files):
            try:
                opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
            except OSError:
                continue
            try:
                info = os.fstat(opened)
                if stat.S_ISREG(info.st_mode):
                    path = Path(parent, name).relative_to(directory).as_posix()
                    _check_name(path)
                    sha256 = blobs.put_file(Path(f"/proc/self/fd/{opened}"))
                    # The run may be writing to it: its size is that of what was stored.
                    size_bytes = blobs.path(sha256).stat().st_size
                    yield FileEntry(path, sha256, size_bytes, 0o755 if info.st_mode & EXECUTABLE else 0o644)
            finally:
                os.close(opened)


def _check_name(path: str) -> None:
    """Refuse what an upload would be refused for."""
    shown = os.fsencode(path).decode("utf-8", "backslashreplace")
    if (why := path_problem(shown) if shown == path else "it is not UTF-8") is not None:
        raise Invalid(f"{shown[:120]!r} can't be the path of a file in a volume: {why}", fix="Give it another name.")


def merge(base: Sequence[FileEntry], changed: Sequence[FileEntry], newest: Sequence[FileEntry]) -> list[FileEntry]:
    """Return ``newest`` with what ``changed`` has done to ``base``: files written, and files removed."""
    before = {entry.path: entry for entry in base}
    now = {entry.path: entry for entry in changed}
    kept = {entry.path: entry for entry in newest if entry.path not in before or entry.path in now}
    written = {path: entry for path, entry in now.items() if not same(before.get(path), entry)}
    for path in written:
        # A file where a directory was, or the other way round: what was written wins.
        for other in [name for name in kept if name.startswith(f"{path}/") or path.startswith(f"{name}/")]:
            del kept[other]
    return list({**kept, **written}.values())


def same(one: FileEntry | None, other: FileEntry) -> bool:
    """Whether two entries of a path are the same file; of the mode, only whether it can be executed is kept."""
    return one is not None and one.sha256 == other.sha256 and not (one.mode ^ other.mode) & EXECUTABLE


def bring_up(directory: Path, now: Sequence[FileEntry], wanted: Sequence[FileEntry], blobs: BlobStore) -> None:
    """Make a working copy hold other files; each is replaced whole.

    A command is using the copy and may do with it what it likes meanwhile, so no name in it is trusted: every step goes
    by a descriptor, and links are never followed.

    Args:
        directory: The working copy.
        now: What it holds.
        wanted: What it shall hold.
        blobs: Where the contents are.

    Raises:
        OSError: When the command has put something in the way.
    """
    there, goal = {entry.path: entry for entry in now}, {entry.path: entry for entry in wanted}
    for path in there.keys() - goal.keys():
        with contextlib.suppress(FileNotFoundError), _parent(directory, path, make=False) as (parent, name):
            os.unlink(name, dir_fd=parent)
    for path in sorted(goal):
        if not same(there.get(path), goal[path]):
            with _parent(directory, path, make=True) as (parent, name):
                _write(parent, name, blobs.path(goal[path].sha256), bool(goal[path].mode & EXECUTABLE))


@contextlib.contextmanager
def _parent(root: Path, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the directory that a path is in, and its name there."""
    *parts, name = path.split("/")
    at = os.open(root, _DIRECTORY)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=at)
                    os.chown(part, *host_owner(), dir_fd=at, follow_symlinks=False)
            inner = os.open(part, _DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
        yield at, name
    finally:
        os.close(at)


def _write(parent: int, name: str, source: Path, executable: bool) -> None:
    draft = f".nodus-{secrets.token_hex(8)}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    try:
        with os.fdopen(fd, "wb") as file, source.open("rb") as content:
            shutil.copyfileobj(content, file, 1 << 20)
            os.fchmod(file.fileno(), 0o755 if executable else 0o644)
            os.fchown(file.fileno(), *host_owner())
        os.replace(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=parent)
        raise


def note_base(directory: Path, base: Sequence[FileEntry]) -> None:
    """Keep what a working copy agreed with, so that the next merge knows what it changed since."""
    replace_file(_base_file(directory), json.dumps([list(entry) for entry in base]))


def base_of(directory: Path) -> list[FileEntry] | None:
    """Return what a working copy last agreed with; None when that is the revision it was made from."""
    try:
        return [FileEntry(*entry) for entry in json.loads(_base_file(directory).read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return None


def _base_file(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.base.json")
