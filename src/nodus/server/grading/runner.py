"""How the runner ``nodus-env`` is started in a sandbox: what it sees, what it may use, and one-shot commands.

Everything is launched by one thread that lives as long as the server: the kernel ends a sandbox when the thread that
started it ends, so that no grader outlives the server, whatever ends the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nodus.server.compute.local.mounts import (
    IDENTITY_FILES,
    Mount,
    interpreter,
    interpreter_mounts,
    package_root,
    site_packages,
    system_mounts,
)
from nodus.server.compute.local.sandbox import MIB, Mode, SandboxProcess, SandboxSpec, launch
from nodus.server.files import readable
from nodus.server.grading.environments import ResolvedEnvironment
from nodus.server.grading.verdicts import storable

T = TypeVar("T")
_INSIDE_NODUS = "/opt/nodus"
_INSIDE_ENVIRONMENT = "/opt/environment"
_INSIDE_PACKAGES = "/opt/python/lib/python{}.{}/site-packages"
_ADDRESS_SPACE_FACTOR = 8  # numpy and friends reserve far more than they touch
_STDERR_TAIL = 8 * 1024
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MPLCONFIGDIR": "/tmp",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


class RunnerFailed(Exception):
    """A one-shot command of the runner gave no usable result.

    Attributes:
        trace: The environment's traceback, or the end of the runner's log.
    """

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


def grader_spec(
    environment: ResolvedEnvironment, command: list[str], output_fd: int, lifeline_fd: int, mode: Mode | None
) -> SandboxSpec:
    """Return the sandbox of one runner.

    Args:
        environment: What it loads.
        command: The runner's command with its options, such as ``["tasks", "--split", "test"]``.
        output_fd: The private descriptor of its results.
        lifeline_fd: The read end of a pipe that the server holds the other end of.
        mode: ``unsafe`` gives host paths, for a run without isolation.
    """
    view = _host_view(environment) if mode == "unsafe" else _sandbox_view(environment)
    # -S and -P: nothing is imported that was not named; not -I, which would ignore PYTHONHASHSEED
    argv = [interpreter(), "-S", "-s", "-P", "-B", f"{view.nodus}/nodus/grader"]
    argv += ["--loader", environment.loader, "--path", view.environment, "--name", environment.name]
    argv += ["--version", environment.version, "--output-fd", str(output_fd), "--lifeline-fd", str(lifeline_fd)]
    for directory in view.packages:
        argv += ["--library", directory]
    extra = {"OPENBLAS_CORETYPE": os.environ["OPENBLAS_CORETYPE"]} if "OPENBLAS_CORETYPE" in os.environ else {}
    return SandboxSpec(
        argv=(*argv, *command),
        env={**_ENVIRONMENT, **extra},
        mounts=(*system_mounts(), *interpreter_mounts(), *view.mounts),
        tmpfs={"/tmp": 64 * MIB, "/dev/shm": 16 * MIB},
        files=IDENTITY_FILES,
        hostname="grader",
        init=False,
        memory_bytes=environment.memory_bytes,
        pids=64,
        pids_by_rlimit=16,
        address_space_bytes=_ADDRESS_SPACE_FACTOR * environment.memory_bytes,
        file_bytes=64 * MIB,
        open_files=256,
        umask=0o077,
    )


@dataclass(frozen=True, slots=True)
class _View:
    nodus: str
    environment: str
    packages: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()


def _sandbox_view(environment: ResolvedEnvironment) -> _View:
    mounts = [Mount(str(Path(package_root(), "nodus", "grader")), f"{_INSIDE_NODUS}/nodus/grader")]
    if environment.directory is not None:
        mounts.append(Mount(str(environment.directory), _INSIDE_ENVIRONMENT))
    packages: list[str] = []
    for number, directory in enumerate(site_packages()):
        # ends in site-packages: some libraries decide by that whether a module is importable
        inside = _INSIDE_PACKAGES.format(*sys.version_info[:2]) + (f"-{number}" if number else "")
        packages.append(inside)
        mounts.append(Mount(directory, inside))
    return _View(_INSIDE_NODUS, _INSIDE_ENVIRONMENT, tuple(packages), tuple(mounts))


def _host_view(environment: ResolvedEnvironment) -> _View:
    return _View(package_root(), str(environment.directory or _INSIDE_ENVIRONMENT), site_packages())


class Launcher:
    """Starts sandboxes from one thread that lives until ``close``.

    Args:
        unsafe: Run without isolation; the operator asked for it.
    """

    def __init__(self, unsafe: bool = False) -> None:
        self.mode: Mode | None = "unsafe" if unsafe else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nodus-grader-launcher")

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function on the launcher's thread."""
        return await asyncio.wrap_future(self._thread.submit(function))

    def call_sync(self, function: Callable[[], T]) -> T:
        """Run a function on the launcher's thread and wait for it; for other threads."""
        return self._thread.submit(function).result()

    def close(self) -> None:
        """End the thread and wait for that; what it started ends with it."""
        self._thread.shutdown(cancel_futures=True)

    def start(self, environment: ResolvedEnvironment, command: list[str]) -> Runner:
        """Start a runner.

        Raises:
            SandboxError: When no sandbox can be started.
        """
        results, output = os.pipe()
        lifeline, held = os.pipe()
        try:
            spec = grader_spec(environment, command, output, lifeline, self.mode)
            pipe = subprocess.PIPE
            process = launch(spec, stdin=pipe, stderr=pipe, pass_fds=[output, lifeline], mode=self.mode)
        except BaseException:
            os.close(results)
            os.close(held)
            raise
        finally:
            os.close(output)
            os.close(lifeline)
        return Runner(process, results, held)


