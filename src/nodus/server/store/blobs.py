"""Blobs: files named by the sha256 of their content, beside the database, with an index in it.

A blob is written to a temporary file, synced, and renamed into place: one that is there is whole. Files come before
their index rows, so that a row never points to nothing. A row belongs to a project: the same bytes in two projects are
one file with two rows, and who reaches one project alone learns nothing of the other's.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, select, update

from nodus.core.errors import NotFound, SHA256Mismatch
from nodus.server.files import sync_directory
from nodus.server.store.context import insert_into, lock_objects, now_us, org_of
from nodus.server.store.errors import disk_error
from nodus.server.store.schema import blobs, objects

_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 20
_BATCH = 500
_LOCK = ".lock"


class BlobInfo(NamedTuple):
    """What the index knows of a blob."""

    sha256: str
    size_bytes: int
    media_type: str


class BlobStore:
    """The files.

    Args:
        root: their directory; made when first written to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha256: str) -> Path:
        """Return where a blob is or would be.

        Args:
            sha256: 64 hex digits, with or without ``sha256:`` before them.

        Raises:
            NotFound: it isn't a digest at all, so there can't be such a blob.
        """
        digest = sha256.removeprefix("sha256:")
        if not _SHA256.fullmatch(digest):
            raise NotFound(f"{sha256!r} is no sha256 digest")
        return self.root / digest[:2] / digest

    def exists(self, sha256: str) -> bool:
        """Tell whether the blob is there, whole."""
        return self.path(sha256).is_file()

    def put_bytes(self, data: bytes) -> str:
        """Store bytes and return their sha256."""
        with self.writer() as writer:
            writer.write(data)
            return writer.commit()

    def put_file(self, source: Path) -> str:
        """Store a copy of a file and return its sha256."""
        with self.writer() as writer, source.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                writer.write(chunk)
            return writer.commit()

    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield the path of a file to make and put in place; it is removed where that did not happen."""
        self.make_root()
        path = self.root / f"incoming-{secrets.token_hex(8)}"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def make_root(self) -> None:
        """Make sure that the directory is there."""
        if not self.root.is_dir():
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            sync_directory(self.root.parent)

    def put_in_place(self, draft: Path, sha256: str) -> None:
        """Make a synced file on the blobs' disk the blob of that digest, for good once this returns.

        Raises:
            OSError: the disk is full or can't be written.
        """
        target = self.path(sha256)
        if not target.parent.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            sync_directory(self.root)
        os.replace(draft, target)
        sync_directory(target.parent)

    def read_bytes(self, sha256: str) -> bytes:
        """Return a blob's content.

        Raises:
            NotFound: there is no such blob.
        """
        try:
            return self.path(sha256).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"blob {sha256} not found") from error

    def writer(self) -> BlobWriter:
        """Return a writer for a blob that arrives in pieces."""
        return BlobWriter(self)

    def remove(self, sha256: str) -> None:
        """Delete a blob's file; nothing happens when there is none."""
        self.path(sha256).unlink(missing_ok=True)

    def claim(self, sha256: str) -> bool:
        """Tell whether the blob is there, and keep it from being swept until it has a row."""
        try:
            os.utime(self.path(sha256))
        except FileNotFoundError:
            return False
        return True

    def old_files(self, keep_s: float, at_once: int) -> Iterator[list[str]]:
        """Yield digests of files that nobody touched for so many seconds, some at a time."""
        found: list[str] = []
        for directory in sorted(self.root.glob("[0-9a-f][0-9a-f]")):
            for entry in os.scandir(directory):
                if _SHA256.fullmatch(entry.name) and _age_s(entry.stat(follow_symlinks=False)) >= keep_s:
                    found.append(entry.name)
                    if len(found) == at_once:
                        yield found
                        found = []
        if found:
            yield found

    def discard(self, sha256: str, keep_s: float) -> int | None:
        """Remove a file without rows, unless somebody claimed or wrote it just now; return its size if it went.

        Args:
            sha256: the digest.
            keep_s: for how many seconds it must have lain untouched.
        """
        path, aside = self.path(sha256), self.root / f"incoming-{secrets.token_hex(8)}"
        try:
            before = path.stat()
            if _age_s(before) < keep_s:
                return None
            # Away first, then a second look: whoever claims it from here on finds nothing and writes it anew.
            os.rename(path, aside)
        except FileNotFoundError:
            return None
        now = aside.stat()
        if now.st_ino != before.st_ino or now.st_mtime_ns != before.st_mtime_ns:
            os.rename(aside, path)
            return None
        aside.unlink()
        return before.st_size

    def verify(self, sha256: str) -> bool:
        """Read a blob and tell whether its content still has its digest."""
        digest = hashlib.sha256()
        try:
            with self.path(sha256).open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
        except FileNotFoundError:
            return False
        return digest.hexdigest() == sha256.removeprefix("sha256:")

    @contextlib.contextmanager
    def kept(self) -> Iterator[bool]:
        """Keep blobs from being removed by other processes until the block ends; False where somebody does already."""
        self.make_root()
        handle = os.open(self.root / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)

    def sweep(self) -> None:
        """Remove what uploads left that a killed server never finished; called at start, before there are others."""
        for left in self.root.glob("incoming-*"):
            left.unlink(missing_ok=True)


