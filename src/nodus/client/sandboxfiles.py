"""Files of a Sandbox: read, written, listed, and copied with whole directories."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nodus.client.blocking import blocking
from nodus.client.downloads import save
from nodus.client.http import Api, ConnectionFailed
from nodus.client.transport import TransportError
from nodus.core.errors import NodusError

BINARY = "application/octet-stream"
LINES = "application/x-ndjson"
# Named here: inside the class, `list` is the method.
Entries = list["SandboxFile"]
Paths = list[Path]


@dataclass(frozen=True, slots=True)
class SandboxFile:
    """A name in a directory of a Sandbox."""

    name: str
    """Without the directory."""
    type: str
    """file, directory, symlink or other."""
    size: int
    """Bytes."""
    mode: int
    """Permissions, such as 0o644."""
    modified: str
    """RFC 3339."""
    target: str | None = None
    """Where a link leads."""

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return self.type == "directory"


class SandboxFiles:
    """Files of one Sandbox. Paths are absolute; what is in ``/workspace`` survives a stop.

    Args:
        api: The server.
        path: URL path of the Sandbox's ``files`` subresource.
    """

    def __init__(self, api: Api, path: str) -> None:
        self._api, self._url = api, path

    @blocking
    async def read(self, path: str) -> bytes:
        """Return a file's bytes.

        Raises:
            NotFound: When there is none.
            Invalid: When it is no file, or the Sandbox's user may not read it.
        """
        exchange = await self._api.stream("GET", self._url, query={"path": path}, headers={"Accept": BINARY})
        _refuse_directory(exchange.headers, path)
        try:
            return await exchange.read()
        except TransportError as error:
            raise ConnectionFailed(f"reading {path} broke off: {error}", fix="Try again.") from error

    @blocking
    async def read_text(self, path: str) -> str:
        """Return a file's text, which must be UTF-8."""
        return (await self.read.aio(path)).decode()

    @blocking
    async def write(
        self,
        path: str,
        data: str | bytes | Path,
        *,
        mode: int | None = None,
        expected_sha256: str | None = None,
    ) -> None:
        """Write a file, whole or not at all, with the directories above it.

        Args:
            path: Where.
            data: Text, bytes, or a file of this machine.
            mode: Permissions, such as 0o755; those of the file as it is, or 0o644, when None.
            expected_sha256: Write only if the file as it is (or ``data``) has this digest.

        Raises:
            SHA256Mismatch: When it hasn't; the file stays as it was.
            FileTooLarge: When it is over 4 GiB, or there is no room.
        """
        await self._put(path, data if isinstance(data, bytes | Path) else str(data).encode(), mode, expected_sha256)

    async def _put(self, path: str, body: bytes | Path, mode: int | None, expected_sha256: str | None = None) -> None:
        query = {
            "path": path,
            "mode": None if mode is None else f"{mode & 0o777:o}",
            "expectedSHA256": expected_sha256,
        }
        await self._api.call(
            "PUT", self._url, query=query, body=body, headers={"Content-Type": BINARY}, timeout_s=600.0
        )

    @blocking
    async def list(self, path: str = "/workspace") -> Entries:
        """Return what is in a directory, by name."""
        return await self._list(path)

    async def _list(self, path: str) -> Entries:
        answer = await self._api.answer("GET", self._url, query={"path": path}, headers={"Accept": LINES})
        if not answer.headers.get("content-type", "").startswith(LINES):
            raise NodusError(f"{path} is a file, not a directory")
        return [_entry(json.loads(line)) for line in answer.body.splitlines()]

    @blocking
    async def mkdir(self, path: str) -> None:
        """Make a directory, with those above it; one that is there is no error."""
        await self._put(path.rstrip("/") + "/", b"", None)

    @blocking
    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or an empty directory; with ``recursive`` a directory and what is in it.

        Raises:
            NotFound: When there is none.
            Invalid: When it is a directory that isn't empty.
        """
        query = {"path": path, "recursive": True if recursive else None}
        await self._api.call("DELETE", self._url, query=query)

    @blocking
    async def upload(self, source: str | os.PathLike[str], path: str) -> int:
        """Copy a file of this machine, or everything below a directory, into the Sandbox.

        Links to files are followed, links to directories left out.

        Args:
            source: The file or directory.
            path: What it is called in the Sandbox.

        Returns:
            How many files were copied.
        """
        count = 0
        async with aclosing(self.uploading(Path(source), path)) as copied:
            async for _ in copied:
                count += 1
        return count

    async def uploading(self, source: Path, path: str) -> AsyncGenerator[str, None]:
        """Copy as :meth:`upload`, yielding each file's path in the Sandbox once it is there."""
        for file, below, mode in _tree(source, path):
            await self._put(below, b"" if file is None else file, mode)
            if file is not None:
                yield below

    @blocking
    async def download(self, path: str, target: str | os.PathLike[str]) -> Paths:
        """Copy a file, or everything below a directory, from the Sandbox to this machine; return the files written.

        Links to files are followed, links to directories and special files left out.

        Args:
            path: The file or directory in the Sandbox.
            target: What it is called here.
        """
        written = []
        async with aclosing(self.downloading(path, Path(target))) as copied:
            async for file in copied:
                written.append(file)
        return written

    async def downloading(self, path: str, target: Path) -> AsyncGenerator[Path, None]:
        """Copy as :meth:`download`, yielding each file once it is there."""
        pending = [(path, target)]
        while pending:
            path, target = pending.pop()
            exchange = await self._api.stream("GET", self._url, query={"path": path}, headers={"Accept": LINES})
            if exchange.headers.get("content-type", "").startswith(LINES):
                target.mkdir(parents=True, exist_ok=True)
                names = [_entry(json.loads(line)).name async for line in self._api.lines_of(exchange)]
                below = path.rstrip("/")
                pending += [(f"{below}/{name}", target / _plain(name, path)) for name in reversed(names)]
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            mode = _mode(exchange.headers)
            yield await save(exchange, target, path, None)
            if mode is not None:
                target.chmod(mode | 0o600)


def _tree(source: Path, path: str) -> Iterator[tuple[Path | None, str, int | None]]:
    """Yield what is to be written of a file or a directory: the file, None for a directory; where; permissions."""
    if not source.is_dir():
        yield source, path, source.stat().st_mode
        return
    for directory, names, files in os.walk(source):
        names.sort()
        below = PurePosixPath(path, Path(directory).relative_to(source).as_posix())
        yield None, f"{below}/", None
        for name in sorted(files):
            file = Path(directory, name)
            if file.is_file():
                yield file, str(below / name), file.stat().st_mode


def _entry(found: dict[str, Any]) -> SandboxFile:
    return SandboxFile(
        str(found["name"]),
        str(found.get("type") or "file"),
        int(found.get("size") or 0),
        int(found.get("mode") or 0),
        str(found.get("modTime") or ""),
        found.get("target"),
    )


def _plain(name: str, path: str) -> str:
    """Return a listed name, which must lead nowhere but into the directory that it is listed in."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise NodusError(f"the sandbox lists the odd name {name!r} in {path}", fix="Copy other files by name.")
    return name


def _mode(headers: Any) -> int | None:
    text = headers.get("x-nodus-mode", "")
    return int(text, 8) & 0o777 if text and set(text) <= set("01234567") else None


def _refuse_directory(headers: Any, path: str) -> None:
    if not headers.get("content-type", "").startswith(BINARY):
        raise NodusError(f"{path} is a directory", fix="List it, or download it.")
