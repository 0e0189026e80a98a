"""The supervisor: one process per attempt that starts the command in its sandbox and stays with it to the end.

Standard library only. It leads its own session and is no child that dies with the server: the server may be killed and
started again, the command goes on, and a new server finds everything in the attempt's directory (``attemptdir``). The
other way round, the sandbox dies with its supervisor, so that an attempt whose lock is free has no processes left.

In order: take the lock; refuse if a status says that this key was started before; write ``Starting``; open the API
socket, the events socket, the control socket and the log; start the sandbox; write ``Running``; let the command begin;
copy output, watch the clock and the control socket, have a checkpoint saved before a stop that wants one; kill what is
left of the process tree; write ``Exited``. Each status is on disk before the next step.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from nodus.server.compute.local import proxy
from nodus.server.compute.local.attemptdir import (
    EVENTS_SOCKET,
    EXITED,
    RUNNING,
    STARTING,
    AttemptDir,
    read_json,
    short_path,
    write_json,
)
from nodus.server.compute.local.eventsocket import Ask
from nodus.server.compute.local.fundedtime import FundedTime
from nodus.server.compute.local.hosting import Hosting
from nodus.server.compute.local.logstore import LogWriter
from nodus.server.compute.local.member import describe_end, start_member
from nodus.server.compute.local.reporting import Reporting
from nodus.server.compute.local.sandbox import SandboxProcess, become_subreaper

CONTROL_SOCKET = "control.sock"
DRAIN_S = 5.0
_PR_SET_NAME = 15
FINAL_WRITE_PATIENCE_S = 3600.0
LOCK_WAIT_S = 2.0
GONE_S = 1.0
"""How long a stop waits for the end of a command whose connection ended while a checkpoint was asked for."""


def run(directory: str) -> int:
    """Supervise the attempt in ``directory``; return the process's exit code (0 also when another one has it)."""
    os.umask(0o077)
    attempt = AttemptDir(directory)
    lock = attempt.take_lock(LOCK_WAIT_S)
    if lock is None:
        return 0
    if attempt.read_status() is not None:
        return 0  # This key was started before, whatever became of it: never run a command twice.
    spec = attempt.read_spec()
    if spec is None:
        return 1
    become_subreaper()
    _name_process(b"nodus-attempt")
    os.chdir(attempt.path)
    return Supervisor(attempt, spec).run()


