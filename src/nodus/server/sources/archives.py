"""Unpack archives into a Volume: paths checked, sizes bounded while they unfold, links to files made copies."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

from nodus.server.sources.base import FILES_LIMIT, Collector, ImportFailed, chunks, shown
from nodus.server.tarfiles import BROKEN, open_tar

TAR_NAMES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_MEMBERS_LIMIT = 2 * FILES_LIMIT
"""Directories included, which a Volume has no use for, but which take time and memory."""
_LINK_LIMIT_BYTES = 4096
_BROKEN: tuple[type[Exception], ...] = (*BROKEN, zipfile.BadZipFile, NotImplementedError)


def is_archive(name: str) -> bool:
    """Tell by its name whether a file is an archive that can be unpacked."""
    return name.lower().endswith((*TAR_NAMES, ".zip"))


def unpack(archive: Path, name: str, into: Collector, label: str) -> None:
    """Unpack every file of an archive.

    Args:
        archive: The file.
        name: Its name, which tells its form.
        into: Where the files go.
        label: What messages call the source.

    Raises:
        ImportFailed: It is broken, encrypted, or holds what a Volume can't.
    """
    try:
        if name.lower().endswith(".zip"):
            _unzip(archive, into, label)
        else:
            _untar(archive, into, label)
    except _BROKEN as error:
        raise ImportFailed(
            "SourceArchiveBroken",
            f"{label} can't be unpacked: {str(error)[:200] or type(error).__name__}",
            "check the file, or keep it as it is with extract: None",
        ) from error


def _untar(archive: Path, into: Collector, label: str) -> None:
    with open_tar(archive) as tar:
        for number, member in enumerate(tar):
            if number >= _MEMBERS_LIMIT:
                raise ImportFailed("SourceTooLarge", f"{label} has more than {_MEMBERS_LIMIT} members")
            path = _clean(member.name)
            if member.isdir():
                continue
            if member.issym():
                into.link(path, member.linkname)
            elif member.islnk():
                into.link(path, "/".join([".."] * path.count("/") + [_clean(member.linkname)]))
            elif member.isreg():
                content = tar.extractfile(member)
                assert content is not None, "a regular member has content"
                into.add(path, chunks(content), executable=bool(member.mode & 0o100))
            else:
                raise _refused(label, path)


def _unzip(archive: Path, into: Collector, label: str) -> None:
    with zipfile.ZipFile(archive) as zipped:
        into.announce(sum(info.file_size for info in zipped.infolist()), len(zipped.infolist()))
        for info in zipped.infolist():
            mode = info.external_attr >> 16
            if info.is_dir():
                continue
            if info.flag_bits & 1:
                raise ImportFailed(
                    "SourceArchiveBroken", f"{label}: {shown(info.filename)} is encrypted", "publish it unencrypted"
                )
            path = _clean(info.filename)
            if stat.S_ISLNK(mode):
                if info.file_size > _LINK_LIMIT_BYTES:
                    raise _refused(label, path)
                into.link(path, zipped.read(info).decode("utf-8", "replace"))
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise _refused(label, path)
            with zipped.open(info) as content:
                into.add(path, chunks(content), executable=bool(mode & 0o100))


def _clean(name: str) -> str:
    """Archives often begin their paths with ``./``; nothing else is corrected."""
    while name.startswith("./"):
        name = name[2:]
    return name


def _refused(label: str, path: str) -> ImportFailed:
    return ImportFailed(
        "SourcePathRefused", f"{label}: {shown(path)} is neither a file nor a directory nor a link", "leave it out"
    )
