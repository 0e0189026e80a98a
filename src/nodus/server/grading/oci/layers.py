"""Unpacks the layers of a stranger's image into a directory, of which nothing may lead out.

The rules are the OCI image specification's (``layer.md``) with these differences: ownership, setuid bits, devices,
pipes and extended attributes are left out, and everything is made readable for all, since one user alone will see it.
Symbolic links are kept as they are, and followed inside the directory only, as a process with that root would.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
import stat
import tarfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard

from nodus.core.errors import NodusError
from nodus.server.grading.verdicts import storable
from nodus.server.tarfiles import BROKEN, BoundedTarInfo

MIB = 1 << 20
_CHUNK = 1 << 20
_READ_BYTES = 256 * 1024
_MAX_LINKS = 40  # as the kernel
_MAX_DEPTH = 128
_MAX_PATH_BYTES = 2048
_MAX_NAME_BYTES = 255
_KNOWN_DIRECTORIES = 4096
_MESSAGE_CHARS = 4000
_MAX_TIME = (1 << 32) - 1
_ZSTD_WINDOW_BYTES = 128 * MIB
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_UNREADABLE: tuple[type[Exception], ...] = (*BROKEN, zstandard.ZstdError, UnicodeError, RecursionError)
_WHITEOUT, _META, _OPAQUE = ".wh.", ".wh..wh.", ".wh..wh..opq"
_BAD_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EMLINK, errno.EINVAL, errno.EILSEQ, errno.ENOTDIR, errno.EISDIR)


class BadImage(NodusError):
    """An image that is not run; the message says what is wrong with it."""

    reason, status = "BadImage", 422

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(storable(message, _MESSAGE_CHARS), fix=fix)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one image.

    Attributes:
        bytes: Of all files, unpacked, those that later layers delete included.
        files: Of all layers together.
        layers: How many.
        packed_bytes: Of all layers as the registry has them.
        pull_s: Seconds that the pull may take.
        unpack_s: Seconds that unpacking may take.
        path_bytes: Of the paths of one layer together, their directories' included: they are held while it is applied.
    """

    bytes: int = 16 << 30
    files: int = 500_000
    layers: int = 127
    packed_bytes: int = 8 << 30
    pull_s: float = 1800.0
    unpack_s: float = 900.0
    path_bytes: int = 64 * MIB


