"""A server's connection to the process host of a Sandbox: JSON lines in and out, descriptors beside them.

Standard library only; used by ``processhost``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any, NamedTuple

MAX_LINE_BYTES = 2 << 20
MAX_DESCRIPTORS = 16


class Waiting(NamedTuple):
    """What a reader waits for: output of a process after an offset, until a moment (monotonic seconds)."""

    key: str
    after: int
    until: float
    reader: str


class HostConnection:
    """One connection.

    Args:
        link: Its socket.
    """

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self.link = link
        self.waiting: Waiting | None = None
        self._buffer = b""
        self._descriptors: list[int] = []

    def receive(self) -> list[dict[str, Any]]:
        """Return the requests that are whole by now.

        Raises:
            ConnectionError: When the server closed it.
            ValueError: When what came is no request.
        """
        try:
            data, fds, _, _ = socket.recv_fds(self.link, 1 << 18, 4)
        except BlockingIOError:
            return []
        self._descriptors += fds
        if not data:
            raise ConnectionError("closed")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE_BYTES or len(self._descriptors) > MAX_DESCRIPTORS:
            raise ValueError("the request is too large")
        return [json.loads(line) for line in lines]

    def take_descriptors(self, count: int) -> list[int]:
        """Return the oldest descriptors that came along; the caller closes them.

        Raises:
            ValueError: When there are fewer.
        """
        if len(self._descriptors) < count:
            raise ValueError("the request lacks its descriptors")
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return taken

    def reply(self, answer: dict[str, Any]) -> bool:
        """Send an answer; False when the server does not read any more."""
        line = json.dumps(answer).encode() + b"\n"
        try:
            return self.link.send(line) == len(line)
        except OSError:
            return False

    def close(self) -> None:
        """Close it, and the descriptors that nobody asked for."""
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors = []
        with contextlib.suppress(OSError):
            self.link.close()
