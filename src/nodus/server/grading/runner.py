"""The runner ``nodus-env`` for one environment: how it is called, and commands that run once to their end.

Where it runs, and how it is isolated, is the compute backend's.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nodus.server.compute.graders import GraderHost, GraderProcess, GraderRoot, GraderSpec
from nodus.server.grading.environments import MIB, ResolvedEnvironment
from nodus.server.grading.verdicts import storable

LOG_CHARS = 8 * 1024
"""How much is kept of what an environment says about a failure."""


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
        data = _read_all(process, deadline, limit_bytes)
        code = None if data is None else process.wait(deadline - time.monotonic())
        if data is None or code is None:
            raise RunnerFailed(f"the environment took longer than {timeout_s:g} s and was stopped", _log(process))
        return _lines(data, code, process, strict=runners.environment.root is None)
    finally:
        process.close()


def _read_all(process: GraderProcess, deadline: float, limit_bytes: int) -> bytes | None:
    """Return all results; None when they were not complete in time."""
    data = bytearray()
    while (chunk := process.exchange(bytearray(), deadline - time.monotonic())) is not None:
        if not chunk:
            return bytes(data)
        data += chunk
        if len(data) > limit_bytes:
            raise RunnerFailed(f"the environment lists more than {limit_bytes // MIB} MiB of tasks")
    return None


def _lines(data: bytes, code: int, process: GraderProcess, *, strict: bool) -> list[dict[str, Any]]:
    """Return the results; where not ``strict``, what else is on standard output is left out."""
    lines = []
    for text in data.splitlines():
        try:
            lines.append(json.loads(text))
        except (ValueError, RecursionError):
            if strict:
                message = "the environment's runner printed something that is no result"
                raise RunnerFailed(message, _log(process)) from None
    refused = next((line for line in lines if isinstance(line, dict) and "refused" in line), None)
    if refused is not None:
        trace = storable(refused.get("traceback") or "", LOG_CHARS)
        raise RunnerFailed(storable(refused["refused"], LOG_CHARS), trace)
    if code != 0:
        cause = "ran out of memory" if process.oom_kills() else f"ended with exit code {code}"
        raise RunnerFailed(f"the environment's runner {cause}", _log(process))
    return lines


def _log(process: GraderProcess) -> str:
    return storable(process.log_tail(), LOG_CHARS)
