"""Source archives: the files of a directory as a tar.gz that is the same for the same files.

What git would ignore stays out (``.gitignore`` of the directory, of those below it and of those above it in the same
repository), and so does what ``.nodusignore`` names, in the same syntax; it has the last word. Version control, caches
of Python, virtual environments, the usual homes of keys, and a Nodus server's data directory and backups are never
packed, ``.env`` only when named by ``!.env``.
"""

from __future__ import annotations

import gzip
import heapq
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from nodus.core.errors import FileTooLarge, NodusError
from nodus.core.sizes import size_text

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LIMIT_BYTES = 500 * 1024**2
"""Largest archive that is sent unasked, compressed."""
UNPACKED_LIMIT_BYTES, FILE_LIMIT = 4 * 1024**3, 200_000
"""What a run unpacks at most."""
IGNORE_FILES = (".gitignore", ".nodusignore")
KEY_HOLDERS = (".nodus", ".ssh", ".gnupg", ".aws", ".netrc", ".git-credentials", ".pypirc")
"""Where clients keep keys: somebody who runs a command in their home directory doesn't mean to send these."""
ALWAYS_LEFT_OUT = frozenset({".git", ".hg", ".svn", ".jj", "__pycache__", ".DS_Store", *KEY_HOLDERS})
SERVER_MARKS = (("keys.json", "node"), ("nodus-backup",))
"""Files that a server's data directory, and a backup of one, have in common: both hold the master keys."""
LEFT_OUT_UNLESS_NAMED = frozenset({".env"})
"""Holds keys more often than not, but a program may need it: ``!.env`` in ``.nodusignore`` sends it."""
_LISTED = 5


@dataclass(slots=True)
class Archive:
    """A packed directory."""

    path: Path
    """The tar.gz; it goes when the context that made it ends."""
    files: int = 0
    size_bytes: int = 0
    """Of the archive."""
    unpacked_bytes: int = 0
    skipped: list[str] = field(default_factory=list)
    """What could not be packed, with the reason: links that lead out, sockets."""


@contextmanager
def packed(directory: str | os.PathLike[str], *, allow_large: bool = False) -> Iterator[Archive]:
    """Pack a directory, or one file, for the length of the context.

    Args:
        directory: What to pack; a file becomes an archive of it alone.
        allow_large: Whether the archive may be larger than 500 MiB.

    Raises:
        FileTooLarge: When there is too much; names the largest files.
        NodusError: When a file can't be read, or there is no such directory.
    """
    root = Path(directory).absolute()
    if not root.exists():
        raise NodusError(f"there is no {str(directory)!r} to pack", fix="Name the directory that holds your code.")
    if root.parent == root:
        raise NodusError(
            "the whole file system would be packed", fix="Change into your project, or use --no-source for none."
        )
    with tempfile.TemporaryDirectory(prefix="nodus-source-") as folder:
        archive = Archive(Path(folder, "source.tar.gz"))
        _write(root, archive, LIMIT_BYTES if not allow_large else None)
        archive.size_bytes = archive.path.stat().st_size
        yield archive


