"""Sending events to the run's supervisor; without its socket, by lines of output that it looks for."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

EVENTS_SOCKET = "/run/nodus/events.sock"
SEND_TIMEOUT_S = 2.0
RETRY_S = 1.0
"""How long after a failure the socket is tried again."""


def in_nodus() -> bool:
    """Tell whether this program runs in Nodus."""
    return bool(os.environ.get("NODUS_ATTEMPT"))


def socket_path() -> str:
    """Return where the events socket is."""
    return os.environ.get("NODUS_EVENTS_SOCKET") or EVENTS_SOCKET


def emit(event: Mapping[str, Any]) -> None:
    """Send an event; outside of a run nothing happens, and a failure is no error of the program's.

    Args:
        event: What JSON takes, with a ``type``; an ``id`` that makes a second sending harmless is added.
    """
    if in_nodus():
        _SENDER.send(event)


class Sender:
    """One connection a process, made when it is needed."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Have no connection: also after a fork, which may have come while another thread was sending."""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._again_at = 0.0
        self._prefix, self._numbers = f"evt-{secrets.token_hex(5)}", itertools.count(1)

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event over the socket, or print it where there is none."""
        with self._lock:
            line = encode({"id": f"{self._prefix}-{next(self._numbers)}", **event})
            if self._socket is None and time.monotonic() >= self._again_at:
                self._socket = connect()
            if self._socket is None:
                self._again_at = time.monotonic() + RETRY_S
                self._print(line)
                return
            try:
                self._socket.sendall(line + b"\n")
            except OSError:
                # A half-sent line ends with the connection. The event is lost; the program is not held up for it.
                self._socket.close()
                self._socket, self._again_at = None, time.monotonic() + RETRY_S

    def close(self) -> None:
        """Let go of the connection; the next event makes another."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = None

    def _print(self, line: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write(f"nodus.event {line.decode()}\n")
            sys.stdout.flush()


def connect() -> socket.socket | None:
    """Return a connection to the events socket, or None when there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(SEND_TIMEOUT_S)
    try:
        connection.connect(socket_path())
    except OSError:
        connection.close()
        return None
    return connection


def encode(event: Mapping[str, Any]) -> bytes:
    """Return an event as one line of JSON; what JSON lacks (NaN, infinity, a circle) becomes null."""
    try:
        text = json.dumps(event, separators=(",", ":"), default=plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps({name: _taken(value) for name, value in event.items()}, separators=(",", ":"), default=plain)
    return text.encode("utf-8", "replace")


def plain(value: Any) -> Any:
    """Return a scalar of another library as a number, anything else as text."""
    # Whatever a foreign object does: its text is better than no event, and null than an error.
    with contextlib.suppress(Exception):
        item = getattr(value, "item", None)
        if callable(item) and isinstance(number := item(), int | float | bool):
            return _taken(number)
    with contextlib.suppress(Exception):
        return str(value)
    return None


def _taken(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    try:
        json.dumps(value, default=plain)
    except (TypeError, ValueError, RecursionError):
        return None
    return value


_SENDER = Sender()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SENDER.begin)