class Runner:
    """A runner's sandbox and the server's ends of its pipes.

    Args:
        process: The sandbox; stdin and stderr are pipes.
        results: Where its result lines are read.
        lifeline: What keeps it alive: it ends when this is closed, as it is when the server dies.

    Attributes:
        process: The sandbox.
        results: Where its result lines are read.
        log: The end of what it wrote to its standard error.
    """

    def __init__(self, process: SandboxProcess, results: int, lifeline: int) -> None:
        self.process = process
        self.results = results
        self.log = StderrTail(process)
        self._lifeline = lifeline

    @property
    def stdin(self) -> int:
        """Where its requests are written."""
        assert self.process.popen.stdin is not None
        return self.process.popen.stdin.fileno()

    def close_stdin(self) -> None:
        """Say that no more requests come."""
        if self.process.popen.stdin:
            with contextlib.suppress(OSError):
                self.process.popen.stdin.close()

    def close(self) -> None:
        """End it and everything in its sandbox, and close every pipe."""
        self.process.kill_tree()
        self.close_stdin()
        os.close(self.results)
        os.close(self._lifeline)
        self.log.close()


async def run_once(
    launcher: Launcher, environment: ResolvedEnvironment, command: list[str], timeout_s: float, limit_bytes: int
) -> list[dict[str, Any]]:
    """Run one command of the runner to its end and return its result lines.

    Raises:
        RunnerFailed: When it fails, is too slow or says too much; the message says which.
        SandboxError: When no sandbox can be started.
    """
    runner = await launcher.call(lambda: launcher.start(environment, command))
    return await asyncio.to_thread(_collect, runner, timeout_s, limit_bytes)


def _collect(runner: Runner, timeout_s: float, limit_bytes: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + timeout_s
    data = bytearray()
    try:
        runner.close_stdin()
        while readable(deadline - time.monotonic(), runner.results):
            chunk = os.read(runner.results, 1 << 20)
            if not chunk:
                return _lines(bytes(data), runner.process.wait(timeout_s), runner.process, runner.log)
            data += chunk
            if len(data) > limit_bytes:
                raise RunnerFailed(f"the environment lists more than {limit_bytes // MIB} MiB of tasks")
        raise RunnerFailed(f"the environment took longer than {timeout_s:g} s and was stopped", runner.log.text())
    finally:
        runner.close()


def _lines(data: bytes, code: int, process: SandboxProcess, log: StderrTail) -> list[dict[str, Any]]:
    try:
        lines = [json.loads(line) for line in data.splitlines()]
    except (ValueError, RecursionError):
        raise RunnerFailed("the environment's runner printed something that is no result", log.text()) from None
    refused = next((line for line in lines if isinstance(line, dict) and "refused" in line), None)
    if refused is not None:
        trace = storable(refused.get("traceback") or "", _STDERR_TAIL)
        raise RunnerFailed(storable(refused["refused"], _STDERR_TAIL), trace)
    if code != 0:
        oom = process.usage().oom_kills
        cause = "ran out of memory" if oom else f"ended with exit code {code}"
        raise RunnerFailed(f"the environment's runner {cause}", log.text())
    return lines


class StderrTail:
    """Reads a runner's standard error to its end on a thread of its own, and keeps the last 8 KiB.

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
                self._tail = (self._tail + chunk)[-_STDERR_TAIL:]

    def text(self) -> str:
        """Return what was kept; complete once the sandbox has ended."""
        return storable(self._tail.decode(errors="replace"), _STDERR_TAIL)

    def close(self) -> None:
        """Close the pipe, after the sandbox ended."""
        self._thread.join(1.0)
        if self._stream is not None:
            self._stream.close()
