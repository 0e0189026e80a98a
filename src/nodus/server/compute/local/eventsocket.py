"""``/run/nodus/events.sock``: where a command reports, and where it is asked to save a checkpoint.

One thread in the supervisor; standard library only. Programs connect as often as they like, up to a bound, and send
lines; what they say is :mod:`telemetry`'s. A connection that has sent ``checkpoint.subscribe`` is sent
``checkpoint.request`` lines, and its process answers with ``checkpoint.ready`` over any connection of its own.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Literal

from nodus.server.compute.local.telemetry import Bucket, Lines, Malformed, Telemetry, read_object

MAX_CONNECTIONS = 64
READ_BYTES = 1 << 16
TICK_S = 0.1
"""How long lines wait at most that could not be looked at when they came."""
CONTROLS_PER_S, CONTROLS_BURST = 20.0, 100.0
_CREDENTIALS = struct.Struct("3i")

AskState = Literal["Waiting", "Ready", "Gone"]
"""Gone: every process that was asked went away, or none answered and none is left."""


class Ask:
    """A request for a checkpoint, and who has answered it.

    Args:
        id_: What the answers name.
        asked: Processes that it was sent to.

    Attributes:
        settled: Whether nothing more comes of it: it is recorded, or never will be.
    """

    def __init__(self, id_: str, asked: set[int]) -> None:
        self.id = id_
        self.waiting = set(asked)
        self.answered = self.settled = False

    @property
    def state(self) -> AskState:
        """Where it stands: ready when all who were asked and are still there have answered, and somebody has."""
        if self.waiting:
            return "Waiting"
        return "Ready" if self.answered else "Gone"


class _Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lines = Lines()
        self.subscribed = False
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid = int(_CREDENTIALS.unpack(credentials)[0])


class EventSocket:
    """Serves one attempt's events socket.

    Args:
        listener: A listening unix socket.
        telemetry: Takes the lines.
        on_answer: Called, on this socket's thread, when a request's state is no longer ``Waiting``.
    """

    def __init__(self, listener: socket.socket, telemetry: Telemetry, on_answer: Callable[[Ask], None]) -> None:
        self._listener = listener
        self._telemetry = telemetry
        self._on_answer = on_answer
        self._connections: dict[int, _Connection] = {}
        self._controls = Bucket(CONTROLS_PER_S, CONTROLS_BURST)
        self._lock = threading.Lock()
        self._ask: Ask | None = None
        self._numbers = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Begin to serve; returns at once."""
        self._listener.setblocking(False)
        self._thread.start()

    def close(self) -> None:
        """Read what was sent, then end."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)
        self._listener.close()

    def ask(self) -> Ask | None:
        """Ask whoever subscribed to save a checkpoint; None when nobody is there to ask.

        A request that waits for its answer is returned again: one at a time.
        """
        with self._lock:
            if self._ask is not None and self._ask.state == "Waiting":
                return self._ask
            self._numbers += 1
            id_ = f"checkpoint-{self._numbers}"
            line = json.dumps({"type": "checkpoint.request", "requestId": id_}).encode() + b"\n"
            subscribers = [connection for connection in self._connections.values() if connection.subscribed]
            asked = {connection.pid for connection in subscribers if _send(connection, line)}
            self._ask = Ask(id_, asked) if asked else None
            return self._ask

    def answer(self, request_id: str) -> bool:
        """Take an answer that came another way, for all who were asked; False when nothing of that id was asked."""
        with self._lock:
            ask = self._ask
            if ask is None or ask.id != request_id:
                return False
            ask.waiting, ask.answered = set(), True
            return True

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._stopped.is_set():
                self._serve(selector, TICK_S if self._telemetry.waiting else 2 * TICK_S)
                if self._telemetry.waiting:
                    self._telemetry.drain()
            # The command has ended: what is in the sockets is all there will be.
            for _ in range(MAX_CONNECTIONS * 8):
                if not self._serve(selector, 0):
                    break
            for connection in self._connections.values():
                connection.sock.close()

    def _serve(self, selector: selectors.BaseSelector, wait_s: float) -> bool:
        ready = selector.select(wait_s)
        for key, _ in ready:
            if key.fileobj is self._listener:
                self._accept(selector)
            else:
                self._read(selector, self._connections[key.fd])
        return bool(ready)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            self._stopped.wait(TICK_S)  # No descriptor is left for it: it waits in the backlog.
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            sock.close()
            return
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ)
        with self._lock:
            self._connections[sock.fileno()] = _Connection(sock)

    def _read(self, selector: selectors.BaseSelector, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(selector, connection)
            return
        before = connection.lines.skipped
        lines = connection.lines.feed(data)
        if b'"checkpoint.' in data or any(b'"checkpoint.' in line for line in lines[:1]):
            lines = [line for line in lines if not (b'"checkpoint.' in line and self._control(connection, line))]
        self._telemetry.take(lines, oversized=connection.lines.skipped - before)

    def _control(self, connection: _Connection, line: bytes) -> bool:
        """Take a line about checkpoints; False when it is another one."""
        if not self._controls.take():
            return True
        try:
            message = read_object(line)
        except Malformed:
            return False
        match message.get("type"):
            case "checkpoint.subscribe":
                with self._lock:
                    connection.subscribed = True
            case "checkpoint.ready":
                self._answered(connection.pid, message.get("requestId"))
            case _:
                return False
        return True

    def _answered(self, pid: int, request_id: Any) -> None:
        with self._lock:
            ask = self._ask
            if ask is None or ask.id != request_id or pid not in ask.waiting:
                return
            ask.waiting.discard(pid)
            ask.answered = True
            over = ask.state != "Waiting"
        if over:
            self._on_answer(ask)

    def _drop(self, selector: selectors.BaseSelector, connection: _Connection) -> None:
        selector.unregister(connection.sock)
        with self._lock:
            del self._connections[connection.sock.fileno()]
            connection.sock.close()
            left = {other.pid for other in self._connections.values() if other.subscribed}
            ask = self._ask
            if ask is None or not ask.waiting or not connection.subscribed:
                return
            ask.waiting &= left
            if ask.waiting:
                return
        self._on_answer(ask)


def _send(connection: _Connection, line: bytes) -> bool:
    """Send a line at once or not at all: nobody waits for a program that does not read."""
    with contextlib.suppress(OSError):
        return connection.sock.send(line, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(line)
    return False
