"""Graders on this machine: sandboxes that are warm, answer requests over pipes, and never outlive the server.

All are launched by one thread that lives as long as the server: the kernel ends a sandbox when the thread that started
it ends, so that no grader outlives the server, whatever ends the server. A grader also watches a pipe, its lifeline,
which covers the one it can't be killed by; see ``SandboxSpec.init``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor

from nodus.server.compute.graders import GraderIsolation, GraderNotStarted, GraderRoot, GraderSpec
from nodus.server.compute.local import cgroups, pythons
from nodus.server.compute.local.gradersandbox import code_sandbox, grader_sandbox
from nodus.server.compute.local.probe import Isolation, probe
from nodus.server.compute.local.rootsandbox import root_sandbox
from nodus.server.compute.local.sandbox import SandboxProcess, current_mode, launch
from nodus.server.compute.local.sandboxspec import Mode

_LOG_TAIL_BYTES = 8 * 1024
_READ_BYTES = 1 << 16


class LocalGraders:
    """Starts graders on this machine; a GraderHost.

    Args:
        check: Finds out how this machine isolates; replaced in tests.

    Example:
        >>> graders = LocalGraders()
        >>> grader = graders.start(GraderSpec(directory, ["--loader", "my_task", "grade"], memory_bytes=1 << 30))
        >>> grader.exchange(bytearray(request), timeout_s=10.0)
        >>> grader.close()
        >>> await graders.close()
    """

    def __init__(self, check: Callable[[], Isolation] = probe) -> None:
        self._check = check
        self._isolation: GraderIsolation | None = None
        self._closed = False
        self._running: set[LocalGrader] = set()
        self._launcher = ThreadPoolExecutor(1, thread_name_prefix="nodus-grader-launcher")

    async def sweep(self) -> None:
        """Remove the control groups of a server that was killed; its graders ended with it."""
        await asyncio.to_thread(cgroups.sweep)

    async def isolation(self) -> GraderIsolation:
        """Return how this machine isolates; found out once if it does, else again: something may be installed."""
        if self._isolation is None or not self._isolation.ok:
            found = await asyncio.to_thread(self._check)
            self._isolation = GraderIsolation(found.problems, found.fix)
        return self._isolation

    def python(self, version: str | None = None) -> str | None:
        """Return what a Python of this machine names its compiled modules after; None when there is none of it."""
        found = pythons.own() if version is None else pythons.find(version)
        return None if found is None else found.tag

    def start(self, spec: GraderSpec) -> LocalGrader:
        """Start a grader. Which member it should be beside doesn't matter: there is one machine, and all are on it.

        Raises:
            GraderNotStarted: When no sandbox can be started, or the server stops.
        """
        try:
            return self._launcher.submit(self._launch, spec).result()
        except (OSError, RuntimeError, CancelledError) as error:
            raise GraderNotStarted("the server is stopping" if self._closed else str(error)) from error

    async def close(self) -> None:
        """End every grader and wait for that, and end the launcher's thread; whoever uses a grader sees its end."""
        self._closed = True
        await asyncio.to_thread(self._launcher.shutdown, cancel_futures=True)
        await asyncio.gather(*(asyncio.to_thread(grader.kill) for grader in list(self._running)))

    def _launch(self, spec: GraderSpec) -> LocalGrader:
        if spec.root is not None:
            return self._launch_root(spec, spec.root)
        mode: Mode | None = "unsafe" if spec.unsafe else None
        results, output = os.pipe()
        lifeline, held = os.pipe()
        code: SandboxProcess | None = None
        ours: socket.socket | None = None
        try:
            if spec.code:
                code, ours = _launch_code(spec, mode)
            code_fd = None if ours is None else ours.fileno()
            sandbox = grader_sandbox(spec, output, lifeline, code_fd)
            pipe, passed = subprocess.PIPE, [output, lifeline, *([] if code_fd is None else [code_fd])]
            process = launch(sandbox, stdin=pipe, stderr=pipe, pass_fds=passed, mode=mode)
            grader = LocalGrader(process, results, held, self._running.discard, code)
        except BaseException:
            os.close(results)
            os.close(held)  # what was started ends by that
            if code is not None:
                code.kill_tree()
            raise
        finally:
            os.close(output)
            os.close(lifeline)
            if ours is not None:
                ours.close()
        self._running.add(grader)
        return grader

    def _launch_root(self, spec: GraderSpec, root: GraderRoot) -> LocalGrader:
        """Start a program of an image: its standard output is its results, and it watches no lifeline.

        Process 1 of its sandbox is bubblewrap's, which the kernel ends with the launcher.
        """
        if spec.unsafe:
            raise OSError("an environment from an image is run in a sandbox only, and this machine has none")
        results, output = os.pipe()
        try:
            sandbox = root_sandbox(spec, root, current_mode())
            process = launch(sandbox, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.PIPE)
        except BaseException:
            os.close(results)
            raise
        finally:
            os.close(output)
        grader = LocalGrader(process, results, None, self._running.discard, argv=(root.program, *spec.arguments))
        self._running.add(grader)
        return grader


