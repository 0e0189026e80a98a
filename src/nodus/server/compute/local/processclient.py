"""The server's side of processes inside local members: asks the supervisor over its socket, reads what it wrote.

Runs in the server. What is known of a process is in its files (``processlog``), also when its supervisor is gone; what
is to happen to one is asked of the supervisor. Bytes of files travel through pipes between this process and one inside
the sandbox, made here and passed on by the supervisor.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from nodus.core.errors import Conflict, Invalid, NodusError, SandboxNotRunning, StdinBackpressure, TooManyRequests
from nodus.core.errors import Unavailable as NotNow
from nodus.server.compute.local import processlog
from nodus.server.compute.local.activity import read_activity
from nodus.server.compute.local.attemptdir import EXITED, AttemptDir, short_path
from nodus.server.compute.local.sandboxfiles import SandboxFile, delete, put
from nodus.server.compute.processes import Activity, OpenFile, OutputPiece, ProcessSpec, ProcessState, Stream

ANSWER_TIMEOUT_S = 10.0
LOOK_AGAIN_S = 0.1
CONNECT_TRIES = 20
_STREAMS: dict[int, Stream] = {processlog.STDOUT: "stdout", processlog.STDERR: "stderr"}


class LocalProcesses:
    """Processes and files inside the members of this machine.

    Args:
        directory: Finds a member's directory by its key.
    """

    def __init__(self, directory: Callable[[str], AttemptDir]) -> None:
        self._directory = directory

    async def exec(self, member: str, spec: ProcessSpec) -> None:
        """Start a process unless its key was started before; see the protocol for the errors."""
        request = {
            "op": "exec", "id": spec.key, "argv": list(spec.command), "env": dict(spec.env), "cwd": spec.cwd,
            "tty": spec.tty, "stdin": spec.stdin, "timeoutSeconds": spec.timeout_s, "size": spec.size,
        }  # fmt: skip
        await self._ask(member, request)

    async def state(self, member: str, key: str) -> ProcessState:
        """Return where a process stands."""
        return await asyncio.to_thread(self.read_state, member, key)

    def read_state(self, member: str, key: str) -> ProcessState:
        """As :meth:`state`, for threads."""
        attempt = self._directory(member)
        directory = attempt.processes / key
        # The order matters: a status read while the supervisor lived can't be called lost afterwards.
        alive = attempt.alive()
        status = processlog.read_status(directory)
        if status is None:
            return ProcessState("Running" if alive and directory.exists() else "Absent")
        if status["phase"] != EXITED:
            if alive and (attempt.read_status() or {}).get("phase") != EXITED:
                return ProcessState("Running", times=status.get("times") or {})
            message = "the sandbox ended without a word, and the process with it"
            return ProcessState("Lost", 137, "SandboxLost", message, status.get("times") or {})
        return ProcessState(
            "Exited", status.get("exitCode"), status.get("reason"), status.get("message"), status.get("times") or {}
        )

    async def read(self, member: str, key: str, after: int, *, limit_bytes: int = 1 << 20) -> list[OutputPiece]:
        """Return what there is of a process's output from an offset on."""
        directory = self._directory(member).processes / key
        found = await asyncio.to_thread(processlog.read_output, directory, after, limit_bytes=limit_bytes)
        return [OutputPiece(piece.offset, _STREAMS[piece.stream], piece.data, piece.dropped) for piece in found]

    def log_directory(self, member: str, key: str) -> Path:
        """Return where a process's output is; see ``logstore`` for tails and times."""
        return self._directory(member).processes / key / "log"

    async def wait(self, member: str, key: str, after: int, timeout_s: float, *, reader: str = "") -> bool:
        """Wait for output after an offset or for the end; tell whether the process ended."""
        request = {"op": "wait", "id": key, "after": after, "seconds": timeout_s, "reader": reader}
        try:
            answer = await self._ask(member, request, timeout_s + ANSWER_TIMEOUT_S)
        except (SandboxNotRunning, NotNow):
            if (await self.state(member, key)).phase != "Running":
                return True
            # It is asked too much at once, or ends just now: callers ask again, and must not do so in a tight loop.
            await asyncio.sleep(min(timeout_s, LOOK_AGAIN_S))
            return False
        if answer.get("ended") and (await self.state(member, key)).phase == "Absent":
            await asyncio.sleep(min(timeout_s, LOOK_AGAIN_S))  # Recorded, and about to be started.
            return False
        return bool(answer.get("ended"))

    async def write(self, member: str, key: str, data: bytes, *, ends: bool = False, seq: int | None = None) -> None:
        """Give a process input; see the protocol for the errors."""
        encoded = base64.b64encode(data).decode()
        await self._ask(member, {"op": "stdin", "id": key, "data": encoded, "ends": ends, "seq": seq})

    async def signal(self, member: str, key: str, number: int) -> None:
        """Send a signal to a process and its group."""
        await self._tell(member, {"op": "signal", "id": key, "signal": number})

    async def resize(self, member: str, key: str, rows: int, columns: int) -> None:
        """Set the size of a process's terminal."""
        await self._tell(member, {"op": "resize", "id": key, "size": [rows, columns]})

    async def stop(self, member: str, key: str, reason: str, grace_s: float) -> None:
        """Ask for a process's end, and enforce it after a while."""
        await self._tell(member, {"op": "stop", "id": key, "reason": reason, "graceSeconds": grace_s})

    async def open_file(self, member: str, path: str, *, within: Sequence[str] = ()) -> OpenFile:
        """Open a file or directory; see the protocol for the errors."""
        return await SandboxFile.open(self._ask_with_pipes, member, path, within)

    async def put_file(
        self, member: str, path: str, content: AsyncIterator[bytes], *, mode: int | None = None,
        expected_sha256: str | None = None, limit_bytes: int,
    ) -> tuple[int, str]:  # fmt: skip
        """Write a file whole or not at all; see the protocol for the errors."""
        request = {"path": path, "mode": mode, "expectedSHA256": expected_sha256, "limit": limit_bytes}
        return await put(self._ask_with_pipes, member, request, content)

    async def delete_file(self, member: str, path: str, *, recursive: bool = False) -> None:
        """Delete a file or directory; see the protocol for the errors."""
        await delete(self._ask_with_pipes, member, path, recursive=recursive)

    async def activity(self, member: str) -> Activity | None:
        """Return whether anything goes on in a member."""
        return await asyncio.to_thread(self.read_activity, member)

    def read_activity(self, member: str) -> Activity | None:
        """As :meth:`activity`, for threads."""
        seen = read_activity(self._directory(member).path)
        return None if seen is None else Activity(seen.busy, seen.at)

    async def forget(self, member: str, key: str) -> None:
        """Delete what is kept of a process that ended."""
        directory = self._directory(member).processes / key
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    # The supervisor's socket --------------------------------------------------------------------------------------

    async def _tell(self, member: str, request: dict[str, Any]) -> None:
        """Ask for something that means nothing to a process that ended."""
        with contextlib.suppress(SandboxNotRunning):
            await self._ask(member, request)

    async def _ask_with_pipes(self, member: str, request: dict[str, Any], fds: tuple[int, ...]) -> None:
        await self._ask(member, {"op": "file", **request}, fds=fds)

    async def _ask(
        self, member: str, request: dict[str, Any], timeout_s: float = ANSWER_TIMEOUT_S, fds: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """Send one request and return its answer.

        Raises:
            NodusError: The answer is that it can't be done.
            SandboxNotRunning: Nobody listens.
        """
        loop = asyncio.get_running_loop()
        link = await self._connect(member)
        with link:
            try:
                async with asyncio.timeout(timeout_s):
                    await _send(loop, link, json.dumps(request).encode() + b"\n", fds)
                    answer = json.loads(await _receive_line(loop, link))
            except TimeoutError:
                raise NotNow("the sandbox does not answer", retry_after_s=1) from None
            except (OSError, ValueError) as error:
                raise SandboxNotRunning("the sandbox ended just now", fix="Start it again.") from error
        if "error" in answer:
            raise _error(str(answer["error"]), str(answer.get("message") or ""))
        return dict(answer)

    async def _connect(self, member: str) -> socket.socket:
        path = self._directory(member).exec_socket
        for attempt in range(CONNECT_TRIES):
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.setblocking(False)
            try:
                with short_path(path) as short:
                    link.connect(short)  # A unix socket connects at once or not at all.
                return link
            except BlockingIOError:
                link.close()  # More callers at once than the backlog takes.
                await asyncio.sleep(0.01 * (attempt + 1))
            except OSError as error:
                link.close()
                raise SandboxNotRunning("the sandbox does not run", fix="Start it with `nodus start`.") from error
        raise NotNow("the sandbox is asked too much at once", retry_after_s=1)


async def _send(loop: asyncio.AbstractEventLoop, link: socket.socket, data: bytes, fds: tuple[int, ...]) -> None:
    if fds:
        # The first piece carries the descriptors; a fresh connection always has room for it.
        sent = socket.send_fds(link, [data[:4096]], list(fds))
        data = data[sent:]
    if data:
        await loop.sock_sendall(link, data)


async def _receive_line(loop: asyncio.AbstractEventLoop, link: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        block = await loop.sock_recv(link, 65536)
        if not block:
            raise ConnectionError("the supervisor closed the connection")
        data += block
    return data


def _error(word: str, message: str) -> NodusError:
    match word:
        case "NotRunning":
            return SandboxNotRunning(message or "the process does not run any more")
        case "Backpressure":
            return StdinBackpressure("the process has not read the input it was given before", retry_after_s=0.5)
        case "NoStdin":
            return Conflict("the process has no input, or its end was sent before", fix="Start it with stdin: true.")
        case "OutOfOrder":
            return Conflict("the input's seq does not follow the last one", fix="Number the calls 1, 2, 3, ...")
        case "TooMany":
            return TooManyRequests(message, retry_after_s=2)
        case "TooLarge":
            return Invalid(message, fix="Put long input into a file, or send it on standard input.")
        case "BadRequest":
            return Invalid(message)
        case _:
            return NotNow(message or "the sandbox can't do that now", retry_after_s=1)
