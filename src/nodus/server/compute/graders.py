"""What a compute backend does for the grading service: run graders, on the hosts of its members.

A grader has no state and no key: when it is lost, another is started, and what it was asked is asked again. None
outlives the server that started it, whatever ends that server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GraderRoot:
    """A root file system that a grader runs in, an image's: what grades is a program of it, not Nodus's runner.

    Attributes:
        directory: Its files, on the server's machine; the grader reads them and can't change them.
        program: The program, as it is called there.
        env: The image's environment.
        cwd: Where it starts.
    """

    directory: Path
    program: str
    env: Mapping[str, str]
    cwd: str = "/"


@dataclass(frozen=True, slots=True)
class GraderSpec:
    """A process of the runner ``nodus-env``, which runs an environment's code and grades untrusted completions.

    It gets no network and no files but its environment's, the runner's and its libraries'.

    Attributes:
        directory: The environment's files, on the server's machine; the grader reads them and can't change them. None
            for an environment of the catalog, which comes with the runner.
        arguments: Of the runner: what to load, then a command with its options. Where things are on the grader's host
            (the environment, libraries, descriptors) the backend adds in front.
        memory_bytes: Memory of all its processes together.
        beside: Key of the member whose completions it grades: it runs on that member's host. None where there is no
            member yet, as when tasks are listed: any host will do.
        unsafe: Run it without isolation; the operator asked for that.
        python: Version of the Python that runs it, such as ``3.12``, one that ``GraderHost.python`` found; None for the
            host's own.
        code: Give it a second sandbox, of another user and without its files, that runs code of completions.
        packages: Directories of installed packages, on the server's machine, which it has instead of the host's own.
        cache: Data that a build fetched, on the server's machine: what its home directory shows.
        root: Where it runs and what is run there; its results are what that writes to standard output then. None for
            Nodus's runner on the host's Python.
    """

    directory: Path | None
    arguments: Sequence[str]
    memory_bytes: int
    beside: str | None = None
    unsafe: bool = False
    python: str | None = None
    code: bool = False
    packages: Sequence[Path] = ()
    cache: Path | None = None
    root: GraderRoot | None = None


@dataclass(frozen=True, slots=True)
class GraderIsolation:
    """Whether graders can be isolated.

    Attributes:
        problems: Why they can't; empty when they can.
        fix: What to do about it, one command where possible.
    """

    problems: Sequence[str] = ()
    fix: str | None = None

    @property
    def ok(self) -> bool:
        """Whether untrusted code can be isolated."""
        return not self.problems


class GraderNotStarted(Exception):
    """No grader could be started; the message says why. Another try may help."""


class GraderProcess(Protocol):
    """A grader that was started. Its methods block, for one thread at a time; ``interrupt`` is for any thread."""

    @property
    def argv(self) -> Sequence[str]:
        """Its command line, as verdicts record it."""
        ...

    @property
    def isolation(self) -> str:
        """How it is isolated, as verdicts record it."""
        ...

    def exchange(self, requests: bytearray, timeout_s: float) -> bytes | None:
        """Send what can be sent of ``requests``, taking it from there, until there are results; return them.

        Returns:
            A piece of the results, cut anywhere; empty when no more will come; None when time ran out.
        """
        ...

    def end_requests(self) -> None:
        """Say that no more requests come."""
        ...

    def wait(self, timeout_s: float) -> int | None:
        """Wait until nothing of it runs any more; return its exit code, or None when time ran out."""
        ...

    def kill(self) -> int:
        """End it and everything it started; return its exit code once nothing is left."""
        ...

    def interrupt(self) -> None:
        """Begin to end it and return at once; who waits for results then sees their end."""
        ...

    def oom_kills(self) -> int:
        """Return how many of its processes were killed for want of memory so far, or in all once it has ended."""
        ...

    def log_tail(self) -> str:
        """Return the end of what it wrote to its standard error; complete once it has ended."""
        ...

    def close(self) -> None:
        """End it and everything it started, and let go of it."""
        ...


class GraderHost(Protocol):
    """Where graders run: the hosts of a backend's members."""

    async def sweep(self) -> None:
        """Remove what graders of a server that was killed have left."""
        ...

    async def isolation(self) -> GraderIsolation:
        """Return whether graders can be isolated there now."""
        ...

    def python(self, version: str | None = None) -> str | None:
        """Return what a Python there names its compiled modules after; blocks, for threads.

        Args:
            version: Such as ``3.12``; None for the Python that graders run with where nothing else is asked for.

        Returns:
            Such as ``cpython-312-x86_64-linux-gnu``; None when there is no Python of that version.
        """
        ...

    def start(self, spec: GraderSpec) -> GraderProcess:
        """Start a grader; blocks, for threads.

        Raises:
            GraderNotStarted: When none can be started, or not where it should be.
        """
        ...

    async def close(self) -> None:
        """End every grader and wait for that; none is started any more."""
        ...
