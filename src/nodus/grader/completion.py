"""One completion, or one turn of an episode, in its own process: fork, score or answer, report, and be gone.

Of the child's signals the worker takes none but SIGIO, the one it has a handler for (process 1 of a namespace is
shielded from the others); that one ends it, which costs the sender its own verdict: a grader that dies twice over a
completion is an InfrastructureFailure of that completion. The child cannot look into the worker, and is killed at the
wall limit. What it reports goes through a pipe of its own and is checked; whatever else it does is no
verdict. A reward that runs code of the completion inside this process could forge the verdict of that one completion
(it is the scorer); it reaches no other.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nodus.grader import messages, process
from nodus.grader.adapters import Adapter
from nodus.grader.loading import outside_trace
from nodus.grader.tasks import Task
from nodus.grader.verdicts import classify, failure, read_result, write_result

RESULT_BYTES = 64 * 1024
_CPU_GRACE_S = 2
_LOOK_S = 0.1
_STEP = "the environment's step"


class Ended(NamedTuple):
    """How a completion's process ended.

    Attributes:
        data: What it reported, at most ``RESULT_BYTES`` and one more.
        status: Its wait status.
        timed_out: Whether it was killed at the wall limit.
        wall_ms: How long it ran.
        peak_bytes: The most memory that it had at a time, what it shares with the worker included.
    """

    data: bytes
    status: int
    timed_out: bool
    wall_ms: float
    peak_bytes: int


Work = Callable[[Task, Sequence[str]], bytes]
Read = Callable[[bytes], dict[str, Any] | None]


class Scorer:
    """Scores completions and plays episodes of one environment, each time in a process of its own.

    Args:
        adapter: The environment's adapter.
        timeout_s: Wall limit of one completion.
        private_fds: Descriptors of the worker's protocol, closed in the child.
    """

    def __init__(
        self,
        adapter: Adapter,
        timeout_s: float,
        private_fds: tuple[int, ...],
    ) -> None:
        self._adapter = adapter
        self._timeout_s = timeout_s
        self._private_fds = private_fds
        self._sandboxed = process.is_namespace_init()

    def score(self, task: Task, turns: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the verdict on an episode as it stands, and ``exitCode`` or ``signal`` and ``ms`` of its process.

        Args:
            task: What it is an episode of.
            turns: The model's turns, at least one; a single completion is an episode of one turn.
        """
        return self._run("reward", self._grade, read_result, task, turns)

    def reply(self, task: Task, turns: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the environment's ``messages`` after the last turn (None: the episode has ended), and the process.

        Where the environment fails, the first is the same failure that a verdict would be.
        """
        if not self._adapter.episodes:
            return {"messages": None}, {}
        return self._run(_STEP, self._answer, messages.read, task, turns)

    def _run(
        self, what: str, work: Work, read: Read, task: Task, turns: Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        read_end, write_end = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(read_end)
            os.close(write_end)
            return failure(f"could not fork: {error.strerror}"), {}
        if pid == 0:
            self._child(work, task, turns, write_end)
        os.close(write_end)
        ended = self._wait(pid, read_end)
        if not self._sandboxed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # its own group; in a sandbox the worker ends everything else
        code = os.waitstatus_to_exitcode(ended.status)
        return self._judge(what, ended, code, read), _facts(ended, code)

    def _wait(self, pid: int, read_end: int) -> Ended:
        """Wait for the child's end, then read its report; a grandchild that keeps the pipe open is not waited for.

        Only the end wakes this process: a report fits into the pipe, and being woken for it too would cost a second
        switch of processes. Whoever writes more than a report fills the pipe, which is looked into now and then.
        """
        started = time.monotonic()
        deadline = started + self._timeout_s
        pidfd = os.pidfd_open(pid)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        os.set_blocking(read_end, False)
        data, timed_out = b"", False
        while not poller.poll(max(0.0, min(_LOOK_S, deadline - time.monotonic())) * 1000):
            data += _read(read_end)
            timed_out = time.monotonic() >= deadline
            if timed_out or len(data) > RESULT_BYTES:
                os.kill(pid, signal.SIGKILL)
                break
        else:
            data += _read(read_end)
        _, status, usage = os.wait4(pid, 0)
        wall_ms = (time.monotonic() - started) * 1000
        os.close(pidfd)
        os.close(read_end)
        return Ended(data, status, timed_out, wall_ms, usage.ru_maxrss * 1024)

    def _judge(self, what: str, ended: Ended, code: int, read: Read) -> dict[str, Any]:
        if ended.timed_out:
            return failure(f"{what} ran longer than {self._timeout_s:g} s and was killed")
        if len(ended.data) > RESULT_BYTES:
            return failure(f"{what}'s process wrote more than a verdict where only the verdict belongs")
        if code < 0:
            return failure(f"{what}'s process was killed by {_signal_name(-code)}")
        result = read(ended.data) if ended.data else None
        if code != 0 or result is None:
            wrote = "something that is no verdict" if ended.data else "no verdict"
            return failure(f"{what}'s process ended with exit code {code} and {wrote}")
        return result

    def _child(self, work: Work, task: Task, turns: Sequence[str], write_end: int) -> None:
        """Work, report, end; never returns."""
        status = 1
        try:
            self._confine()
            data = work(task, turns)
            while data:
                data = data[os.write(write_end, data) :]
            status = 0
        finally:
            os._exit(status)

    def _grade(self, task: Task, turns: Sequence[str]) -> bytes:
        _seed(task)
        try:
            result = classify(self._adapter.grade(task, turns))
        except BaseException as error:  # noqa: BLE001 - a reward may raise anything, also SystemExit
            result = _raised("reward", error)
        return write_result(_with_code(result))

    def _answer(self, task: Task, turns: Sequence[str]) -> bytes:
        _seed(task)
        try:
            return messages.write(self._adapter.reply(task, turns))
        except messages.BadMessages as error:
            return write_result(failure(str(error)))
        except BaseException as error:  # noqa: BLE001 - an environment may raise anything, also SystemExit
            return write_result(_with_code(_raised(_STEP, error)))

    def _confine(self) -> None:
        for descriptor in self._private_fds:
            os.close(descriptor)
        cpu_s = int(self._timeout_s) + _CPU_GRACE_S
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        if not self._sandboxed:
            os.setpgid(0, 0)


def _seed(task: Task) -> None:
    random.seed(task.id)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(int(task.id[:8], 16))


def _raised(what: str, error: BaseException) -> dict[str, Any]:
    result = failure(f"{what} raised {type(error).__name__}: {error}"[:500], outside_trace(error, 2000))
    if lost := getattr(error, "sandbox_lost", None):
        result["lost"] = str(lost)
    return result


def _with_code(result: dict[str, Any]) -> dict[str, Any]:
    if (code := sys.modules.get("nodus.grader.code")) is not None and (facts := code.evidence()):
        result["code"] = facts
    return result


def _read(descriptor: int) -> bytes:
    """Return what is in a pipe now, at most a byte more than a report may have."""
    try:
        return os.read(descriptor, RESULT_BYTES + 1)
    except BlockingIOError:
        return b""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _facts(ended: Ended, code: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "ms": round(ended.wall_ms, 3),
        "timedOut": ended.timed_out,
        "peakMemoryBytes": ended.peak_bytes,
    }
    return {**facts, "exitCode": code} if code >= 0 else {**facts, "exitCode": None, "signal": _signal_name(-code)}
