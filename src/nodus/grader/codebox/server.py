"""Process 1 of the code sandbox: a connection in, one program run in a process of its own, what came of it out.

A grader hands over one end of a socket pair for each completion, through the control socket that both were started
with, which the completion's process does not have; that hands over one end of another pair for each program, writes its
request to the other end, and reads the reply. When it goes away, or the next completion comes, its program is ended and
what it left in its sockets is dropped; when the control socket has no other end any more, this process ends. No code of
a completion ever runs in this process, and none of the expected values are ever in it.

Requests: ``{"code", "function", "calls": [plain], "timeoutSeconds", "memoryBytes"}``; replies are ``Program.run``'s.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import resource
import select
import signal
import socket
import time
from typing import Any

from nodus.grader import process
from nodus.grader.codebox import program

RESULT_BYTES = 1 << 20
OUTPUT_BYTES = 1 << 20
FILE_BYTES = 16 << 20
OPEN_FILES = 64
_REQUEST_BYTES = 16 << 20
_REQUEST_TIMEOUT_S = 5.0
_MAX_TIMEOUT_S = 3600.0
_MAX_MEMORY_BYTES = 1 << 40
_CPU_GRACE_S = 1
_KEPT_OUTPUT_CHARS = 1000
_CHUNK = 1 << 16


def main() -> int:
    """Serve until the control socket's other end is gone."""
    parser = argparse.ArgumentParser(prog="nodus-codebox")
    parser.add_argument("--control-fd", type=int, required=True)
    control = socket.socket(fileno=parser.parse_args().control_fd)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)  # process 1 of a namespace gets no signal that it does not handle
    process.hide_memory()
    gc.collect()
    gc.freeze()
    while descriptors := _receive(control):
        for descriptor in descriptors:
            with socket.socket(fileno=descriptor) as completion:
                if not _serve_completion(completion, control):
                    return 0
    return 0


def _receive(control: socket.socket) -> list[int]:
    """Return what is handed over next; nothing at the end, and where something else is sent."""
    try:
        return list(socket.recv_fds(control, 1, 1)[1])
    except OSError:
        return []


def _serve_completion(completion: socket.socket, control: socket.socket) -> bool:
    """Run a completion's programs until the next completion comes; False when this process must not run another."""
    over = _Ended(completion, control)
    while over.wait_for(completion) and (descriptors := _receive(completion)):
        for descriptor in descriptors:
            with socket.socket(fileno=descriptor) as connection:
                if not _serve(connection, over):
                    return False
    return True


class _Ended:
    """Says whether a completion is over: its process is gone, or the worker has sent the next, or is gone.

    Args:
        completion: The completion's socket; its hang-up counts.
        control: The worker's socket; whatever comes there counts.
    """

    def __init__(self, completion: socket.socket, control: socket.socket) -> None:
        self.sockets = {completion: 0, control: select.POLLIN}

    def wait_for(self, readable: socket.socket, timeout_s: float | None = None) -> bool:
        """Wait until a socket has something to read; False when the completion is over, or time."""
        poller = select.poll()
        for each, events in {**self.sockets, readable: select.POLLIN}.items():
            poller.register(each, events)
        found = dict(poller.poll(None if timeout_s is None else timeout_s * 1000))
        over = any(found.get(each.fileno(), 0) & ~(select.POLLIN if each is readable else 0) for each in self.sockets)
        return readable.fileno() in found and not over

    def close(self) -> None:
        """Close both sockets: nobody else is served."""
        for each in self.sockets:
            each.close()


def _serve(connection: socket.socket, over: _Ended) -> bool:
    """Run one program; False when this process must not run another."""
    request = _request(connection, over)
    if request is None:
        return True
    reply = Program(request, connection, over).run()
    clean = not process.is_namespace_init() or (process.end_leftovers() and process.wipe())
    if not clean:
        over.close()  # before the reply: whoever reads that one then knows that no other will come
    try:
        connection.sendall(json.dumps(reply).encode())
    except OSError:
        pass  # the grader's process is gone
    return clean


def _request(connection: socket.socket, over: _Ended) -> dict[str, Any] | None:
    """Read a request to its end; None when none comes."""
    deadline = time.monotonic() + _REQUEST_TIMEOUT_S
    data = bytearray()
    try:
        while over.wait_for(connection, max(0.0, deadline - time.monotonic())):
            chunk = connection.recv(_CHUNK, socket.MSG_DONTWAIT)
            if not chunk:
                return _read_request(data)
            data += chunk
            if len(data) > _REQUEST_BYTES:
                return None
    except OSError:
        pass
    return None


