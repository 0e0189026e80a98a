"""One warm grader: a sandbox with a loaded environment, seen from the host.

Used by one thread of the pool. Requests and verdicts are exchanged without ever blocking on both pipes at once, and no
more than ``IN_FLIGHT`` completions are inside at a time: those behind a slow one would wait for it.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from nodus.server.compute.local.sandbox import SandboxError
from nodus.server.files import readable
from nodus.server.grading.environments import ResolvedEnvironment
from nodus.server.grading.runner import Launcher, Runner
from nodus.server.grading.verdicts import Completion, Evidence, storable

IN_FLIGHT = 4
"""Completions inside a grader at a time; the protocol allows at most 16."""
START_TIMEOUT_S = 120.0
ANSWER_GRACE_S = 5.0
"""How much later than the runner's own limit the host gives up on a grader."""
_LINE_BYTES = 1 << 20
_REPLACE_ME = 75  # the runner's EXIT_REPLACE_ME
_TRACE_CHARS = 8 * 1024


class StartFailed(Exception):
    """A grader did not become ready.

    Attributes:
        refused: Whether the environment itself is at fault, so that trying again is pointless.
        trace: The environment's traceback, or the end of the grader's log.
        evidence: What the host saw.
    """

    def __init__(self, message: str, evidence: Evidence, *, refused: bool = False, trace: str = "") -> None:
        super().__init__(message)
        self.evidence = evidence
        self.refused = refused
        self.trace = trace


class GraderDied(Exception):
    """A grader ended, stopped answering, or broke the protocol.

    Attributes:
        evidence: What the host saw.
        blameless: Whether it asked to be replaced, so that no completion is to blame.
    """

    def __init__(self, message: str, evidence: Evidence, blameless: bool = False) -> None:
        super().__init__(message)
        self.evidence = evidence
        self.blameless = blameless


@dataclass(slots=True)
class Request:
    """A completion inside a grader.

    Attributes:
        number: The id it was asked under.
        item: The completion.
        tries: How many graders had it, with this one.
    """

    number: int
    item: Completion
    tries: int = 1


@dataclass(slots=True)
class Reply:
    """A grader's line about the oldest completion inside it."""

    request: Request
    evidence: Evidence


