"""A warm process that forks supervisors: a fork takes 2 ms, a fresh interpreter 40 or more.

Standard library only. The server starts one zygote (``python -I -S``) with a socket as its standard input and writes an
attempt's directory to it, one JSON line each; the zygote forks the supervisor of that attempt and answers with its
process id. The supervisor leads a session of its own. When the server goes away, however it does, the zygote sees the
end of its input and exits; the supervisors stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[4]
"""The directory that holds the ``nodus`` package."""

_START = "import sys; sys.path.insert(0, sys.argv[1]); from nodus.server.compute.local.zygote import main; main()"


class Zygote:
    """The server's handle on its zygote; starts it when needed and again when it died. Safe to use from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def spawn(self, directory: Path) -> int:
        """Fork the supervisor of an attempt and return its process id.

        Args:
            directory: The attempt's directory, with its spec written.

        Raises:
            OSError: When no process can be started.
        """
        with self._lock:
            for last_try in (False, True):
                try:
                    return self._ask(directory)
                except (OSError, ValueError):
                    self._stop()
                    if last_try:
                        raise
        raise AssertionError("unreachable")

    def warm(self) -> None:
        """Start the zygote now, so that the first attempt does not wait for it."""
        with self._lock:
            self._ensure()

    def close(self) -> None:
        """Let the zygote exit. Supervisors are not touched."""
        with self._lock:
            self._stop()

    def _ask(self, directory: Path) -> int:
        link = self._ensure()
        link.sendall(json.dumps({"dir": str(directory)}).encode() + b"\n")
        line = _read_line(link)
        reply = json.loads(line)
        if "error" in reply:
            raise OSError(f"the supervisor can't be started: {reply['error']}")
        return int(reply["pid"])

    def _ensure(self) -> socket.socket:
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket
        self._stop()
        ours, theirs = socket.socketpair()
        with theirs:
            # -E and -s are part of -I: nothing in the environment or the user's home decides what a supervisor runs.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, str(PACKAGE_ROOT)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
                cwd="/",
            )
        ours.settimeout(20)
        self._socket = ours
        return ours

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._process = None


def _read_line(link: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        block = link.recv(65536)
        if not block:
            raise ConnectionError("the zygote ended")
        data += block
    return data


def main() -> None:
    """Fork supervisors until the server goes away. Runs as the zygote."""
    from nodus.server.compute.local import supervisor

    # Supervisors that end are reaped by the kernel; each child restores the default before it starts anything.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = socket.socket(fileno=0)
    buffer = b""
    while True:
        block = link.recv(65536)
        if not block:
            return
        *lines, buffer = (buffer + block).split(b"\n")
        for line in lines:
            link.sendall(json.dumps(_fork(supervisor.run, json.loads(line)["dir"], link)).encode() + b"\n")


def _fork(run: Callable[[str], int], directory: str, link: socket.socket) -> dict[str, object]:
    try:
        pid = os.fork()
    except OSError as error:
        return {"error": str(error)}
    if pid:
        return {"pid": pid}
    code = 1
    try:
        link.close()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _plug_standard_streams(directory)
        code = run(directory)
    except BaseException:  # noqa: BLE001 - the last frame of a process: the trace goes to the attempt's own log
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _plug_standard_streams(directory: str) -> None:
    """Point standard input at nothing and the outputs at the supervisor's own log."""
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(os.path.join(directory, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for fd in (null, log):
        if fd > 2:
            os.close(fd)