def _name_process(name: bytes) -> None:
    """Show as ``name`` in process lists: a forked process has its parent's name."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name, 0, 0, 0)


class Supervisor:
    """One attempt's life.

    Args:
        attempt: Its directory; the lock is held.
        spec: The content of ``spec.json``.
    """

    def __init__(self, attempt: AttemptDir, spec: dict[str, Any]) -> None:
        self._attempt = attempt
        self._spec = spec
        self._times: dict[str, float] = {"created": time.time()}
        self._stop_reason: str | None = None
        self._kill_at: float | None = None
        self._ask: Ask | None = None
        self._ask_until: float | None = None
        self._timeout_at: float | None = None
        self._funded: FundedTime | None = None
        self._log = LogWriter(attempt.log, limit_bytes=int(spec.get("logLimitBytes", 50 << 20)))
        self._lost_bytes = 0

    def run(self) -> int:
        """Run the attempt from start to end."""
        if self._stop_requested():
            self._finish({"reason": self._stop_reason, "message": "stopped before it started"})
            return 0
        self._write(STARTING, {})
        with self._control() as control, self._reports(), self._api():
            hosting = Hosting(self._attempt, self._notify) if self._spec.get("processes") else None
            try:
                started = start_member(self._attempt, self._spec, hosting)
            except Exception as error:  # noqa: BLE001 - whatever keeps the sandbox from starting is the attempt's end
                message = f"the sandbox could not be started: {error}"
                self._finish({"reason": "StartFailed", "message": message, "fix": "Run `nodus doctor`."})
                return 0
            member = started.process
            self._times["started"] = time.time()
            timeout_s = self._spec.get("timeoutSeconds")
            self._timeout_at = time.monotonic() + float(timeout_s) if timeout_s is not None else None
            if hosting is not None:
                hosting.begin(member)
            self._funded = FundedTime(self._attempt.path, member.inner_pid)
            self._write_running(member)
            self._proxy.start()
            self._reporting.start()
            # Closing writes: a sandbox that ended already is what the watch below finds.
            with contextlib.suppress(BrokenPipeError), os.fdopen(started.gate, "wb") as gate:
                gate.write(b"go\n")
            # It is never started again: what it was given need not stay on the disk while it runs.
            self._forget_secrets(token=self._spec["token"])
            try:
                code = self._watch(member, started.output, control)
            finally:
                member.kill_tree()
            self._drain(started.output)
            self._reporting.finish()
            self._log.close()
            end = describe_end(member, code, self._stop_reason, self._spec)
            if hosting is not None:
                hosting.end()
                if hosting.problem is not None:
                    end |= {"reason": "SandboxBroken", "message": hosting.problem}
            self._finish(end)
        return 0

    def _watch(self, member: SandboxProcess, output: int, control: socket.socket) -> int:
        """Copy output and obey until the command ended; return its exit code, once nothing of it is left."""
        ended = os.pidfd_open(member.pid)
        poller = select.poll()
        for fd in (output, ended, control.fileno(), self._reporting.fd):
            poller.register(fd, select.POLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poller.poll(self._wait_ms())}
                if output in ready and not self._copy(output):
                    poller.unregister(output)
                poked = control.fileno() in ready
                if poked:
                    self._answer(control)
                if self._reporting.fd in ready:
                    self._reporting.clear()
                if ended in ready:
                    if self._ask is not None:
                        self._stop_reason = None  # It ended by itself, before it was told to.
                    return member.wait()
                self._enforce(member)
                self._keep_funded(member, poked=poked)
        finally:
            os.close(ended)

    def _wait_ms(self) -> float | None:
        due = [moment for moment in (self._kill_at, self._timeout_at, self._ask_until) if moment is not None]
        if self._stop_reason is None:
            later = (self._reporting.ask_when_due(), self._funded.due_s() if self._funded is not None else None)
            due += [time.monotonic() + next_s for next_s in later if next_s is not None]
        # Stop requests come with a poke of the control socket; looking now and then covers one that got lost.
        return 1000.0 * max(0.0, min(2.0, *(moment - time.monotonic() for moment in due))) if due else 2000.0

    def _enforce(self, member: SandboxProcess) -> None:
        now = time.monotonic()
        if self._timeout_at is not None and now >= self._timeout_at:
            self._timeout_at = None
            self._stop_reason = self._stop_reason or "DeadlineExceeded"
            self._ask = self._ask_until = None
            member.kill_tree()
        if self._stop_reason is None and self._stop_requested():
            if self._funded is not None:
                self._funded.resume()  # What is stopped runs to its end: the money for that is kept in hand.
            wait_s = self._checkpoint_s()
            if wait_s <= 0 or (ask := self._reporting.ask()) is None:
                self._terminate(member, now)
            else:
                self._ask, self._ask_until = ask, now + wait_s
        if self._ask is not None and self._ask_until is not None and self._waited(self._ask, self._ask_until, now):
            self._ask = self._ask_until = None
            self._terminate(member, now)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            member.kill_tree()

    def _keep_funded(self, member: SandboxProcess, *, poked: bool) -> None:
        """Pause a member whose funding has run out, and let it go on when there is more."""
        funded = self._funded
        if funded is None or self._stop_reason is not None:
            return
        if (poked or funded.due_s() == 0) and funded.enforce():
            self._times["paused"] = funded.paused_s
            self._times.pop("pausedAt", None)
            if funded.paused:
                self._times["pausedAt"] = time.time()
            self._write_running(member)

    def _write_running(self, member: SandboxProcess) -> None:
        clock = self._funded.to_status() if self._funded is not None else None
        with contextlib.suppress(OSError):  # A full disk: it runs all the same, and shows as it did.
            self._write(RUNNING, {"pid": member.pid, "isolation": member.isolation, "clock": clock})

    def _terminate(self, member: SandboxProcess, now: float) -> None:
        grace_s = float((self._attempt.read_stop() or {}).get("graceSeconds", self._spec.get("graceSeconds", 10)))
        # Where no command is there to be told (it has not begun), there is nothing to wait for.
        self._kill_at = now + grace_s if member.signal(signal.SIGTERM) else now

    def _checkpoint_s(self) -> float:
        """How long a stop waits for the command to save a checkpoint first."""
        return float((self._attempt.read_stop() or {}).get("checkpointSeconds", 0))

    def _waited(self, ask: Ask, until: float, now: float) -> bool:
        """Whether a stop need not wait for a checkpoint any longer; whoever asked may have changed his mind."""
        if self._checkpoint_s() <= 0:
            self._stop_requested()
            return True
        if ask.settled and ask.state == "Gone":
            # Whoever was asked may be about to end by itself, which counts as its own end.
            self._ask_until = min(until, now + GONE_S)
            return now >= until
        return ask.settled or now >= until

    def _stop_requested(self) -> bool:
        request = self._attempt.read_stop()
        if request is None:
            return False
        self._stop_reason = str(request.get("reason", "Cancelled"))
        return True

    def _copy(self, output: int) -> bool:
        """Copy what is there to the log; False at the end of the output."""
        data = os.read(output, 1 << 16)
        if not data:
            return False
        self._reporting.output(data)
        try:
            self._log.write(data)
        except OSError:
            self._lost_bytes += len(data)  # A full disk must not block the command; it is told at the end.
        return True

    def _drain(self, output: int) -> None:
        """Copy what is left in the pipe; every writer is dead, so its end is near."""
        end = time.monotonic() + DRAIN_S
        while time.monotonic() < end and select.select([output], [], [], 0.2)[0]:
            if not self._copy(output):
                break
        os.close(output)

    @contextlib.contextmanager
    def _control(self) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            path = self._attempt.path / CONTROL_SOCKET
            path.unlink(missing_ok=True)
            with short_path(path) as short:
                listener.bind(short)
            listener.listen(8)
            listener.setblocking(False)
            try:
                yield listener
            finally:
                path.unlink(missing_ok=True)

    def _answer(self, control: socket.socket) -> None:
        """Accept a poke: whoever connects only wants ``stop.json`` looked at, which the caller does next."""
        with contextlib.suppress(OSError):
            connection, _ = control.accept()
            connection.close()

    @contextlib.contextmanager
    def _api(self) -> Any:
        path = self._attempt.run / "api.sock"
        with short_path(path) as short:
            listener = proxy.listen(short)
        data_dir = Path(str(self._spec["dataDir"]))
        token = str(self._spec["token"])
        self._proxy = proxy.Proxy(listener, data_dir / "server.json", token, self._reporting.serve)
        try:
            yield
        finally:
            self._proxy.close()
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _reports(self) -> Any:
        self._reporting = Reporting(self._attempt, self._spec)
        try:
            yield
        finally:
            self._reporting.close()

    def _finish(self, end: dict[str, Any]) -> None:
        self._times["finished"] = time.time()
        if self._funded is not None:
            self._times["ran"] = self._funded.ran_s
            self._times.pop("pausedAt", None)
        if self._lost_bytes:
            end["logBytesLost"] = self._lost_bytes
        final = {**end, "logBytes": self._log.total_bytes, "termination": self._termination()}
        give_up = time.monotonic() + FINAL_WRITE_PATIENCE_S
        while True:
            try:
                self._write(EXITED, final)
                self._forget_secrets()
                return
            except OSError:
                # How it ended is worth waiting for until somebody makes room on the disk.
                if time.monotonic() > give_up:
                    raise
            time.sleep(1.0)

    def _forget_secrets(self, token: str = "") -> None:
        """Leave no Secret's value behind on the disk, and at the end no token."""
        with contextlib.suppress(OSError):
            write_json(self._attempt.spec, {**self._spec, "env": {}, "files": {}, "token": token})

    def _termination(self) -> dict[str, Any] | None:
        """What the command left in ``/nodus/termination/message.json``; bounded, and only of a plain file."""
        path = self._attempt.termination / "message.json"
        with contextlib.suppress(OSError):
            if path.is_symlink() or not path.is_file() or path.stat().st_size > 64 * 1024:
                return None
            return read_json(path)
        return None

    def _write(self, phase: str, more: dict[str, Any]) -> None:
        self._attempt.write_status(
            {"phase": phase, "supervisor": os.getpid(), "key": self._attempt.key, "times": self._times, **more}
        )
        self._notify()

    def _notify(self) -> None:
        """Tell the server, if one listens; it also looks by itself now and then."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            with short_path(self._attempt.path.parent / EVENTS_SOCKET) as short:
                sender.sendto(self._attempt.key.encode(), short)


def main() -> None:
    """Run as a program of its own: ``python -I -S supervisor.py DIRECTORY``; the zygote calls :func:`run` instead."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(run(sys.argv[1]))
