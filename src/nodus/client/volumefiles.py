"""Files on their way into a Volume: unpacked, measured, sent in pieces, committed as one revision.

The server knows by their digests which bytes it has. So the same call, made again after the program or the server was
killed, sends only what is missing, and a file that was half-way goes on where it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nodus.client.http import METERED_BYTES, Api, new_key
from nodus.client.localfiles import LocalFile
from nodus.client.transport import FilePart, off_loop
from nodus.core.batches import batches
from nodus.core.errors import BadRequest, Conflict, NodusError, NotFound

PIECE_BYTES = 64 * 1024 * 1024
"""How much of a file one request carries."""
SMALL_BYTES, BUNDLE_BYTES = 256 * 1024, 8 * 1024 * 1024
"""Files up to the one size share requests of up to the other."""
SLOW_TO_CHECK_BYTES = 512 * 1024 * 1024
"""So much is read long enough for the meter to show it."""
MOST_DECLARED, MOST_DECLARED_BYTES = 500, 400_000
_PIECE_TIMEOUT_S = 900.0
"""The last piece's answer comes when the server has read the whole file again."""
_TURNS = 5
_READ_BYTES = 1024 * 1024


@contextlib.contextmanager
def unpacked(archive: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary directory with the files of a .zip, .tar, .tar.gz, .tgz, .tar.bz2 or .tar.xz archive.

    Raises:
        NodusError: When it is none, is broken, or holds what leads out of it.
    """
    path = Path(archive)
    with tempfile.TemporaryDirectory(prefix="nodus-") as directory:
        try:
            if path.name.lower().endswith(".zip"):
                with zipfile.ZipFile(path) as zipped:
                    zipped.extractall(directory)
            else:
                with tarfile.open(path, "r:*") as tar:
                    tar.extractall(directory, filter="data")
        except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, ValueError) as error:
            fix = "It takes .zip, .tar, .tar.gz, .tgz, .tar.bz2 and .tar.xz; unpack others by hand."
            # tarfile tells of a file that is no archive in what it tried, a line for each format.
            why = "it is no archive" if "\n" in str(error) else str(error)[:200]
            raise NodusError(f"{path} can't be unpacked: {why}", fix=fix) from error
        for packed in Path(directory).rglob("*"):
            if packed.is_symlink():
                raise NodusError(
                    f"{path} has a symbolic link, {packed.relative_to(directory)}, which a volume can't hold",
                    fix="Pack it without links: `tar -h` packs the files that they lead to.",
                )
        yield Path(directory)


def measured(file: LocalFile, read: Callable[[int], None]) -> LocalFile:
    """Return a file with its size and sha256, read from its bytes.

    Args:
        file: Where it is.
        read: Is told of each stretch that was read.

    Raises:
        NodusError: When it can't be read.
    """
    if isinstance(file.source, bytes):
        digest = hashlib.sha256(file.source).hexdigest()
        return LocalFile(file.place, file.source, file.mode, len(file.source), digest)
    hashed, size = hashlib.sha256(), 0
    try:
        with file.source.open("rb") as opened:
            while chunk := opened.read(_READ_BYTES):
                hashed.update(chunk)
                size += len(chunk)
                read(len(chunk))
    except OSError as error:
        raise NodusError(f"{file.source} can't be read: {error.strerror}") from error
    return LocalFile(file.place, file.source, file.mode, size, hashed.hexdigest())


class Upload:
    """One revision in the making.

    Args:
        api: The server.
        path: URL path of the Volume's ``uploads``.
        label: What the meter calls it.
    """

    def __init__(self, api: Api, path: str, label: str) -> None:
        self._api, self._path, self._label = api, path, label
        self._sent: Callable[[int], None] = _unnoticed

    async def run(self, files: Sequence[LocalFile], removed: Iterable[str] = ()) -> int:
        """Remove, send and commit; return the revision.

        Args:
            files: What is added, or replaces what has its path.
            removed: Files and directories that go first.

        Raises:
            VolumeBusy: When a Job writes to the Volume.
            RequestEntityTooLarge: When it would hold more than its size.
            SHA256Mismatch: When a file changed while it was sent.
        """
        expected = sum(file.size for file in files)
        checking: Callable[[int], None] = _unnoticed
        if self._api.meter is not None and expected >= SLOW_TO_CHECK_BYTES:
            checking = self._api.meter(f"checking {self._label}", expected)
        known = [await off_loop(measured, file, checking) for file in files]
        total = sum(file.size for file in known)
        asked = {"mode": "Write", "bytes": total, "files": len(known)}
        begun = await self._api.call("POST", self._path, body=asked, idempotency_key=new_key("upload"))
        path = f"{self._path}/{begun['id']}"
        if self._api.meter is not None and total >= METERED_BYTES:
            self._sent = self._api.meter(self._label, total)
        for gone in removed:
            await self._api.call("DELETE", f"{path}/files", query={"path": gone})
        for batch in batches(known, _declared_bytes, most_bytes=MOST_DECLARED_BYTES, most=MOST_DECLARED):
            await self._send_batch(path, batch)
        done = await self._api.call("PUT", path, body={"commit": {}})
        return int(done["revision"])

    async def _send_batch(self, path: str, batch: Sequence[LocalFile]) -> None:
        missing = await self._missing(path, batch)
        arrived: set[str] = set()
        small = [file for file in batch if file.place in missing and file.size <= SMALL_BYTES]
        for bundle in batches(small, lambda file: file.size, most_bytes=BUNDLE_BYTES):
            if len(bundle) == 1:
                continue  # sent below, as every other file is
            await self._send_bundle(path, bundle)
            for file in bundle:
                del missing[file.place]
        for file in batch:
            offset = missing.get(file.place)
            if offset is not None and file.sha256 in arrived:
                offset = file.size  # the same bytes under another name: only the name is sent
            self._sent(file.size if offset is None else offset)
            if offset is not None:
                await self._send(path, file, offset)
                arrived.add(file.sha256)

    async def _send_bundle(self, path: str, bundle: Sequence[LocalFile]) -> None:
        content = await off_loop(_packed, bundle)
        try:
            await self._api.call(
                "POST",
                f"{path}/bundle",
                body=content,
                sent=_unnoticed,
                timeout_s=_PIECE_TIMEOUT_S,
                idempotency_key=new_key("bundle"),
                headers={"Content-Type": "application/octet-stream"},
            )
        except BadRequest as error:
            raise NodusError(error.message, fix="A file changed while it was sent; put them again.") from error

    async def _missing(self, path: str, batch: Sequence[LocalFile]) -> dict[str, int]:
        """Declare files; return how much of each unfinished one the server has, by path."""
        declared = _declared(batch)
        # A fresh key each time: what is missing changes.
        answer = await self._api.call(
            "POST", f"{path}/files", body={"files": declared}, idempotency_key=new_key("files")
        )
        return {str(item["path"]): int(item["offset"]) for item in answer["items"]}

    async def _send(self, path: str, file: LocalFile, offset: int) -> None:
        turns = 0
        while True:
            try:
                answer = await self._put(path, file, offset)
            except (Conflict, NotFound) as error:
                # Other bytes are there than this thought: somebody else sends the same file, or they were dropped.
                turns += 1
                if turns > _TURNS or isinstance(error, NotFound):
                    raise
                offset = (await self._missing(path, [file])).get(file.place, file.size)
                if offset == file.size:
                    return
                continue
            offset = int(answer["offset"])
            if offset >= file.size:
                return

    async def _put(self, path: str, file: LocalFile, offset: int) -> Any:
        length = min(PIECE_BYTES, file.size - offset)
        body: bytes | FilePart
        if isinstance(file.source, bytes):
            body = file.source[offset : offset + length]
        else:
            body = FilePart(file.source, offset, length)
        query = {
            "path": file.place, "mode": f"{file.mode:o}", "sha256": file.sha256, "size": file.size, "offset": offset,
        }  # fmt: skip
        return await self._api.call(
            "PUT",
            f"{path}/files",
            query=query,
            body=body,
            sent=self._sent,
            timeout_s=_PIECE_TIMEOUT_S,
            headers={"Content-Type": "application/octet-stream"},
        )


def _declared(files: Iterable[LocalFile]) -> list[dict[str, Any]]:
    return [{"path": file.place, "size": file.size, "sha256": file.sha256, "mode": f"{file.mode:o}"} for file in files]


def _declared_bytes(file: LocalFile) -> int:
    return len(file.place.encode()) + 160


def _packed(bundle: Sequence[LocalFile]) -> bytes:
    head = json.dumps({"files": _declared(bundle)}).encode()
    return b"".join([head, b"\n", *(_content(file) for file in bundle)])


def _content(file: LocalFile) -> bytes:
    try:
        return file.source if isinstance(file.source, bytes) else file.source.read_bytes()
    except OSError as error:
        raise NodusError(f"{file.source!s} can't be read: {error.strerror}") from error


def _unnoticed(size: int) -> None:
    """No meter is shown."""
