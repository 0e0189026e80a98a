"""Listening for requests to save a checkpoint: one connection and one thread a process."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import traceback
from collections.abc import Callable

from nodus.runtime.sending import connect, emit, in_nodus


class Subscription:
    """What was asked for, and is not answered yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: str | None = None
        self._callback: Callable[[], None] | None = None
        self._connection: socket.socket | None = None

    @property
    def pending(self) -> str | None:
        """The id of the newest request that waits for its answer."""
        with self._lock:
            return self._pending

    def listen(self, callback: Callable[[], None] | None = None) -> None:
        """Begin to listen, unless this process does; ``callback`` answers requests from now on, on a thread."""
        with self._lock:
            if callback is not None:
                self._callback = callback
            if self._connection is not None or not in_nodus():
                return
            connection = connect()
            if connection is None:
                return
            try:
                connection.settimeout(None)
                connection.sendall(b'{"type":"checkpoint.subscribe"}\n')
            except OSError:
                connection.close()
                return
            self._connection = connection
        threading.Thread(target=self._run, args=(connection,), name="nodus-checkpoints", daemon=True).start()

    def close(self) -> None:
        """Listen no longer: whoever stops the run does not wait for a checkpoint then."""
        with self._lock:
            self._pending = None
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)

    def answer(self, request_id: str | None) -> None:
        """Say that what a request asked for is saved; the pending one when none is named."""
        with self._lock:
            answered = request_id or self._pending
            if self._pending == answered:
                self._pending = None
        if answered is not None:
            emit({"type": "checkpoint.ready", "requestId": answered})

    def _run(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
            for line in lines:
                with contextlib.suppress(ValueError, AttributeError):
                    message = json.loads(line)
                    if message.get("type") == "checkpoint.request":
                        self._asked(str(message.get("requestId")))
        with self._lock:
            self._connection = None

    def _asked(self, request_id: str) -> None:
        with self._lock:
            self._pending, callback = request_id, self._callback
        if callback is None:
            return
        try:
            callback()
        except Exception:  # noqa: BLE001 - the program's own fault ends neither the program nor this thread
            sys.stderr.write("nodus: the checkpoint callback failed; no checkpoint was saved\n")
            traceback.print_exc()
            return
        self.answer(request_id)