class BlobWriter:
    """Writes one blob; used as a context manager, which drops what was not committed.

    with store.blobs.writer() as writer:
        writer.write(b"...")
        sha256 = writer.commit(expected="sha256:...")
    """

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        try:
            store.make_root()
            handle, name = tempfile.mkstemp(prefix="incoming-", dir=store.root)
        except OSError as error:
            raise disk_error(error, store.root) from error
        self._temp: Path | None = Path(name)
        self._file = os.fdopen(handle, "wb")

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            StoreFull: the disk is full.
        """
        try:
            self._file.write(data)
        except OSError as error:
            raise disk_error(error, self._store.root) from error
        self._digest.update(data)
        self.size_bytes += len(data)

    def commit(self, expected: str | None = None) -> str:
        """Put the blob in place, synced to the disk, and return its sha256.

        Args:
            expected: the digest it must have, if known.

        Raises:
            SHA256Mismatch: it has another one; nothing is stored.
            StoreFull: the disk is full.
        """
        sha256 = self._digest.hexdigest()
        if expected is not None and expected.removeprefix("sha256:") != sha256:
            raise SHA256Mismatch(
                f"the bytes have sha256 {sha256}, not {expected.removeprefix('sha256:')}",
                fix="Send the file again; it changed or was cut off on its way.",
            )
        assert self._temp is not None, "a blob is committed once"
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._store.put_in_place(self._temp, sha256)
        except OSError as error:
            raise disk_error(error, self._store.root) from error
        self._temp = None
        return sha256

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._temp is not None:
            self._temp.unlink(missing_ok=True)
            self._temp = None
        try:
            self._file.close()
        except OSError:
            # Closing flushes; on a full disk that fails again, and the file is dropped anyway.
            return


def index(
    conn: Connection,
    project: str | None,
    sha256: str,
    size_bytes: int,
    media_type: str = "application/octet-stream",
) -> BlobInfo:
    """Note that a blob whose file is in place belongs to a project, or that the project used it again.

    Raises:
        NotFound: there is no such project.
    """
    lock_objects(conn)  # a file of which there are no rows is removed under this lock
    owner = conn.execute(_project(conn, project)).scalar()
    if owner is None:
        raise NotFound(f"project {project!r} not found")
    now, digest = now_us(conn), _digest(sha256)
    statement = insert_into(conn, blobs).values(
        project=owner, org=org_of(conn), sha256=digest, size_bytes=size_bytes, media_type=media_type, created_us=now,
        used_us=now,
    )  # fmt: skip
    conn.execute(statement.on_conflict_do_update(index_elements=["project", "sha256"], set_={"used_us": now}))
    return BlobInfo(digest, size_bytes, media_type)


def find(conn: Connection, project: str | None, sha256: str) -> BlobInfo | None:
    """Return what the index knows of a blob of a project, or None."""
    row = conn.execute(select(*_INFO).where(*_mine(conn, project, sha256))).first()
    return None if row is None else BlobInfo(*row)


def touch(conn: Connection, project: str | None, sha256: str) -> None:
    """Note that a project used its blob, so that it isn't the next to be pruned."""
    conn.execute(update(blobs).where(*_mine(conn, project, sha256)).values(used_us=now_us(conn)))


def present(conn: Connection, project: str | None, digests: Iterable[str]) -> dict[str, int]:
    """Return the size in bytes of each of these blobs that a project has, by digest; notes that it used them."""
    wanted, found = list(digests), {}
    for start in range(0, len(wanted), _BATCH):
        mine = (
            blobs.c.project == _project(conn, project).scalar_subquery(),
            blobs.c.sha256.in_(wanted[start : start + _BATCH]),
        )
        found.update({row.sha256: row.size_bytes for row in conn.execute(select(*_INFO).where(*mine))})
        conn.execute(update(blobs).where(*mine).values(used_us=now_us(conn)))
    return found


def _age_s(info: os.stat_result) -> float:
    """How long ago a file was written, put in place, linked or claimed."""
    return time.time() - max(info.st_mtime, info.st_ctime)


_INFO = (blobs.c.sha256, blobs.c.size_bytes, blobs.c.media_type)


def _mine(conn: Connection, project: str | None, sha256: str) -> tuple[ColumnElement[bool], ...]:
    return blobs.c.project == _project(conn, project).scalar_subquery(), blobs.c.sha256 == _digest(sha256)


def _project(conn: Connection, name: str | None) -> Select[tuple[str]]:
    """The uid of a project: rows hang on that, since the name of a deleted project may be given to another."""
    c = objects.c
    return select(c.uid).where(c.org == org_of(conn), c.kind == "Project", c.project == "", c.name == name)


def _digest(sha256: str) -> str:
    return sha256.removeprefix("sha256:")
