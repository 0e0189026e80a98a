"""One warm grader: a process with a loaded environment, seen from the server.

Used by one thread of the pool. No more than ``IN_FLIGHT`` completions are inside at a time: those behind a slow one
would wait for it.
"""

from __future__ import annotations

import json
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nodus.server.compute.graders import GraderNotStarted, GraderProcess
from nodus.server.grading.runner import LOG_CHARS, Runners
from nodus.server.grading.verdicts import Evidence, Item, storable

IN_FLIGHT = 4
"""Completions inside a grader at a time; the protocol allows at most 16."""
PURE_IN_FLIGHT = 64
"""Likewise, where completions are scored in the grader's own process: none is slow, and more at a time cost less."""
START_TIMEOUT_S = 120.0
ANSWER_GRACE_S = 5.0
"""How much later than the runner's own limit the host gives up on a grader."""
_LINE_BYTES = 1 << 20
_TIMED_OUT = int(signal.SIGALRM)  # of one whose own timer ended it
_REPLACE_ME = 75  # the runner's EXIT_REPLACE_ME
_NO_CODE_SANDBOX, _CODE_ENDED_SANDBOX = 76, 77  # likewise


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
        by_code: Whether its code sandbox ended while it ran a completion's code.
    """

    def __init__(self, message: str, evidence: Evidence, blameless: bool = False, by_code: bool = False) -> None:
        super().__init__(message)
        self.evidence = evidence
        self.blameless = blameless
        self.by_code = by_code


@dataclass(slots=True)
class Request:
    """A completion, or an episode, inside a grader.

    Attributes:
        number: The id it was asked under.
        item: What is asked.
        tries: How many graders had it, with this one.
    """

    number: int
    item: Item[Any]
    tries: int = 1


@dataclass(slots=True)
class Reply:
    """A grader's line about the oldest completion inside it."""

    request: Request
    evidence: Evidence


