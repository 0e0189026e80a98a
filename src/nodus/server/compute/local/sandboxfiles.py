"""Files inside a Sandbox, read and written through pipes to a process inside it; used by ``processclient``.

The process inside (``nodus.sandboxinit.files``) opens everything with the Sandbox's own rights. Nothing it says is
believed beyond what can do no harm: sizes bound what is read, names are names.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from nodus.core.errors import (
    FileTooLarge,
    Forbidden,
    Invalid,
    NodusError,
    NotFound,
    SandboxNotRunning,
    SHA256Mismatch,
    Unavailable,
)
from nodus.server.compute.processes import EntryType, FileEntry

BLOCK_BYTES = 256 * 1024
RESULT_TIMEOUT_S = 30.0
SILENCE_TIMEOUT_S = 60.0
MAX_RESULT_BYTES = 64 * 1024
MAX_LINE_BYTES = 64 * 1024
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_TYPES: dict[object, EntryType] = {"file": "file", "directory": "directory", "symlink": "symlink"}

Ask = Callable[[str, dict[str, Any], tuple[int, ...]], Awaitable[None]]
"""Has a request carried out inside a member; the descriptors stay the caller's to close."""


class SandboxFile:
    """A file or directory inside a member, open for reading. Made by :meth:`open`.

    Attributes:
        size: Bytes of a file; None where that can't be told before.
        mode: Permissions, octal.
        modified: RFC 3339.
        is_directory: Whether it is a directory.
    """

    def __init__(self, head: dict[str, Any], data: _Reader) -> None:
        self.is_directory = head.get("type") == "directory"
        size = int(head.get("size") or 0)
        self.size: int | None = size if size > 0 else None
        self.mode = str(head.get("mode") or "0644")[:8]
        self.modified = str(head.get("modTime") or "")[:32]
        self._data = data

    @classmethod
    async def open(cls, ask: Ask, member: str, path: str, within: Sequence[str] = ()) -> SandboxFile:
        """Open a path; see the protocol for the errors."""
        data, inner_data = _Reader.pipe()
        result, inner_result = _Reader.pipe()
        try:
            try:
                await ask(member, {"do": "get", "path": path, "within": list(within)}, (inner_data, inner_result))
            finally:
                os.close(inner_data)
                os.close(inner_result)
            return cls(await _result(result, path), data)
        except BaseException:
            data.close()
            raise
        finally:
            result.close()

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield the file's bytes; of a file that grows meanwhile, no more than its size.

        Raises:
            Unavailable: There were fewer, or none came for a minute.
        """
        left = self.size
        while left != 0:
            block = await self._data.read(BLOCK_BYTES if left is None else min(left, BLOCK_BYTES))
            if not block:
                break
            left = None if left is None else left - len(block)
            yield block
        if left:
            raise Unavailable("the file became shorter while it was read")

    async def entries(self) -> AsyncIterator[FileEntry]:
        """Yield the directory's entries by name."""
        rest = b""
        while block := await self._data.read(BLOCK_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise Unavailable("the listing makes no sense")
            for line in lines:
                yield _entry(line)

    async def close(self) -> None:
        """Let go; a process inside that still writes ends."""
        self._data.close()


async def put(ask: Ask, member: str, request: dict[str, Any], content: AsyncIterator[bytes]) -> tuple[int, str]:
    """Write a file; see the protocol for the errors.

    Args:
        ask: Has it carried out.
        member: The member's key.
        request: ``path``, ``mode``, ``expectedSHA256`` and ``limit``.
        content: The bytes.
    """
    # The result first: of a server that is killed, the kernel closes descriptors from the lowest on. So the process
    # inside never sees the data end before it can see that nobody waits for the result.
    result, inner_result = _Reader.pipe()
    inner_data, data = os.pipe()
    try:
        try:
            os.set_blocking(data, False)
            _enlarge(data)
            await ask(member, {"do": "put", **request}, (inner_data, inner_result))
        finally:
            os.close(inner_data)
            os.close(inner_result)
        try:
            await _send_all(data, content)
        except BaseException:
            result.close()  # Before the data ends: what came so far is not the file.
            raise
        os.close(data)
        data = -1
        head = await _result(result, str(request["path"]))
        return int(head.get("size") or 0), str(head.get("sha256") or "")
    finally:
        result.close()
        if data >= 0:
            os.close(data)


async def delete(ask: Ask, member: str, path: str, *, recursive: bool) -> None:
    """Delete a path; see the protocol for the errors."""
    data, inner_data = _Reader.pipe()
    result, inner_result = _Reader.pipe()
    try:
        try:
            await ask(member, {"do": "delete", "path": path, "recursive": recursive}, (inner_data, inner_result))
        finally:
            os.close(inner_data)
            os.close(inner_result)
        await _result(result, path)
    finally:
        data.close()
        result.close()


class _Reader:
    """The reading end of a pipe, for an event loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def pipe(cls) -> tuple[_Reader, int]:
        """Make a pipe; return a reader and the writing end."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        _enlarge(read_end)
        return cls(read_end), write_end

    async def read(self, count: int) -> bytes:
        """Return some bytes, none at the end.

        Raises:
            Unavailable: None came for a minute.
        """
        while True:
            try:
                return os.read(self._fd, count)
            except BlockingIOError:
                await _ready(self._fd, writing=False)

    def close(self) -> None:
        """Close it, once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


async def _ready(fd: int, *, writing: bool) -> None:
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(fd, wake)
    try:
        async with asyncio.timeout(SILENCE_TIMEOUT_S):
            await woken
    except TimeoutError:
        raise Unavailable("the sandbox does not answer", retry_after_s=1) from None
    finally:
        remove(fd)


async def _send_all(fd: int, content: AsyncIterator[bytes]) -> None:
    """Write all of ``content``; a reader that has enough says why in its result."""
    async for block in content:
        view = memoryview(block)
        while view:
            try:
                view = view[os.write(fd, view[:BLOCK_BYTES]) :]
            except BlockingIOError:
                await _ready(fd, writing=True)
            except BrokenPipeError:
                return


async def _result(reader: _Reader, path: str) -> dict[str, Any]:
    """Return what came of a request.

    Raises:
        NodusError: It failed; of the class that fits.
    """
    text = b""
    try:
        async with asyncio.timeout(RESULT_TIMEOUT_S):
            while (block := await reader.read(BLOCK_BYTES)) and len(text) <= MAX_RESULT_BYTES:
                text += block
    except TimeoutError:
        raise Unavailable("the sandbox does not answer", retry_after_s=1) from None
    try:
        head = json.loads(text)
    except ValueError:
        head = None
    if not isinstance(head, dict):
        raise SandboxNotRunning("the sandbox ended just now", fix="Start it again.")
    if "error" in head:
        raise _error(str(head["error"]), str(head.get("message"))[:500], path)
    return head


def _error(word: str, message: str, path: str) -> NodusError:
    shown = ascii(path)[1:-1][:200]
    match word:
        case "NotFound":
            return NotFound(f"the sandbox has no file {shown}")
        case "Mismatch":
            return SHA256Mismatch(f"{shown} was not written: {message}", fix="Read the file again, then write it.")
        case "TooLarge":
            return FileTooLarge(f"{shown}: {message}")
        case "NoSpace":
            return FileTooLarge(f"{shown}: there is no room for it", fix="Delete files in the sandbox.")
        case "Elsewhere":
            return Forbidden(
                f"{shown} can't be read with this key: {message}",
                fix="Use a key that may run commands in the sandbox: with the scope sandboxes:write.",
                details={"missingScope": "sandboxes:write"},
            )
        case "Denied":
            return Invalid(f"{shown}: {message}", fix="In the sandbox, /workspace and /tmp can be written.")
        case "NotEmpty":
            return Invalid(f"{shown} is a directory that isn't empty", fix="Add recursive=true.")
        case "Directory":
            return Invalid(f"{shown} is a directory")
        case _:
            return Invalid(f"{shown}: {message}")


def _entry(line: bytes) -> FileEntry:
    try:
        found = json.loads(line)
        target = found.get("target")
        return FileEntry(
            str(found["name"]),
            _TYPES.get(found.get("type"), "other"),
            int(found.get("size") or 0),
            f"{int(str(found.get('mode') or '0'), 8) & 0o7777:04o}",
            str(found.get("modTime") or "")[:32],
            None if target is None else str(target),
            bool(found.get("toDirectory")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unavailable("the listing makes no sense") from error


def _enlarge(fd: int) -> None:
    with contextlib.suppress(OSError):  # over the user's limit of pipe memory: a small pipe works too
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