class Grader:
    """A grader process.

    Args:
        launcher: Starts it.
        environment: What it loads.
    """

    def __init__(self, launcher: Launcher, environment: ResolvedEnvironment) -> None:
        self._launcher = launcher
        self._environment = environment
        self._inside: deque[Request] = deque()
        self._unsent = bytearray()
        self._received = bytearray()
        self._head_since = 0.0
        self._oom_seen = 0
        self._runner: Runner | None = None
        self._interrupted = False
        self.served = 0

    @property
    def inside(self) -> int:
        """How many completions it has."""
        return len(self._inside)

    def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            StartFailed: When it does not get there; the sandbox is gone then.
        """
        command = ["grade", "--timeout", f"{self._environment.timeout_s:g}"]
        try:
            self._runner = self._launcher.call_sync(lambda: self._launcher.start(self._environment, command))
        except (SandboxError, OSError, RuntimeError) as error:
            raise StartFailed(str(error), Evidence(["bwrap"], "none", 0.0)) from None
        if self._interrupted:
            self.interrupt()  # it came before there was a process to end
        for descriptor in (self._runner.results, self._runner.stdin):
            os.set_blocking(descriptor, False)
        begun = time.monotonic()
        line = self._first_line(begun + START_TIMEOUT_S)
        if line.get("ready") is True:
            return
        evidence = self._evidence((time.monotonic() - begun) * 1000, ended=True)
        trace = storable(line.get("traceback") or "", _TRACE_CHARS) or self._runner.log.text()
        if "refused" in line:
            raise StartFailed(storable(line["refused"], _TRACE_CHARS), evidence, refused=True, trace=trace)
        raise StartFailed(f"the grader did not start: {self._cause(evidence)}", evidence, trace=trace)

    def interrupt(self) -> None:
        """End the grader from another thread, or before it is started; its own thread then sees its end."""
        self._interrupted = True
        if self._runner is not None:
            self._runner.process.interrupt()

    def close(self) -> None:
        """End the grader and everything in its sandbox; what was inside is lost."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def send(self, request: Request) -> None:
        """Queue a completion for it."""
        if not self._inside:
            self._head_since = time.monotonic()
        self._inside.append(request)
        body = {"id": request.number, "taskId": request.item.task_id, "completion": request.item.completion}
        # ASCII JSON: lone surrogates of a completion travel as escapes
        self._unsent += json.dumps(body).encode() + b"\n"

    def exchange(self) -> list[Reply]:
        """Write what can be written, wait for verdicts, and return at least one.

        Raises:
            GraderDied: When none will come.
        """
        results, stdin = self._running().results, self._running().stdin
        poller = select.poll()
        poller.register(results, select.POLLIN)
        deadline = self._head_since + self._environment.timeout_s + ANSWER_GRACE_S
        writing = False
        while True:
            if bool(self._unsent) != writing:
                writing = bool(self._unsent)
                poller.register(stdin, select.POLLOUT) if writing else poller.unregister(stdin)
            left_s = deadline - time.monotonic()
            events = dict(poller.poll(max(0.0, left_s) * 1000))
            if not events:
                raise self._died("the grader stopped answering and was killed")
            if stdin in events:
                self._write(stdin)
            if results in events:
                replies = self._read(results)
                if replies:
                    return replies

    def _running(self) -> Runner:
        assert self._runner is not None
        return self._runner

    def _write(self, stdin: int) -> None:
        try:
            del self._unsent[: os.write(stdin, self._unsent)]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent.clear()  # it ended; the reading side says how

    def _read(self, results: int) -> list[Reply]:
        try:
            chunk = os.read(results, 1 << 16)
        except BlockingIOError:
            return []
        if not chunk:
            raise self._died("")
        self._received += chunk
        if len(self._received) > _LINE_BYTES:
            raise self._died("the grader wrote a line without end")
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        return [self._reply(bytes(line)) for line in lines]

    def _reply(self, line: bytes) -> Reply:
        if not self._inside:
            raise self._died("the grader answered what it was not asked")
        request = self._inside.popleft()
        now = time.monotonic()
        duration_ms, self._head_since = (now - self._head_since) * 1000, now
        self.served += 1
        oom = False
        if b"InfrastructureFailure" in line:
            kills = self._running().process.usage().oom_kills
            oom, self._oom_seen = kills > self._oom_seen, kills
        return Reply(request, self._evidence(duration_ms, output=line, oom=oom, tries=request.tries))

    def _died(self, message: str) -> GraderDied:
        duration_ms = (time.monotonic() - self._head_since) * 1000
        evidence = self._evidence(duration_ms, ended=True, tries=self._inside[0].tries if self._inside else 1)
        blameless = not message and evidence.exit_code == _REPLACE_ME
        return GraderDied(message or f"the grader died: {self._cause(evidence)}", evidence, blameless)

    def _cause(self, evidence: Evidence) -> str:
        if evidence.oom:
            return f"out of memory (limit {self._environment.memory_bytes >> 20} MiB)"
        return f"exit code {evidence.exit_code}"

    def _evidence(
        self, duration_ms: float, *, output: bytes = b"", oom: bool = False, tries: int = 1, ended: bool = False
    ) -> Evidence:
        process, code = self._running().process, None
        if ended:
            code = process.kill_tree()
            oom = process.usage().oom_kills > self._oom_seen
        return Evidence(process.argv, process.isolation, duration_ms, output, oom, tries, code)

    def _first_line(self, deadline: float) -> dict[str, Any]:
        """Return the line a grader starts with; an empty object when it ends, or takes too long, without one."""
        results, data = self._running().results, bytearray()
        while b"\n" not in data and len(data) < _LINE_BYTES:
            if not readable(deadline - time.monotonic(), results):
                return {}
            chunk = os.read(results, 1 << 16)
            if not chunk:
                return {}
            data += chunk
        try:
            line = json.loads(data)
        except ValueError:
            return {}
        return line if isinstance(line, dict) else {}
