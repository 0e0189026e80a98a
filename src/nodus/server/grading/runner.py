"""The runner ``nodus-env`` for one environment: how it is called, and commands that run once to their end.

Where it runs, and how it is isolated, is the compute backend's.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nodus.server.compute.graders import GraderHost, GraderProcess, GraderRoot, GraderSpec
from nodus.server.grading.environments import MIB, ResolvedEnvironment
from nodus.server.grading.verdicts import storable

LOG_CHARS = 8 * 1024
"""How much is kept of what an environment says about a failure."""
LINE_BYTES = 4 * MIB
"""Of one result line: a prompt of several hundred thousand characters fits, six bytes each as JSON escapes them."""
LINE_VALUES = 200_000
"""Of one line: nothing else of the server runs while one is parsed."""
MOST_VALUES = 2_000_000
"""Of all lines of one command: parsed, each may take a hundred bytes."""
_FEW_VALUES = 8
_COUNTED = "; a list or an object counts as many as it has"
_BETWEEN = (b",", b"[", b"{")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # never goes back, whatever a line holds


class RunnerFailed(Exception):
    """A one-shot command of the runner gave no usable result.

    Attributes:
        trace: The environment's traceback, or the end of the runner's log.
    """

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


@dataclass(frozen=True, slots=True)
class Runners:
    """Starts runners of one environment.

    Attributes:
        host: Where they run.
        environment: What they load.
        unsafe: Whether they run without isolation.
    """

    host: GraderHost
    environment: ResolvedEnvironment
    unsafe: bool = False

    def arguments(self, command: Sequence[str]) -> list[str]:
        """Return the runner's arguments for a command with its options, such as ``["tasks", "--split", "test"]``."""
        what = self.environment
        if what.root is not None:
            return list(command)  # an image knows what it is
        return ["--loader", what.loader, "--name", what.name, "--version", what.version, *command]

    def start(self, command: Sequence[str], beside: str | None = None) -> GraderProcess:
        """Start one; blocks, for threads.

        Args:
            command: The runner's command with its options.
            beside: Key of the member whose host it is to be on; None for any host.

        Raises:
            GraderNotStarted: When that can't be done.
        """
        arguments, memory_bytes = self.arguments(command), self.environment.memory_bytes
        what = self.environment
        code = what.runs_code and command[0] == "grade"
        return self.host.start(
            GraderSpec(
                what.directory,
                arguments,
                memory_bytes,
                beside,
                self.unsafe,
                python=what.python,
                code=code,
                packages=what.packages,
                cache=what.cache,
                root=_told(what),
            )
        )


def _told(what: ResolvedEnvironment) -> GraderRoot | None:
    """Return the root of an image, whose program is told its limit: by the guide it is given no options."""
    if what.root is None:
        return None
    return replace(what.root, env={**what.root.env, "NODUS_GRADING_TIMEOUT": f"{what.timeout_s:g}"})


async def run_once(
    runners: Runners, command: Sequence[str], timeout_s: float, limit_bytes: int
) -> list[dict[str, Any]]:
    """Run one command of the runner to its end, on any host, and return its result lines.

    Raises:
        RunnerFailed: When it fails, is too slow or says too much; the message says which.
        GraderNotStarted: When it can't be started.
    """
    return await asyncio.to_thread(_run, runners, command, timeout_s, limit_bytes)


def _run(runners: Runners, command: Sequence[str], timeout_s: float, limit_bytes: int) -> list[dict[str, Any]]:
    process = runners.start(command)
    try:
        process.end_requests()
        deadline = time.monotonic() + timeout_s
        lines = _Lines(limit_bytes, strict=runners.environment.root is None)
        whole = _read_all(process, deadline, lines)
        code = process.wait(deadline - time.monotonic()) if whole else None
        if code is None:
            raise RunnerFailed(f"the environment took longer than {timeout_s:g} s and was stopped", _log(process))
        return _results(lines, code, process)
    finally:
        process.close()


def _read_all(process: GraderProcess, deadline: float, lines: _Lines) -> bool:
    """Read all results; False when they were not complete in time."""
    while (chunk := process.exchange(bytearray(), deadline - time.monotonic())) is not None:
        if not chunk:
            lines.end()
            return True
        lines.feed(chunk)
    return False


class _Lines:
    """Result lines, read as they come, so that no more of a stranger's is ever held than the bounds say.

    Args:
        limit_bytes: Of all lines.
        strict: Whether what else is there than results is a fault, not left out.
    """

    def __init__(self, limit_bytes: int, *, strict: bool) -> None:
        self.found: list[dict[str, Any]] = []
        self.odd = False
        self._rest = bytearray()
        self._bytes = self._values = 0
        self._limit_bytes, self._strict = limit_bytes, strict

    def feed(self, chunk: bytes) -> None:
        """Take what was read.

        Raises:
            RunnerFailed: It is too much; the message says which limit it is.
        """
        self._bytes += len(chunk)
        if self._bytes > self._limit_bytes:
            raise RunnerFailed(f"the environment lists more than {self._limit_bytes // MIB} MiB of tasks")
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            self._add(piece)
            self.end()
        self._add(pieces[-1])

    def end(self) -> None:
        """Read the line that is there."""
        text, self._rest = bytes(self._rest), bytearray()
        for part in text.splitlines() or [b""]:
            self._read(part)

    def _add(self, piece: bytes) -> None:
        self._rest += piece
        if len(self._rest) > LINE_BYTES:
            most = f"{LINE_BYTES // MIB} MiB"
            raise RunnerFailed(f"the environment lists more than {most} of tasks in one line; a task has at most that")

    def _read(self, text: bytes) -> None:
        is_result = text.lstrip().startswith(b"{") and not self.odd
        values = max(1, _values(text)) if is_result else 1
        if values > LINE_VALUES:
            raise RunnerFailed(f"the environment lists a task of more than {LINE_VALUES} values{_COUNTED}")
        self._values += values
        if self._values > MOST_VALUES:
            raise RunnerFailed(f"the environment lists tasks of more than {MOST_VALUES} values together{_COUNTED}")
        if not is_result:
            self.odd = self.odd or (self._strict and bool(text.strip()))
            return
        try:
            self.found.append(json.loads(text))
        except (ValueError, RecursionError):
            self.odd = self._strict


def _values(text: bytes) -> int:
    """Return how many values a line of JSON holds, or somewhat more: parsed, an empty list is fifty times its text."""
    most = sum(map(text.count, _BETWEEN))
    return most if most < _FEW_VALUES else sum(map(_STRING.sub(b"", text).count, _BETWEEN))


def _results(lines: _Lines, code: int, process: GraderProcess) -> list[dict[str, Any]]:
    if lines.odd:
        raise RunnerFailed("the environment's runner printed something that is no result", _log(process))
    refused = next((line for line in lines.found if "refused" in line), None)
    if refused is not None:
        trace = storable(refused.get("traceback") or "", LOG_CHARS)
        raise RunnerFailed(storable(refused["refused"], LOG_CHARS), trace)
    if code != 0:
        cause = "ran out of memory" if process.oom_kills() else f"ended with exit code {code}"
        raise RunnerFailed(f"the environment's runner {cause}", _log(process))
    return lines.found


def _log(process: GraderProcess) -> str:
    return storable(process.log_tail(), LOG_CHARS)
