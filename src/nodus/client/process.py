"""Processes in Sandboxes: their output as it comes, their input, and how they end."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from nodus.client.blocking import blocking, iterate_blocking
from nodus.client.handles import Handle
from nodus.client.http import ConnectionFailed, new_key
from nodus.client.transport import pause
from nodus.core.errors import NodusError, NodusTimeout

if TYPE_CHECKING:
    from nodus.client.client import Client
    from nodus.client.resources import JsonObject

WAIT_S = 30
STDIN_BYTES = 128 * 1024


class Output:
    """One stream of a process. Iterate it for lines of text as they come, or read it whole.

    Example:
        >>> for line in process.stdout:
        ...     print(line, end="")
    """

    def __init__(self, process: Process, stream: str) -> None:
        self._process = process
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        return iterate_blocking(self._lines())

    def __aiter__(self) -> AsyncIterator[str]:
        return self._lines()

    @blocking
    async def read(self) -> str:
        """Return all of it, once the process has ended; bytes that are no UTF-8 are replaced."""
        return (await self._whole()).decode("utf-8", "replace")

    @blocking
    async def read_bytes(self) -> bytes:
        """Return all of it, once the process has ended."""
        return await self._whole()

    async def _whole(self) -> bytes:
        pieces = []
        async with aclosing(self._process.follow(self._stream)) as output:
            async for _, piece in output:
                pieces.append(piece)
        return b"".join(pieces)

    async def _lines(self) -> AsyncGenerator[str, None]:
        rest = b""
        async with aclosing(self._process.follow(self._stream)) as output:
            async for _, piece in output:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield line.decode("utf-8", "replace") + "\n"
        if rest:
            yield rest.decode("utf-8", "replace")


class Process(Handle):
    """A command that runs, or ran, in a Sandbox; made by ``Sandbox.exec``.

    Example::

        process = sandbox.exec("python3", "train.py", timeout="1m")
        for line in process.stdout:
            print(line, end="")
        process.wait()  # its exit code

    Attributes:
        stdout: Its standard output; of one with a terminal, all of its output.
        stderr: Its error output.
        reason: Why it was ended, such as ``DeadlineExceeded``; None for one that ended by itself, or still runs.
    """

    kind = "Process"

    def __init__(self, obj: JsonObject, client: Client) -> None:
        super().__init__(obj, client)
        self.stdout = Output(self, "stdout")
        self.stderr = Output(self, "stderr")
        self.reason: str | None = None
        self._returncode: int | None = None
        self._seq = 0

    @property
    def returncode(self) -> int | None:
        """The exit code once it is known to have ended, else None; 128 and a signal's number when one ended it."""
        code = self.status.get("exitCode")
        return self._returncode if self._returncode is not None else None if code is None else int(code)

    @blocking
    async def wait(self, timeout: float | None = None) -> int:  # noqa: ASYNC109 - the caller's bound, in seconds
        """Wait for the end and return the exit code.

        Args:
            timeout: Seconds to wait at most; no bound when None.

        Raises:
            NodusTimeout: When the time ran out; the process goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left_s = WAIT_S if deadline is None else max(0.0, min(WAIT_S, deadline - time.monotonic()))
            path = await self._path("output")
            query = {"after": 2**53, "wait": f"{left_s:.3f}s"}
            async with aclosing(self.client.api.lines("GET", path, query=query)) as lines:
                async for line in lines:
                    self._see(json.loads(line))
            if self._returncode is not None:
                return self._returncode
            if deadline is not None and time.monotonic() >= deadline:
                raise NodusTimeout(f"{self.name} did not end within {timeout:g} s", fix="It goes on; wait again.")

    async def follow(self, stream: str | None = None) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield stretches of output as they come, each with its stream, until the process ended.

        Args:
            stream: ``stdout`` or ``stderr``; both in the order in which they came when None.
        """
        after = 0
        path = await self._path("output")
        failures = 0
        while True:
            query = {"after": after, "stream": stream, "wait": f"{WAIT_S}s"}
            try:
                async with aclosing(self.client.api.lines("GET", path, query=query)) as lines:
                    async for line in lines:
                        found = json.loads(line)
                        failures = 0
                        if self._see(found):
                            return
                        data = base64.b64decode(found["data"])
                        after = int(found["offset"]) + len(data)
                        if data:
                            yield str(found.get("stream") or stream), data
            except ConnectionFailed:
                # The server went away in the middle of an answer: the next call goes on behind what came.
                failures += 1
                if failures > 5:
                    raise
                await pause(0.5)

    def _see(self, line: JsonObject) -> bool:
        if line.get("done"):
            self._returncode, self.reason = int(line["exitCode"]), line.get("reason")
            return True
        return False

    @blocking
    async def write(self, data: str | bytes) -> None:
        """Give it input, waiting for as long as it does not read what it was given before.

        Raises:
            Conflict: When it was started without ``stdin=True``.
        """
        content = data.encode() if isinstance(data, str) else data
        for start in range(0, len(content), STDIN_BYTES):
            await self._feed({"data": base64.b64encode(content[start : start + STDIN_BYTES]).decode()})

    @blocking
    async def close_stdin(self) -> None:
        """Let it see the end of its input."""
        await self._feed({"eof": True})

    async def _feed(self, body: dict[str, Any]) -> None:
        self._seq += 1
        # The number makes a repetition harmless: a lost answer, and a process that does not read yet, are asked again.
        sent = {**body, "seq": self._seq}
        await self.client.api.call("POST", await self._path("stdin"), body=sent, idempotency_key=new_key("stdin"))

    @blocking
    async def signal(self, name: str) -> None:
        """Send it a signal, such as ``SIGINT``; one that has ended stays as it is."""
        await self._signals({"signal": name})

    @blocking
    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal."""
        await self._signals({"resize": {"rows": rows, "cols": columns}})

    async def _signals(self, body: dict[str, Any]) -> None:
        path = await self._path("signals")
        await self.client.api.call("POST", path, body=body, idempotency_key=new_key("signals"))

    @blocking
    async def cancel(self) -> None:
        """Ask it to end, and see to it after a few seconds; returns at once."""
        await self._patch({"spec": {"state": "Cancelled"}})

    @blocking
    async def check(self) -> None:
        """Wait for the end.

        Raises:
            NodusError: When its exit code is not 0; the message has the end of its error output.
        """
        code = await self.wait.aio()
        if code:
            said = (await self.stderr.read_bytes.aio())[-500:].decode("utf-8", "replace").strip()
            raise NodusError(f"{self.name} exited with code {code}{f': {said}' if said else ''}")
