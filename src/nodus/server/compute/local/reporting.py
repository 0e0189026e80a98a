"""What a supervisor does about what its command reports: events, checkpoints, and the requests for these.

Standard library only. It holds together the parts that do the work: :mod:`telemetry`, :mod:`eventsocket` and
:mod:`checkpoints`.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from nodus.server.compute.local import proxy
from nodus.server.compute.local.attemptdir import AttemptDir, short_path
from nodus.server.compute.local.checkpoints import Checkpoints, Plan
from nodus.server.compute.local.eventsocket import Ask, EventSocket
from nodus.server.compute.local.httpmessages import Request
from nodus.server.compute.local.telemetry import OutputEvents, Telemetry

SOCKET_NAME = "events.sock"


class Reporting:
    """One attempt's reports.

    Args:
        attempt: Its directory; the socket is made in it.
        spec: The content of ``spec.json``.

    Attributes:
        fd: Readable when a request for a checkpoint came to something; read it with :meth:`clear`. It stays open to
            the end of the process: threads that serve the command may write to it late.
    """

    def __init__(self, attempt: AttemptDir, spec: dict[str, Any]) -> None:
        self._path = attempt.run / SOCKET_NAME
        self._telemetry = Telemetry(attempt.path)
        self._output = OutputEvents()
        plan = Plan.of(spec)
        self._checkpoints = Checkpoints(attempt.path, plan, self._answer, self._recorded)
        with short_path(self._path) as short:
            listener = proxy.listen(short)
        self._socket = EventSocket(listener, self._telemetry, self._answered)
        self._keeps = bool(plan.paths)
        self._interval_s = plan.interval_s
        self._due_at = None if plan.interval_s is None else time.monotonic() + plan.interval_s
        self._ask: Ask | None = None
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def start(self) -> None:
        """Begin to take events; returns at once."""
        self._socket.start()

    def finish(self) -> None:
        """Take what was sent until now; all of it is on the disk then."""
        self._socket.close()
        self._telemetry.close()

    def close(self) -> None:
        """End; :meth:`finish` was called, or nothing has begun."""
        self.finish()
        self._path.unlink(missing_ok=True)

    def output(self, data: bytes) -> None:
        """Look for events in the command's output."""
        if lines := self._output.feed(data):
            self._telemetry.take(lines)

    def clear(self) -> None:
        """Make :attr:`fd` wait for the next time."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def ask(self) -> Ask | None:
        """Ask the command for a checkpoint; None when it did not subscribe, or keeps nothing."""
        self._ask = self._socket.ask() if self._keeps else None
        return self._ask

    def ask_when_due(self) -> float | None:
        """Ask for a checkpoint if it is time for one; return how many seconds later it is, or None for never."""
        if self._interval_s is None or self._due_at is None:
            return None
        now = time.monotonic()
        if now >= self._due_at:
            self._due_at = now + self._interval_s
            self.ask()
        return self._due_at - now

    def serve(self, request: Request) -> tuple[int, dict[str, Any]] | None:
        """Answer what the command asks of its supervisor over HTTP; None for what is the server's to answer."""
        return self._checkpoints.serve(request)

    def _answer(self, request_id: str) -> bool:
        return self._socket.answer(request_id)

    def _answered(self, ask: Ask) -> None:
        try:
            if ask.state == "Ready":
                with contextlib.suppress(OSError):  # A full disk: what is saved is there, and only its record is not.
                    self._checkpoints.record("Requested", ask.id)
        finally:
            ask.settled = True
            self._wake()

    def _recorded(self, found: dict[str, Any]) -> None:
        self._telemetry.event({"type": "checkpoint", **found})
        ask = self._ask
        if ask is not None and found.get("requestId") == ask.id:
            ask.settled = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self.fd, 1)
