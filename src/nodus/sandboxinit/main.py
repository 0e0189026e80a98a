"""Process one of a Sandbox: starts what the supervisor asks for, reports how it ends, and touches files for it.

Runs inside the sandbox, as its uid, with a socket to the supervisor as its only tie to the outside. It holds no output:
processes get pipes whose other end is the supervisor's, and files travel through pipes of the server's. So a process
that floods its output fills a bounded pipe, and what one writes can't be told for another's.

Messages are JSON, one a packet, with descriptors beside them (``SCM_RIGHTS``)::

    supervisor -> here   {"op": "spawn", "id", "argv", "env", "cwd", "tty", "size"}   3 pipe ends; none with a tty
                         {"op": "signal", "id", "signal": 15}
                         {"op": "file", "id", "do": "read", "path", ...}      data and result pipe ends
    here -> supervisor   {"event": "ready"}
                         {"event": "started", "id", "pid"}                    with a terminal: its master end
                         {"event": "exited", "id", "code"}                    128 and the signal's number for signals

When the supervisor goes away, this process ends, and the kernel ends everything in the sandbox with it. SIGTERM
asks everybody to end first; a process of the sandbox that sends it shuts its own sandbox down. It can't look into this
one (which is not dumpable) nor kill it (which is process one of its namespace).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from nodus.sandboxinit import files, spawning

MAX_MESSAGE_BYTES = 192 * 1024
MAX_DESCRIPTORS = 3
MAIN = "main"
"""Id of the Sandbox's own command, whose end is the end of the Sandbox."""
_PR_SET_DUMPABLE = 4


class Init:
    """The loop of process one.

    Args:
        control: The socket to the supervisor (sequenced packets).
        command: The Sandbox's own command; empty for none.
    """

    def __init__(self, control: socket.socket, command: list[str]) -> None:
        self._control = control
        self._command = command
        self._ids: dict[int, str] = {}
        self._pids: dict[str, int] = {}
        self._files: set[int] = set()
        """Processes that read or write files for the server."""
        self._ending = False
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)

    def run(self) -> int:
        """Serve until told to end, or until the command ends; return the exit code."""
        signal.set_wakeup_fd(self._wake_write)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._on_term)
        if self._command:
            self._add(MAIN, spawning.spawn(self._command, os.environ, os.getcwd(), None))
        self._send({"event": "ready"})
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                code = self._reap()
                if code is not None:
                    return code
            if self._control.fileno() in ready and not self._receive():
                return 1

    def _on_term(self, number: int, frame: Any) -> None:
        self._ending = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGTERM)
            # Interactive shells ignore SIGTERM and leave at the end of their terminal.
            os.kill(-1, signal.SIGHUP)

    def _reap(self) -> int | None:
        """Collect what ended; return the exit code when that is the end of the Sandbox."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return 128 + signal.SIGTERM if self._ending else None
            if pid == 0:
                return None
            if os.WIFSTOPPED(status):
                self._stopped(pid)
                continue
            self._files.discard(pid)
            name = self._ids.pop(pid, None)
            if name is None:
                continue  # An orphan of a process, which became ours.
            self._pids.pop(name, None)
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else 128 - code
            if name == MAIN:
                return code
            self._send({"event": "exited", "id": name, "code": code})

    def _stopped(self, pid: int) -> None:
        """End a process of ours that the Sandbox's user froze: it would keep the Sandbox busy for ever."""
        if pid in self._files:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _receive(self) -> bool:
        """Do what one message asks for; False when the supervisor is gone."""
        fds: list[int] = []
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
            if not data:
                return False
            self._obey(json.loads(data), fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _obey(self, message: dict[str, Any], fds: list[int]) -> None:
        name = str(message["id"])
        match message["op"]:
            case "spawn":
                self._spawn(name, message, fds)
            case "signal":
                self._signal(name, int(message["signal"]))
            case "file":
                try:
                    pid = files.fork(message, fds[0], fds[1])
                    self._files.add(pid)
                    self._add(name, pid)
                except OSError as error:  # The sandbox is out of processes.
                    files.refuse(fds[1], error)
                    self._send({"event": "exited", "id": name, "code": 1})

    def _signal(self, name: str, number: int) -> None:
        pid = self._pids.get(name)
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                # The whole group: a shell's children too, as a terminal's Ctrl+C does.
                os.killpg(pid, number)
            except ProcessLookupError:
                os.kill(pid, number)  # Forked just now, and not yet the leader of its group.

    def _spawn(self, name: str, message: dict[str, Any], fds: list[int]) -> None:
        env = {**os.environ, **message["env"]}
        try:
            if not message["tty"]:
                pid = spawning.spawn(message["argv"], env, message["cwd"], fds)
                self._add(name, pid)
                self._send({"event": "started", "id": name, "pid": pid})
                return
            pid, master = spawning.spawn_with_terminal(message["argv"], env, message["cwd"], message["size"])
        except OSError as error:
            self._send({"event": "exited", "id": name, "code": 126, "message": f"{error.strerror}"})
            return
        try:
            self._add(name, pid)
            self._send({"event": "started", "id": name, "pid": pid}, [master])
        finally:
            os.close(master)

    def _add(self, name: str, pid: int) -> None:
        self._ids[pid], self._pids[name] = name, pid

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], fds or [])


def main() -> None:
    """Run as process one: ``main.py FD [COMMAND...]``; the descriptor is the socket to the supervisor."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    code = 1
    with contextlib.suppress(OSError):  # The supervisor is gone: nobody is left to tell.
        code = Init(control, sys.argv[2:]).run()
    sys.stdout.flush()
    os._exit(code)