class RootDirectory:
    """A directory that layers are applied to, the lowest first.

    Args:
        root: The directory; empty, and nobody else's.
        limits: Of all layers together.
        most_bytes: Of all files, where that is less than the limits say.
        check: Called now and then; what it raises ends the unpacking.

    Example:
        >>> tree = RootDirectory(staging, Limits())
        >>> for blob in blobs:
        ...     tree.apply(blob)
    """

    def __init__(
        self,
        root: Path,
        limits: Limits,
        most_bytes: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = str(root)
        self._limits = limits
        self._most_bytes = limits.bytes if most_bytes is None else min(most_bytes, limits.bytes)
        self._deadline = time.monotonic() + limits.unpack_s
        self._check = check
        self._known: dict[tuple[str, ...], str] = {(): self._root}
        self._made: set[str] = set()
        self._path_bytes = 0
        self.bytes = 0
        self.files = 0

    def apply(self, blob: Path) -> None:
        """Apply a layer: a tar archive, as it is or packed with gzip or zstd.

        Raises:
            BadImage: For what is none, leads out of the root, or is too much.
            OSError: For the disk's own troubles.
        """
        self._made = set()  # whiteouts are about the layers below, never about their own
        self._path_bytes = 0
        try:
            with blob.open("rb") as packed:
                most = self._most_bytes + self._limits.files * 2048  # with headers and padding
                stream = _Bounded(_unpacked(packed), most, self._tick)
                with tarfile.open(
                    fileobj=stream,
                    mode="r|",
                    bufsize=_READ_BYTES,
                    tarinfo=BoundedTarInfo,
                    encoding="utf-8",
                    errors="surrogateescape",
                ) as archive:
                    for member in archive:
                        self._apply(archive, member)
                        archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
        except BadImage:
            raise
        except OSError as error:
            if isinstance(error, BROKEN) and error.errno is None:
                raise BadImage(f"a layer is no readable archive: {error}") from None  # gzip's complaints
            if error.errno not in _BAD_PATHS:
                raise
            raise BadImage(f"a layer holds a path that can't be made: {error.strerror}") from None
        except _UNREADABLE as error:
            raise BadImage(f"a layer is no readable archive: {error}") from None

    def find(self, path: str) -> str | None:
        """Return where on the host a path inside is, its links followed inside; None when nothing is there."""
        return self._resolve(_parts(path))

    def append(self, path: str, text: str, unless: str) -> None:
        """Add text to a small file inside, made if missing; not where it holds ``unless``, or is no plain file.

        Raises:
            BadImage: What it would be in is no directory.
        """
        parts = _parts(path)
        parent = self._resolve(parts[:-1])
        if parent is not None and not stat.S_ISDIR(os.lstat(parent).st_mode):
            raise BadImage(f"its {'/' + '/'.join(parts[:-1])} is no directory")
        place = f"{parent}/{parts[-1]}"
        found = None if parent is None else _lstat(place)
        if parent is None or (found is not None and not (stat.S_ISREG(found.st_mode) and found.st_size < MIB)):
            return
        before = b"" if found is None else Path(place).read_bytes()
        if unless.encode() in before:
            return
        self._remove(place)  # it may have another name, which stays what it is
        gap = "" if not before or before.endswith(b"\n") else "\n"
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            file.write(before + (gap + text).encode())

    def _tick(self) -> None:
        self._check()
        if time.monotonic() > self._deadline:
            raise BadImage("it takes too long to unpack")

    def _apply(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self.files += 1
        if self.files > self._limits.files:
            raise BadImage(f"it has more than {self._limits.files} files")
        parts = _parts(member.name)
        if not parts:
            return  # the root itself
        parent, name = self._directory(parts[:-1]), parts[-1]
        if name.startswith(_WHITEOUT):
            self._white_out(parent, name)
        elif member.isdir():
            self._make_directory(f"{parent}/{name}")
        elif member.isreg():
            self._make_file(archive, member, f"{parent}/{name}")
        elif member.issym():
            self._make_symlink(member, f"{parent}/{name}")
        elif member.islnk():
            self._make_link(member, f"{parent}/{name}")
        # devices and pipes are left out: a sandbox has its own /dev

    def _white_out(self, parent: str, name: str) -> None:
        if name == _OPAQUE:
            self._remove_below(parent)
        elif not name.startswith(_META):
            hidden = name.removeprefix(_WHITEOUT)
            if hidden in ("", ".", ".."):
                raise BadImage(f"a layer deletes {hidden!r}")
            place = f"{parent}/{hidden}"
            if place not in self._made:
                self._remove(place)
            elif stat.S_ISDIR(os.lstat(place).st_mode):
                self._remove_below(place)

    def _make_directory(self, place: str) -> None:
        if (found := _lstat(place)) is None or not stat.S_ISDIR(found.st_mode):
            self._remove(place)
            os.mkdir(place, 0o755)
        self._note(place)

    def _make_file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, place: str) -> None:
        self.bytes += member.size
        if self.bytes > self._most_bytes:
            raise BadImage(f"it unpacks to more than {self._most_bytes // MIB} MiB")
        source = archive.extractfile(member)
        if source is None:
            raise BadImage(f"{member.name!r} in a layer is no plain file")
        self._remove(place)
        mode = 0o755 if member.mode & 0o111 else 0o644
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with source, open(descriptor, "wb") as target:
            os.fchmod(descriptor, mode)  # whatever the umask is
            shutil.copyfileobj(source, target, _CHUNK)
            target.flush()
            if target.tell() != member.size:
                raise BadImage(f"a layer ends in the middle of {member.name!r}")
        # Python takes a compiled module only while its source has the time that it was compiled from
        when = min(max(int(member.mtime), 0), _MAX_TIME)
        os.utime(place, (when, when))
        self._note(place)

    def _make_symlink(self, member: tarfile.TarInfo, place: str) -> None:
        if not member.linkname:
            raise BadImage(f"{member.name!r} in a layer is a link to nothing")
        self._remove(place)
        os.symlink(member.linkname, place)
        self._note(place)
        self._forget()

    def _make_link(self, member: tarfile.TarInfo, place: str) -> None:
        parts = _parts(member.linkname)
        parent = self._resolve(parts[:-1]) if parts else None
        found = None if parent is None else _lstat(f"{parent}/{parts[-1]}")
        if found is None or not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            raise BadImage(
                f"{member.name!r} in a layer is a link to {member.linkname!r}, which is no file of the image"
            )
        target = f"{parent}/{parts[-1]}"
        if target == place:
            return
        self._remove(place)
        os.link(target, place, follow_symlinks=False)
        self._note(place)
        self._forget()

    def _directory(self, parts: tuple[str, ...]) -> str:
        """Return the place of a directory, made where it is missing."""
        place = self._known.get(parts)
        if place is None:
            place = self._resolve(parts, create=True)
            assert place is not None
            if len(self._known) >= _KNOWN_DIRECTORIES:
                self._forget()
            self._known[parts] = place
        return place

    def _resolve(self, parts: Sequence[str], *, create: bool = False) -> str | None:
        """Walk from the root, following links as a process with that root would."""
        pending, current, links = deque(parts), list[str](), 0
        while pending:
            part = pending.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                current = current[:-1]
                continue
            place = "/".join((self._root, *current, part))
            found = _lstat(place)
            if found is None:
                if not create:
                    return None
                os.mkdir(place, 0o755)
                self._note(place)
            elif stat.S_ISLNK(found.st_mode):
                links += 1
                if links > _MAX_LINKS:
                    raise BadImage(f"links below {'/'.join(current) or '/'!r} in the image lead in a circle")
                target = os.readlink(place)
                current = [] if target.startswith("/") else current
                pending.extendleft(reversed(target.split("/")))
                continue
            elif (pending or create) and not stat.S_ISDIR(found.st_mode):
                if not create:
                    return None
                raise BadImage(f"a layer puts something below {'/'.join([*current, part])!r}, which is no directory")
            current.append(part)
            if len(current) > _MAX_DEPTH:
                raise BadImage(f"the image has directories more than {_MAX_DEPTH} deep")
        return "/".join((self._root, *current))

    def _note(self, place: str) -> None:
        """Remember that this layer made something, so that its own whiteouts spare it."""
        while place not in self._made and place != self._root:
            self._made.add(place)
            self._path_bytes += len(place) - len(self._root)
            if self._path_bytes > self._limits.path_bytes:
                raise BadImage(f"a layer's paths have more than {self._limits.path_bytes >> 20} MiB together")
            place = place.rpartition("/")[0]

    def _forget(self) -> None:
        """Forget where directories are: a name on the way may lead elsewhere now."""
        self._known = {(): self._root}

    def _remove(self, place: str) -> None:
        found = _lstat(place)
        if found is None:
            return
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(place)
            self._forget()
        else:
            os.unlink(place)
            if stat.S_ISLNK(found.st_mode):
                self._forget()

    def _remove_below(self, parent: str) -> None:
        """Remove what lower layers left in a directory; what this layer put there stays."""
        for name in os.listdir(parent):
            place = f"{parent}/{name}"
            if place not in self._made:
                self._remove(place)
            elif stat.S_ISDIR(os.lstat(place).st_mode):
                self._remove_below(place)


class _Bounded(io.RawIOBase):
    """What is read of a layer: never more than the limit, and not for ever.

    Args:
        stream: The unpacked archive.
        limit: Of all its bytes.
        tick: Called at each read; what it raises ends the reading.
    """

    def __init__(self, stream: IO[bytes], limit: int, tick: Callable[[], None]) -> None:
        super().__init__()
        self._stream = stream
        self._left = limit
        self._tick = tick

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self._tick()
        data = self._stream.read(_CHUNK if size < 0 else size)
        self._left -= len(data)
        if self._left < 0:
            raise BadImage("a layer unpacks to more than an image may have")
        return data


def _unpacked(packed: IO[bytes]) -> IO[bytes]:
    """Return a layer's archive; how it is packed is seen from its beginning, whatever the manifest says."""
    start = packed.read(4)
    packed.seek(0)
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=packed, mode="rb")  # type: ignore[return-value]
    if start == _ZSTD:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        reader: Any = decompressor.stream_reader(packed, read_across_frames=True)
        return reader  # type: ignore[no-any-return]
    return packed


def _parts(name: str) -> tuple[str, ...]:
    """Return a path's names, from the root."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts or "\0" in name:
        raise BadImage(f"{name[:200]!r} in a layer leads out of it")
    sizes = [len(part.encode("utf-8", "surrogateescape")) for part in parts]
    if sum(sizes) + len(sizes) > _MAX_PATH_BYTES or max(sizes, default=0) > _MAX_NAME_BYTES:
        raise BadImage(f"{name[:200]!r}... in a layer is too long a path")
    return parts


def _lstat(place: str) -> os.stat_result | None:
    try:
        return os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
