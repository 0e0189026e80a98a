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
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._again_at = 0.0

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event over the socket, or print it where there is none."""
        with self._lock:
            if self._pid != os.getpid():
                # Also after a fork: the parent's connection and ids are the parent's.
                self._pid, self._socket, self._again_at = os.getpid(), None, 0.0
                self._prefix, self._numbers = f"evt-{secrets.token_hex(5)}", itertools.count(1)
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
    """Return an event as one line of JSON; a number that JSON lacks (NaN, infinity) becomes null."""
    try:
        text = json.dumps(event, separators=(",", ":"), default=plain, allow_nan=False)
    except ValueError:
        finite = {name: _finite(value) for name, value in event.items()}
        text = json.dumps(finite, separators=(",", ":"), default=plain)
    return text.encode("utf-8", "replace")


def plain(value: Any) -> Any:
    """Return a scalar of another library as a number, anything else as text."""
    item = getattr(value, "item", None)
    with contextlib.suppress(Exception):  # whatever a foreign object does, its text is better than no event
        if callable(item) and isinstance(number := item(), int | float | bool):
            return _finite(number)
    return str(value)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


_SENDER = Sender()