def _write(root: Path, archive: Archive, limit_bytes: int | None) -> None:
    largest: list[tuple[int, str]] = []
    with archive.path.open("wb") as raw:
        with (
            # Neither the time nor the file's name goes into the header: the same files give the same bytes.
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0, compresslevel=6) as packing,
            tarfile.open(fileobj=packing, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, path in _files(root, archive):
                _add(tar, name, path, archive)
                heapq.heappush(largest, (path.lstat().st_size, name))
                if len(largest) > _LISTED:
                    heapq.heappop(largest)
                _check(archive, largest, raw, limit_bytes)
        _check(archive, largest, raw, limit_bytes)


def _check(archive: Archive, largest: list[tuple[int, str]], raw: BinaryIO, limit_bytes: int | None) -> None:
    shown = ", ".join(f"{name} ({size_text(size)})" for size, name in sorted(largest, reverse=True))
    fix = f"Name what the run doesn't need in .nodusignore, or use a volume. The largest files are {shown}."
    if limit_bytes is not None and raw.tell() > limit_bytes:
        raise FileTooLarge(
            f"the source is larger than {size_text(limit_bytes)} compressed",
            fix=f"{fix} --allow-large-source sends it all the same.",
            details={"limitBytes": limit_bytes},
        )
    if archive.unpacked_bytes > UNPACKED_LIMIT_BYTES or archive.files > FILE_LIMIT:
        most = f"{size_text(UNPACKED_LIMIT_BYTES)} or {FILE_LIMIT} files"
        raise FileTooLarge(f"the source has more than {most}, which no run unpacks", fix=fix)


def _add(tar: tarfile.TarFile, name: str, path: Path, archive: Archive) -> None:
    """Add a file, directory or link without anything of this machine: no owner, no times, two modes."""
    info = tarfile.TarInfo(name)
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
            tar.addfile(info)
        elif stat.S_ISDIR(found.st_mode):
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        else:
            with path.open("rb") as file:
                info.size = os.fstat(file.fileno()).st_size
                info.mode = 0o755 if found.st_mode & 0o100 else 0o644
                tar.addfile(info, file)
            archive.unpacked_bytes += info.size
    except OSError as error:
        raise NodusError(
            f"{name} can't be packed: {error.strerror or 'it changed while it was read'}",
            fix="Make it readable, name it in .nodusignore, or use --no-source.",
        ) from error
    archive.files += 1


# Which files ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rules:
    """The ignore rules of one directory."""

    directory: Path
    spec: GitIgnoreSpec

    def says(self, path: Path, *, is_directory: bool) -> bool | None:
        """Whether the path is ignored; None where nothing here speaks of it."""
        relative = path.relative_to(self.directory).as_posix() + ("/" if is_directory else "")
        return self.spec.check_file(relative).include


def _files(root: Path, archive: Archive) -> Iterator[tuple[str, Path]]:
    """Yield what is packed, in an order that depends on the names alone."""
    if not root.is_dir():
        yield root.name, root
        return
    if _of_a_server(root):
        raise NodusError(
            f"{root} holds a Nodus server's keys: it is a data directory or a backup",
            fix="Change into your project, or use --no-source for none.",
        )
    yield from _below(root, root, _rules_above(root), archive)


def _below(root: Path, directory: Path, above: tuple[_Rules, ...], archive: Archive) -> Iterator[tuple[str, Path]]:
    rules = (*above, *_rules_of(directory))
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        shown = directory.relative_to(root).as_posix()
        raise NodusError(
            f"{shown} can't be read: {error.strerror}", fix="Make it readable, or name it in .nodusignore."
        ) from error
    for entry in entries:
        path = directory / entry.name
        is_directory = entry.is_dir(follow_symlinks=False)
        ignored = _ignored(rules, path, is_directory=is_directory)
        if entry.name in ALWAYS_LEFT_OUT or ignored:
            continue
        name = path.relative_to(root).as_posix()
        if ignored is None and entry.name in LEFT_OUT_UNLESS_NAMED:
            archive.skipped.append(f"{name}: may hold keys; write !{entry.name} into .nodusignore to send it")
            continue
        if entry.is_symlink():
            if (why := _leads_out(root, path)) is not None:
                archive.skipped.append(f"{name}: {why}")
                continue
        elif is_directory:
            if (path / "pyvenv.cfg").exists():
                continue  # a virtual environment holds absolute paths of this machine
            if _of_a_server(path):
                archive.skipped.append(f"{name}: holds a Nodus server's keys")
                continue
            yield name, path
            yield from _below(root, path, rules, archive)
            continue
        elif not entry.is_file(follow_symlinks=False):
            archive.skipped.append(f"{name}: neither a file nor a directory")
            continue
        yield name, path


def _of_a_server(directory: Path) -> bool:
    """Whether a directory is a server's data directory or a backup, whatever it is called."""
    return any(all((directory / mark).is_file() for mark in marks) for marks in SERVER_MARKS)


def _ignored(rules: tuple[_Rules, ...], path: Path, *, is_directory: bool) -> bool | None:
    """Whether a path is ignored; None where no rule speaks of it."""
    for given in reversed(rules):  # the rules nearest to a file have the last word
        verdict = given.says(path, is_directory=is_directory)
        if verdict is not None:
            return verdict
    return None


def _rules_of(directory: Path) -> tuple[_Rules, ...]:
    lines: list[str] = []
    for name in IGNORE_FILES:
        try:
            lines += (directory / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
    if not lines:
        return ()
    from pathspec import GitIgnoreSpec

    return (_Rules(directory, GitIgnoreSpec.from_lines(lines)),)


def _rules_above(root: Path) -> tuple[_Rules, ...]:
    """Return the rules of the directories above, where these are of the same git repository."""
    above: list[Path] = []
    for directory in (root, *root.parents):
        if directory != root:
            above.insert(0, directory)
        if (directory / ".git").exists():
            return tuple(rules for parent in above for rules in _rules_of(parent))
    return ()


def _leads_out(root: Path, link: Path) -> str | None:
    """Why a symbolic link is left out, or None when its target is packed too."""
    target = PurePosixPath(os.readlink(link))
    if target.is_absolute():
        return "a link to an absolute path"
    where = os.path.normpath(PurePosixPath(link.relative_to(root).parent.as_posix(), target))
    return "a link that leads out of the directory" if where.startswith("..") else None