class Grader:
    """A grader process.

    Args:
        runners: Starts it.
        beside: Key of the member whose host it is on; None for any host.

    Attributes:
        served: How many completions it answered.
        pure: Whether it scores in its own process: an environment of the catalog that leaves nothing behind.
    """

    def __init__(self, runners: Runners, beside: str | None = None) -> None:
        self._runners = runners
        self._environment = runners.environment
        self._beside = beside
        self._inside: deque[Request] = deque()
        self._unsent = bytearray()
        self._received = bytearray()
        self._head_since = 0.0
        self._oom_seen = 0
        self._process: GraderProcess | None = None
        self._interrupted = False
        self.served = 0
        self.pure = False

    @property
    def inside(self) -> int:
        """How many completions it has."""
        return len(self._inside)

    def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            StartFailed: When it does not get there; it has ended then.
        """
        command = ["grade", "--timeout", f"{self._environment.timeout_s:g}"]
        try:
            self._process = self._runners.start(command, self._beside)
        except GraderNotStarted as error:
            raise StartFailed(str(error), Evidence(self._runners.arguments(command), "none", 0.0)) from None
        if self._interrupted:
            self.interrupt()  # it came before there was a process to end
        begun = time.monotonic()
        line = self._first_line(begun + START_TIMEOUT_S)
        if line.get("ready") is True:
            self.pure = line.get("pure") is True
            return
        evidence = self._evidence((time.monotonic() - begun) * 1000, ended=True)
        trace = storable(line.get("traceback") or "", LOG_CHARS) or storable(self._process.log_tail(), LOG_CHARS)
        if "refused" in line:
            raise StartFailed(storable(line["refused"], LOG_CHARS), evidence, refused=True, trace=trace)
        raise StartFailed(f"the grader did not start: {self._cause(evidence)}", evidence, trace=trace)

    def interrupt(self) -> None:
        """End the grader from another thread, or before it is started; its own thread then sees its end."""
        self._interrupted = True
        if self._process is not None:
            self._process.interrupt()

    def close(self) -> None:
        """End the grader and everything it started; what was inside is lost."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def send(self, request: Request) -> None:
        """Queue a completion for it."""
        if not self._inside:
            self._head_since = time.monotonic()
        self._inside.append(request)
        body = {"id": request.number, **request.item.request()}
        # ASCII JSON: lone surrogates of a completion travel as escapes
        self._unsent += json.dumps(body).encode() + b"\n"

    def exchange(self) -> list[Reply]:
        """Write what can be written, wait for verdicts, and return at least one.

        Raises:
            GraderDied: When none will come.
        """
        deadline = self._head_since + self._environment.timeout_s + ANSWER_GRACE_S
        while True:
            chunk = self._running().exchange(self._unsent, deadline - time.monotonic())
            if chunk is None:
                raise self._died("the grader stopped answering and was killed")
            if replies := self._take_in(chunk):
                return replies

    def _running(self) -> GraderProcess:
        assert self._process is not None
        return self._process

    def _take_in(self, chunk: bytes) -> list[Reply]:
        """Return the replies that this piece of the results completes."""
        if not chunk:
            raise self._died("")
        self._received += chunk
        if len(self._received) > _LINE_BYTES:
            raise self._died("the grader wrote a line without end")
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        return self._replies([bytes(line) for line in lines])

    def _replies(self, lines: Sequence[bytes]) -> list[Reply]:
        """Return what whole lines say."""
        return [self._reply(line) for line in lines]

    def _reply(self, line: bytes) -> Reply:
        if not self._inside:
            raise self._died("the grader answered what it was not asked")
        request = self._inside.popleft()
        now = time.monotonic()
        duration_ms, self._head_since = (now - self._head_since) * 1000, now
        self.served += 1
        oom = False
        if b"InfrastructureFailure" in line or b'"code": {' in line:
            kills = self._running().oom_kills()
            oom, self._oom_seen = kills > self._oom_seen, kills
        return Reply(request, self._evidence(duration_ms, output=line, oom=oom, tries=request.tries))

    def _died(self, message: str) -> GraderDied:
        duration_ms = (time.monotonic() - self._head_since) * 1000
        evidence = self._evidence(duration_ms, ended=True, tries=self._inside[0].tries if self._inside else 1)
        blameless = not message and evidence.exit_code == _REPLACE_ME
        by_code = not message and evidence.exit_code == _CODE_ENDED_SANDBOX
        return GraderDied(message or self._cause_of_death(evidence), evidence, blameless, by_code)

    def _cause_of_death(self, evidence: Evidence) -> str:
        if evidence.exit_code == _TIMED_OUT:
            return f"reward ran longer than {self._environment.timeout_s:g} s and was killed"
        if evidence.exit_code == _CODE_ENDED_SANDBOX:
            return "the code ended the sandbox that it ran in, twice"
        if evidence.exit_code == _NO_CODE_SANDBOX:
            return "the sandbox that runs code was gone"
        return f"the grader died: {self._cause(evidence)}"

    def _cause(self, evidence: Evidence) -> str:
        if evidence.oom:
            return f"out of memory (limit {self._environment.memory_bytes >> 20} MiB)"
        return f"exit code {evidence.exit_code}"

    def _evidence(
        self, duration_ms: float, *, output: bytes = b"", oom: bool = False, tries: int = 1, ended: bool = False
    ) -> Evidence:
        process, code = self._running(), None
        if ended:
            code = process.kill()
            oom = process.oom_kills() > self._oom_seen
        return Evidence(process.argv, process.isolation, duration_ms, output, oom, tries, code)

    def _first_line(self, deadline: float) -> dict[str, Any]:
        """Return the line a grader starts with; an empty object when it ends, or takes too long, without one."""
        data = bytearray()
        while b"\n" not in data and len(data) < _LINE_BYTES:
            chunk = self._running().exchange(bytearray(), deadline - time.monotonic())
            if not chunk:
                return {}
            data += chunk
        try:
            line = json.loads(data)
        except (ValueError, RecursionError):
            return {}
        return line if isinstance(line, dict) else {}
