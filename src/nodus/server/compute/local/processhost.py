"""The supervisor's half of a Sandbox: processes and files inside it, for the server that asks over a socket.

Standard library only; runs in the supervisor on a thread of its own, and survives the server. Inside the sandbox,
process one (``nodus.sandboxinit``) starts what is asked for; their pipes end here, and what comes out of them goes to
disk (``processlog``). Nothing that comes out of the sandbox is held in memory beyond a block, and nothing of it is
believed: output is bytes, and messages of process one are checked against what was asked. One that makes no sense ends
the sandbox.

The server connects to ``exec.sock`` in the attempt's directory and sends JSON lines, each answered by one::

    {"op": "exec", "id", "argv", "env", "cwd", "tty", "stdin", "timeoutSeconds", "size": [rows, columns]}   once per id
    {"op": "wait", "id", "after": offset, "seconds", "reader"}   answered at further output, or the end, or in time
    {"op": "stdin", "id", "data": base64, "ends", "seq"}
    {"op": "signal", "id", "signal"}    {"op": "resize", "id", "size"}    {"op": "stop", "id", "reason", "graceSeconds"}
    {"op": "file", "do": "get"|"put"|"delete", ...}     with two pipe ends, which go to process one

Who waits for output is a reader, by the name that it gives itself: a process whose readers fall behind is slowed down,
not cut.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from nodus.server.compute.local.activity import Activity
from nodus.server.compute.local.attemptdir import EXITED, RUNNING, AttemptDir
from nodus.server.compute.local.hostconnection import HostConnection, Waiting
from nodus.server.compute.local.hostedprocess import KILL_PATIENCE_S, HostedProcess
from nodus.server.compute.local.processlog import ProcessLog

MAX_RUNNING = 64
MAX_CONNECTIONS = 512
MAX_FILES = 32
MAX_MESSAGE_BYTES = 180 * 1024
MAX_QUEUED = 256
TICK_S = 1.0
_SOCKET_BUFFER_BYTES = 1 << 20


class ProcessHost:
    """Runs and watches the processes of one Sandbox.

    Args:
        attempt: Its directory.
        agent: The socket to process one.
        listener: Where the server connects.
        owner: Host uid and gid of the sandbox's processes.
        notify: Tells the server that something changed.
        broken: Ends the sandbox; called when process one makes no sense or does not obey.
    """

    def __init__(
        self,
        attempt: AttemptDir,
        agent: socket.socket,
        listener: socket.socket,
        *,
        owner: tuple[int, int],
        notify: Callable[[], None],
        broken: Callable[[str], None],
    ) -> None:
        self._attempt = attempt
        self._agent = agent
        self._listener = listener
        self._owner = owner
        self._notify = notify
        self._broken = broken
        self._processes: dict[str, HostedProcess] = {}
        self._files: set[str] = set()
        self._connections: set[HostConnection] = set()
        self._to_agent: deque[tuple[bytes, list[int]]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-host", daemon=True)
        self._activity = Activity(attempt.path)
        self._count = 0

    def start(self) -> None:
        """Begin to serve; returns at once."""
        self._agent.setblocking(False)
        self._agent.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        self._listener.setblocking(False)
        self._selector.register(self._agent, selectors.EVENT_READ, self._on_agent)
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_connect)
        self._selector.register(self._wake_read, selectors.EVENT_READ, lambda mask: None)
        self._activity.begin()
        self._thread.start()

    def close(self) -> None:
        """Record the end of every process; call it when nothing of the sandbox is left. Safe from other threads."""
        self._ends.set()
        os.write(self._wake_write, b"x")
        self._thread.join(30.0)

    # The loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                for key, mask in self._selector.select(self._tick()):
                    key.data(mask)
        except Exception as error:
            self._broken(f"the process host failed: {type(error).__name__}: {error}")
            raise
        finally:
            self._end_all()

    def _tick(self) -> float | None:
        """Do what time brings; return how long there is nothing to do."""
        now = time.monotonic()
        for process in list(self._processes.values()):
            self._watch_clock(process, now)
            self._flow(process, now)
            if process.over(now):
                self._finish(process)
        for connection in [connection for connection in self._connections if connection.waiting is not None]:
            self._answer_waiting(connection)
        attended = any(p.readers for p in self._processes.values() if p.tty)
        self._activity.settle(bool(self._files) or any(not p.tty for p in self._processes.values()) or attended)
        return self._next_due(now)

    def _next_due(self, now: float) -> float | None:
        due = [c.waiting.until for c in self._connections if c.waiting is not None]
        for process in self._processes.values():
            due += [m for m in (process.deadline, process.kill_at, process.given_up_at) if m is not None]
            # A process that ended is looked at soon: what it left in its pipes settles within a fraction of a second.
            due.append(now + (TICK_S if process.exit_code is None else 0.05))
        if self._activity.pending:
            due.append(now + TICK_S)
        return max(0.0, min(due) - now) if due else None

    def _watch_clock(self, process: HostedProcess, now: float) -> None:
        if process.deadline is not None and now >= process.deadline:
            process.deadline = None
            process.reason = process.reason or "DeadlineExceeded"
            self._kill(process, now)
        if process.kill_at is not None and now >= process.kill_at:
            self._kill(process, now)
        if process.given_up_at is not None and now >= process.given_up_at:
            process.given_up_at = None
            self._broken("a process could not be ended")

    def _kill(self, process: HostedProcess, now: float) -> None:
        process.kill_at = None
        process.given_up_at = now + KILL_PATIENCE_S
        self._send({"op": "signal", "id": process.key, "signal": int(signal.SIGKILL)})

    def _end_all(self) -> None:
        """The sandbox is gone: what still ran ended with it."""
        for process in list(self._processes.values()):
            now = time.monotonic()
            for fd in list(process.outputs):
                while _readable(fd) and process.read(fd, now):
                    pass  # Every writer is dead: the end is near.
            if process.exit_code is None:
                process.reason = process.reason or "SandboxStopped"
                process.exited(128 + signal.SIGKILL, None, now)
            self._finish(process)
        for connection in list(self._connections):
            self._disconnect(connection)
        for _, fds in self._to_agent:
            for fd in fds:
                os.close(fd)
        self._listener.close()
        self._agent.close()

    # Process one --------------------------------------------------------------------------------------------------

    def _on_agent(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush()
        if not mask & selectors.EVENT_READ:
            return
        try:
            data, fds, _, _ = socket.recv_fds(self._agent, MAX_MESSAGE_BYTES, 4)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        try:
            if not data:
                self._selector.unregister(self._agent)  # The sandbox ends; the supervisor sees it too.
                return
            message = json.loads(data)
            self._hear(message, fds)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._broken(f"process one of the sandbox makes no sense: {error}")
        finally:
            for fd in fds:
                os.close(fd)

    def _hear(self, message: dict[str, Any], fds: list[int]) -> None:
        event, now = message["event"], time.monotonic()
        if event == "ready":
            return
        key = message["id"]
        if event == "exited" and key in self._files:
            self._files.discard(key)
            return
        process = self._processes[key]
        if event == "started":
            process.started(int(message["pid"]))
            if fds:
                master = fds.pop()
                if not process.take_terminal(master):
                    os.close(master)
                    raise ValueError("a terminal that is none")
                self._listen_to(process)
            process.record(RUNNING)
        elif event == "exited" and process.exit_code is None:
            said = message.get("message")
            process.exited(int(message["code"]) & 0xFF, str(said)[:500] if said else None, now)
            self._unwatch_stdin(process)
            process.close_stdin()
        else:
            raise ValueError(f"unexpected event {str(event)[:40]!r}")

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send a message to process one, now or as soon as it reads; the descriptors are closed afterwards."""
        self._to_agent.append((json.dumps(message).encode(), fds or []))
        self._flush()

    def _flush(self) -> None:
        while self._to_agent:
            data, fds = self._to_agent[0]
            try:
                socket.send_fds(self._agent, [data], fds)
            except BlockingIOError:
                break
            except OSError:
                pass  # The sandbox ends.
            self._to_agent.popleft()
            for fd in fds:
                os.close(fd)
        with contextlib.suppress(KeyError, ValueError):
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._to_agent else 0)
            self._selector.modify(self._agent, events, self._on_agent)

    # Streams ------------------------------------------------------------------------------------------------------

    def _listen_to(self, process: HostedProcess) -> None:
        for fd in process.outputs:
            self._selector.register(fd, selectors.EVENT_READ, lambda mask, fd=fd: self._on_output(process, fd))

    def _on_output(self, process: HostedProcess, fd: int) -> None:
        if fd not in process.outputs or process.paused:
            return  # An event from before this descriptor was closed.
        if not process.read(fd, time.monotonic()):
            self._selector.unregister(fd)
            process.end_stream(fd)
        self._answer_readers(process)

    def _flow(self, process: HostedProcess, now: float) -> None:
        if not process.decide_flow(now):
            return
        if process.paused:
            for fd in process.outputs:
                self._selector.unregister(fd)
        else:
            self._listen_to(process)

    def _watch_stdin(self, process: HostedProcess) -> None:
        if process.stdin is None or not process.wants_to_write:
            return
        with contextlib.suppress(KeyError):  # watched already
            self._selector.register(process.stdin, selectors.EVENT_WRITE, lambda mask: self._on_stdin(process))

    def _on_stdin(self, process: HostedProcess) -> None:
        self._unwatch_stdin(process)
        process.write()
        self._watch_stdin(process)

    def _unwatch_stdin(self, process: HostedProcess) -> None:
        if process.stdin is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(process.stdin)

    def _finish(self, process: HostedProcess) -> None:
        self._unwatch_stdin(process)
        for fd in process.outputs:
            with contextlib.suppress(KeyError):
                self._selector.unregister(fd)
        process.record(EXITED)
        process.close()
        del self._processes[process.key]
        for connection in list(self._connections):
            if connection.waiting is not None and connection.waiting.key == process.key:
                self._answer_waiting(connection)
        self._notify()

    # The server ---------------------------------------------------------------------------------------------------

    def _on_connect(self, mask: int) -> None:
        with contextlib.suppress(OSError):
            link, _ = self._listener.accept()
            if len(self._connections) >= MAX_CONNECTIONS:
                link.close()
                return
            connection = HostConnection(link)
            self._connections.add(connection)
            self._selector.register(link, selectors.EVENT_READ, lambda mask: self._on_request(connection))

    def _disconnect(self, connection: HostConnection) -> None:
        self._connections.discard(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.link)
        connection.close()

    def _on_request(self, connection: HostConnection) -> None:
        try:
            requests = connection.receive()
        except (OSError, ValueError):
            self._disconnect(connection)
            return
        for request in requests:
            self._activity.touch()
            try:
                answer = self._answer(connection, request)
            except (KeyError, TypeError, ValueError) as error:
                answer = {"error": "BadRequest", "message": f"{type(error).__name__}: {error}"}
            except OSError as error:
                answer = {"error": "Unavailable", "message": error.strerror or str(error)}
            if answer is not None and not connection.reply(answer):
                self._disconnect(connection)
                return

    def _answer(self, connection: HostConnection, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a request; None when it comes later."""
        if request["op"] == "exec":
            return self._exec(request)
        if request["op"] == "file":
            return self._file(connection, request)
        key = str(request["id"])
        process = self._processes.get(key)
        if request["op"] == "wait":
            until = time.monotonic() + min(3600.0, float(request["seconds"]))
            connection.waiting = Waiting(key, int(request["after"]), until, str(request.get("reader") or ""))
            return self._look_for(connection, process)
        if process is None:
            return {"error": "NotRunning"}
        return self._control(process, request)

    def _control(self, process: HostedProcess, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "stdin":
                data = base64.b64decode(request.get("data") or "", validate=True)
                seq = request.get("seq")
                word = process.feed(data, ends=bool(request.get("ends")), seq=None if seq is None else int(seq))
                self._on_stdin(process)
                return {"error": word} if word else {}
            case "signal":
                number = int(request["signal"])
                if not process.signal_foreground(number):
                    self._send({"op": "signal", "id": process.key, "signal": number})
            case "resize":
                process.resize(*(int(number) for number in request["size"]))
            case "stop":
                if process.kill_at is None and process.given_up_at is None:
                    process.reason = process.reason or str(request["reason"])
                    process.kill_at = time.monotonic() + float(request["graceSeconds"])
                    for number in (signal.SIGTERM, signal.SIGHUP) if process.tty else (signal.SIGTERM,):
                        self._send({"op": "signal", "id": process.key, "signal": int(number)})
            case other:
                return {"error": "BadRequest", "message": f"unknown request {str(other)[:40]!r}"}
        return {}

    def _exec(self, request: dict[str, Any]) -> dict[str, Any]:
        key, tty = str(request["id"]), bool(request["tty"])
        directory = self._attempt.processes / key
        if key in self._processes or directory.exists():
            return {}  # Asked for before: a process is started at most once.
        if len(self._processes) >= MAX_RUNNING:
            return {"error": "TooMany", "message": f"{MAX_RUNNING} processes run in the sandbox already"}
        if len(self._to_agent) >= MAX_QUEUED:
            return {"error": "Unavailable", "message": "the sandbox does not answer"}
        asked = {name: request[name] for name in ("argv", "env", "cwd", "size")}
        spawn = {"op": "spawn", "id": key, "tty": tty, **asked}
        if len(json.dumps(spawn)) > MAX_MESSAGE_BYTES:
            return {"error": "TooLarge", "message": f"command and environment are over {MAX_MESSAGE_BYTES >> 10} KiB"}
        process = None
        try:
            log, timeout_s = ProcessLog(directory), request.get("timeoutSeconds")
            process = HostedProcess(key, log, tty=tty, timeout_s=timeout_s, now=time.monotonic())
            inner = [] if tty else process.make_pipes(self._owner, stdin=bool(request["stdin"]))
        except OSError:
            if process is not None:
                process.close()
            shutil.rmtree(directory, ignore_errors=True)  # It was not started, and may be asked for again.
            raise
        self._processes[key] = process
        self._listen_to(process)
        process.record(RUNNING)
        self._send(spawn, inner)
        return {}

    def _file(self, connection: HostConnection, request: dict[str, Any]) -> dict[str, Any]:
        fds = connection.take_descriptors(2)
        if len(self._files) >= MAX_FILES or len(self._to_agent) >= MAX_QUEUED:
            for fd in fds:
                os.close(fd)
            return {"error": "Unavailable", "message": f"{MAX_FILES} files of the sandbox are in use"}
        self._count += 1
        key = f"file-{self._count}"
        self._files.add(key)
        self._send({**request, "op": "file", "id": key}, fds)
        return {}

    # Readers ------------------------------------------------------------------------------------------------------

    def _look_for(self, connection: HostConnection, process: HostedProcess | None) -> dict[str, Any] | None:
        """Return what a waiting reader is to know, or None when there is nothing new yet."""
        waiting = connection.waiting
        assert waiting is not None
        if process is None:
            connection.waiting = None
            return {"ended": True}
        now = time.monotonic()
        process.saw(waiting.reader, waiting.after, now)
        if process.log.total_bytes > waiting.after or now >= waiting.until:
            connection.waiting = None
            return {"end": process.log.total_bytes, "ended": False}
        return None

    def _answer_readers(self, process: HostedProcess) -> None:
        for connection in list(self._connections):
            if connection.waiting is not None and connection.waiting.key == process.key:
                self._answer_waiting(connection)

    def _answer_waiting(self, connection: HostConnection) -> None:
        assert connection.waiting is not None
        answer = self._look_for(connection, self._processes.get(connection.waiting.key))
        if answer is not None and not connection.reply(answer):
            self._disconnect(connection)


def _readable(fd: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(0))
