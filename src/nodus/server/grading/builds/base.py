"""What recipes and the service that runs them agree on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from nodus.core.clock import Clock, rfc3339
from nodus.server.grading.verdicts import storable

StepPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Skipped"]
MESSAGE_CHARS = 8000
"""Of a message of a build, which may quote what strangers say."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be built.

    Attributes:
        uid: The Image's.
        image: The Image's name.
        environment: The Environment's name.
        version: Its version.
        package: Its ``spec.package``, in wire form.
    """

    uid: str
    image: str
    environment: str
    version: str
    package: Mapping[str, Any]


class BuildFailed(Exception):
    """A step can't be done.

    Args:
        message: One sentence that quotes what is wrong.
        fix: What to do about it.
        transient: Whether trying again later may help.
        reason: CamelCase.
    """

    def __init__(
        self, message: str, fix: str = "", *, transient: bool = False, reason: str = "EnvironmentBuildFailed"
    ) -> None:
        message = storable(message, MESSAGE_CHARS)
        super().__init__(message)
        self.message, self.fix = message, storable(fix, MESSAGE_CHARS)
        self.transient, self.reason = transient, reason


class BuildStopped(Exception):
    """The build was told to stop: its Image is gone, or the server stops."""


@dataclass(frozen=True, slots=True)
class Built:
    """What a recipe made.

    Attributes:
        content: What the directory's content is decided by, as JSON: its digest is the build's.
        facts: What is kept beside it, as JSON, for whoever runs the build: see :class:`Build`.
        packages: Installed packages with their versions, for people.
    """

    content: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Build:
    """A finished build.

    Attributes:
        digest: ``sha256:`` of its content.
        directory: Where it is; nobody changes it any more.
        facts: What its recipe noted.
        packages: Installed packages with their versions.
        size_bytes: Its size on the disk.
    """

    digest: str
    directory: Path
    facts: Mapping[str, Any]
    packages: Mapping[str, str]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a build, as ``status.steps`` shows it."""

    name: str
    phase: StepPhase = "Pending"
    start_time: str | None = None
    completion_time: str | None = None
    message: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return it as an Image's status has it."""
        found = {
            "name": self.name, "phase": self.phase, "startTime": self.start_time,
            "completionTime": self.completion_time, "message": self.message,
        }  # fmt: skip
        return {key: value for key, value in found.items() if value is not None}


class Report:
    """Where a recipe says what it does; used from the build's own thread, read from any.

    Args:
        steps: Names of all steps, in order.
        write_log: Takes output as it comes.
        clock: Says when steps begin and end.
    """

    def __init__(self, steps: Sequence[str], write_log: Callable[[bytes], None], clock: Clock) -> None:
        self._steps = tuple(Step(name) for name in steps)
        self._write = write_log
        self._clock = clock
        self.stopping = threading.Event()
        """Set when the build is to end: long steps look at it."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step as it is now."""
        return self._steps

    @property
    def running(self) -> Step | None:
        """The step that runs."""
        return next((step for step in self._steps if step.phase == "Running"), None)

    def step(self, name: str, message: str = "") -> None:
        """Begin a step; the one before it has succeeded.

        Raises:
            BuildStopped: The build is to end.
        """
        self.check()
        self.succeed()
        self._change(name, phase="Running", start_time=self._now(), message=message or None)
        self.write(f"== {name}{': ' + message if message else ''}\n")

    def say(self, message: str) -> None:
        """Set what is shown of the running step."""
        if (step := self.running) is not None:
            self._change(step.name, message=message)

    def write(self, data: bytes | str) -> None:
        """Add to the log."""
        self._write(data.encode(errors="replace") if isinstance(data, str) else data)

    def check(self) -> None:
        """End here where the build is to end.

        Raises:
            BuildStopped: It is.
        """
        if self.stopping.is_set():
            raise BuildStopped

    def succeed(self) -> None:
        """End the running step, if there is one."""
        if (step := self.running) is not None:
            self._change(step.name, phase="Succeeded", completion_time=self._now())

    def fail(self, message: str) -> None:
        """End the running step, or the first that was not begun, as the one that failed."""
        step = self.running or next((step for step in self._steps if step.phase == "Pending"), self._steps[-1])
        start = step.start_time or self._now()
        self._change(step.name, phase="Failed", start_time=start, completion_time=self._now(), message=message)
        self.write(f"== {step.name} failed: {message}\n")

    def skip(self, message: str) -> None:
        """Say that no step is needed."""
        shown = storable(message, MESSAGE_CHARS)
        self._steps = tuple(replace(step, phase="Skipped", message=shown) for step in self._steps)
        self.write(f"== {message}\n")

    def _change(self, name: str, **changes: Any) -> None:
        if changes.get("message") is not None:
            changes["message"] = storable(changes["message"], MESSAGE_CHARS)
        self._steps = tuple(replace(step, **changes) if step.name == name else step for step in self._steps)

    def _now(self) -> str:
        return rfc3339(self._clock.now())


class Recipe(Protocol):
    """How one packaging is built. Its methods block, in a thread; the same recipe builds several at once."""

    @property
    def steps(self) -> Sequence[str]:
        """Names of its steps, in order."""
        ...

    def key(self, order: Order) -> str:
        """Return the digest of everything that is known to decide the result before anything is fetched.

        A finished build of the same key is used again, and of two at once, the second waits for the first.
        """
        ...

    def build(self, order: Order, work: Path, report: Report) -> Built:
        """Fill the empty directory ``work``; what is in it at the end is kept.

        Raises:
            BuildFailed: The running step can't be done.
            BuildStopped: It was told to stop.
        """
        ...


def later(now: datetime, seconds: float) -> str:
    """Return a moment that many seconds after ``now`` as RFC 3339."""
    return rfc3339(datetime.fromtimestamp(now.timestamp() + seconds, now.tzinfo))