def _read_request(data: bytes | bytearray) -> dict[str, Any] | None:
    """Return a request, or None for what is none; a completion may have sent anything."""
    try:
        request = json.loads(data)
        code, function, calls = request["code"], request["function"], request["calls"]
        timeout_s, memory = request["timeoutSeconds"], request["memoryBytes"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    texts = isinstance(calls, list) and all(isinstance(each, str) for each in (code, function, *calls))
    numbers = isinstance(timeout_s, int | float) and 0 < timeout_s <= _MAX_TIMEOUT_S
    return request if texts and numbers and isinstance(memory, int) and 0 < memory <= _MAX_MEMORY_BYTES else None


class Program:
    """One program: its process, its pipes, its limits.

    Args:
        request: What to run.
        connection: Ends the program when the other end is gone.
        over: Ends the program with its completion.
    """

    def __init__(self, request: dict[str, Any], connection: socket.socket, over: _Ended) -> None:
        self._request = request
        self._peers = {connection: 0, **over.sockets}
        self._timeout_s = float(request["timeoutSeconds"])
        self._results, self._output = bytearray(), bytearray()
        self._fault: str | None = None
        self._timed_out = False
        self._sandboxed = process.is_namespace_init()

    def run(self) -> dict[str, Any]:
        """Run it to its end, however that comes, and return the reply."""
        results, output = os.pipe(), os.pipe()
        started = time.monotonic()
        try:
            pid = os.fork()
        except OSError as error:
            for descriptor in (*results, *output):
                os.close(descriptor)
            return {"fault": f"could not fork: {error.strerror}", "sandbox": True}
        if pid == 0:
            self._child(results[1], output[1])
        os.close(results[1])
        os.close(output[1])
        self._watch(pid, {results[0]: self._results, output[0]: self._output}, started + self._timeout_s)
        if not self._sandboxed:
            _kill_group(pid)
        _, status, usage = os.wait4(pid, 0)
        for descriptor in (results[0], output[0]):
            os.close(descriptor)
        return self._facts(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, time.monotonic() - started)

    def _watch(self, pid: int, pipes: dict[int, bytearray], deadline: float) -> None:
        """Read both pipes until the process ends; kill it when it takes too long or says too much."""
        pidfd = os.pidfd_open(pid)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        for descriptor in pipes:
            os.set_blocking(descriptor, False)
            poller.register(descriptor, select.POLLIN)
        for peer, mask in self._peers.items():
            poller.register(peer, mask)  # a hang-up is always reported
        peers = {peer.fileno() for peer in self._peers}
        while self._fault is None:
            events = dict(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
            for descriptor, data in pipes.items():
                if descriptor in events and not _read(descriptor, data):
                    poller.unregister(descriptor)
            if pidfd in events:
                break
            if len(self._results) > RESULT_BYTES or len(self._output) > OUTPUT_BYTES:
                self._fault = _too_much(self._results)
            elif time.monotonic() >= deadline:
                self._timed_out, self._fault = True, f"ran longer than {self._timeout_s:g} s and was killed"
            elif peers & events.keys():
                self._fault = "nobody waits for it any more"
        if self._fault is not None:
            os.kill(pid, signal.SIGKILL)
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            poller.poll()
        for descriptor, data in pipes.items():
            _drain(descriptor, data)
        os.close(pidfd)

    def _facts(self, code: int, peak_bytes: int, seconds: float) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "exitCode": code if code >= 0 else None,
            "signal": _signal_name(-code) if code < 0 else None,
            "timedOut": self._timed_out,
            "ms": round(seconds * 1000, 3),
            "peakMemoryBytes": peak_bytes,
            "outputSHA256": hashlib.sha256(self._output).hexdigest(),
            "output": self._output[-_KEPT_OUTPUT_CHARS:].decode(errors="replace"),
        }
        fault = self._fault
        if fault is None and len(self._results) > RESULT_BYTES:
            fault = _too_much(self._results)
        if fault is None and code < 0:
            fault = f"killed by {facts['signal']}"
        if fault is None and (code != 0 or not self._results):
            fault = f"ended with exit code {code} and no result"
        if fault is not None:
            return {**facts, "fault": fault}
        return {**facts, "results": self._results.decode(errors="replace")}

    def _child(self, results: int, output: int) -> None:
        """Run the code, report, end; never returns."""
        status = 1
        try:
            for peer in self._peers:
                peer.close()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            if not self._sandboxed:
                os.setpgid(0, 0)
            self._limit()
            program.run(self._request, results)
            status = 0
        finally:
            os._exit(status)

    def _limit(self) -> None:
        cpu_s = int(self._timeout_s) + 1 + _CPU_GRACE_S
        memory = int(self._request["memoryBytes"])
        limits = {
            resource.RLIMIT_CPU: cpu_s,
            resource.RLIMIT_AS: memory,
            resource.RLIMIT_FSIZE: FILE_BYTES,
            resource.RLIMIT_NOFILE: OPEN_FILES,
            resource.RLIMIT_CORE: 0,
        }
        for name, value in limits.items():
            hard = resource.getrlimit(name)[1]
            bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(name, (bounded, bounded))


def _too_much(results: bytearray) -> str:
    what = "results" if len(results) > RESULT_BYTES else "output"
    limit = RESULT_BYTES if what == "results" else OUTPUT_BYTES
    return f"wrote more than {limit >> 20} MiB of {what} and was killed"


def _read(descriptor: int, data: bytearray) -> bool:
    """Read what is in a pipe now; False at its end."""
    try:
        chunk = os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return True
    data += chunk
    return bool(chunk)


def _drain(descriptor: int, data: bytearray) -> None:
    """Read what a process that has ended left in a pipe; what others still write is not waited for."""
    for _ in range(RESULT_BYTES // _CHUNK):
        before = len(data)
        if not _read(descriptor, data) or len(data) == before:
            return


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