def _launch_code(spec: GraderSpec, mode: Mode | None) -> tuple[SandboxProcess, socket.socket]:
    """Start the sandbox that runs code of completions; return it with the grader's end of its control socket.

    It ends with its grader: when that is gone, its control socket has no other end.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        return launch(code_sandbox(spec, theirs.fileno()), pass_fds=[theirs.fileno()], mode=mode), ours
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()


class LocalGrader:
    """A grader's sandbox and the server's ends of its pipes; a GraderProcess.

    Args:
        process: The sandbox; stdin and stderr are pipes.
        results: Where its result lines are read.
        lifeline: What keeps it alive: it ends when this is closed, as it is when the server dies. None for one that
            doesn't watch.
        closed: Called with it once it is closed.
        code: The sandbox that runs code for it.
        argv: Its command line, where that is not the sandbox's.
    """

    def __init__(
        self,
        process: SandboxProcess,
        results: int,
        lifeline: int | None,
        closed: Callable[[LocalGrader], None],
        code: SandboxProcess | None = None,
        argv: tuple[str, ...] | None = None,
    ) -> None:
        assert process.popen.stdin is not None
        self._process = process
        self._stdin = process.popen.stdin
        self._results = results
        self._lifeline = lifeline
        self._closed = closed
        self._code = code
        self._argv = argv or process.argv
        self._log = _LogTail(process)
        for descriptor in (results, self._stdin.fileno()):
            os.set_blocking(descriptor, False)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line inside its sandbox."""
        return self._argv

    @property
    def isolation(self) -> str:
        """How it is isolated, such as ``bubblewrap-root+seccomp+cgroup-v1``."""
        return self._process.isolation

    def exchange(self, requests: bytearray, timeout_s: float) -> bytes | None:
        """Write what can be written of ``requests``, taking it from there, until results can be read; return them.

        Neither pipe is ever blocked on alone: a grader that does not read may be about to write, and the other way
        round.

        Returns:
            Results; empty when no more will come; None when time ran out.
        """
        deadline = time.monotonic() + timeout_s
        stdin, writing = self._stdin.fileno() if requests else -1, False
        poller = select.poll()  # not select: a server may have descriptors above its limit
        poller.register(self._results, select.POLLIN)
        while True:
            if bool(requests) != writing:
                writing = bool(requests)
                poller.register(stdin, select.POLLOUT) if writing else poller.unregister(stdin)
            events = dict(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not events:
                return None
            if stdin in events:
                _write(stdin, requests)
            if self._results in events:
                with contextlib.suppress(BlockingIOError):
                    return os.read(self._results, _READ_BYTES)

    def end_requests(self) -> None:
        """Say that no more requests come."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end and the end of everything in its sandbox; None when it still runs after ``timeout_s``."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> int:
        """End it and everything in its sandbox; return its exit code once nothing is left."""
        code = self._process.kill_tree()
        if self._code is not None:
            self._code.kill_tree()
        return code

    def interrupt(self) -> None:
        """Kill it and return at once; safe from any thread."""
        self._process.interrupt()
        if self._code is not None:
            self._code.interrupt()

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel has killed for want of memory; 0 without control groups."""
        return self._process.usage().oom_kills + (0 if self._code is None else self._code.usage().oom_kills)

    def log_tail(self) -> str:
        """Return the end of what it wrote to its standard error; complete once it has ended."""
        return self._log.text()

    def close(self) -> None:
        """End it and everything in its sandbox, and close every pipe."""
        self.kill()
        self.end_requests()
        os.close(self._results)
        if self._lifeline is not None:
            os.close(self._lifeline)
        self._log.close()
        self._closed(self)


def _write(stdin: int, requests: bytearray) -> None:
    try:
        del requests[: os.write(stdin, requests)]
    except BlockingIOError:
        return
    except BrokenPipeError:
        requests.clear()  # it ended; the reading side says how


class _LogTail:
    """Reads a grader's standard error to its end on a thread of its own, and keeps the last 8 KiB.

    Args:
        process: A sandbox whose stderr is a pipe.
    """

    def __init__(self, process: SandboxProcess) -> None:
        self._stream = process.popen.stderr
        self._tail = b""
        self._thread = threading.Thread(target=self._read, name="nodus-grader-log", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        if self._stream is None:
            return
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(self._stream.fileno(), 1 << 16):
                self._tail = (self._tail + chunk)[-_LOG_TAIL_BYTES:]

    def text(self) -> str:
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Close the pipe, after the sandbox ended."""
        self._thread.join(1.0)
        if self._stream is not None:
            self._stream.close()
