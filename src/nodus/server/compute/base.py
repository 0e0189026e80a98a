"""What a compute backend does: run members, one per Attempt (or rank of a gang), and graders beside them.

A backend keeps no truth of its own: what a member is doing is read from where it runs. All methods are idempotent by
the member's key, so that a controller that crashed between an effect and its record can repeat it. The state machine
of runs (retries, gangs, suspension) lives above, in the controllers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from nodus.core.errors import NodusError
from nodus.server.compute.graders import GraderHost
from nodus.server.compute.processes import Processes

MemberPhase = Literal["Absent", "Starting", "Running", "Exited", "Lost"]
"""Absent: nothing runs and nothing ran. Lost: it ran and its supervisor died without saying how it ended."""


class Mount(NamedTuple):
    """A host path inside a member."""

    source: str
    target: str
    read_only: bool = True


class InputFile(NamedTuple):
    """A blob that a member finds as a read-only file."""

    blob: str
    """Digest, 64 hex digits."""
    path: str
    """Absolute path inside the member."""


class OutputRule(NamedTuple):
    """A file or directory to collect when a member ended."""

    name: str
    """Prefix of the names of what is found; empty: the path below the directory alone."""
    path: str
    """Absolute path inside the member."""


class CheckpointPlan(NamedTuple):
    """What a member keeps of its state, and how often it is asked to save it."""

    paths: Sequence[str] = ()
    """Directories inside the member; the first is where its command saves."""
    seq: int = 0
    """Number of the newest checkpoint of the members before it; its own go on from there."""
    interval_s: float | None = None
    """How often it is asked; None for never, but for when it is stopped to go on later."""


NO_CHECKPOINTS = CheckpointPlan()


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A command to run in isolation.

    Attributes:
        key: The Attempt's uid; a key is run at most once.
        command: Program and arguments, run without a shell.
        env: Environment on top of the image's; may hold secrets, and is never shown.
        image: A managed image such as ``nodus/base``.
        token: The bearer token added to requests on the API socket.
        cpu: CPU cores it may use.
        memory_bytes: Memory it may use; over it, it is killed.
        gpus: GPUs it gets for itself.
        timeout_s: Killed this long after its start; None for never.
        mounts: Host paths to show inside.
        inputs: Blobs to show inside as files.
        files: Small read-only files, absolute path inside to content; may hold secrets, and are never shown.
        source: Digest of a tar.gz to unpack into the working directory first.
        state_dir: Host directory at ``/nodus/state``; it outlives the member.
        workspace_dir: Host directory at ``/workspace`` that outlives the member too; None for one of its own.
        cwd: Working directory inside.
        network: ``none`` is the only policy of this issue's backends.
        grace_s: Between SIGTERM and SIGKILL when it is stopped.
        log_limit_bytes: How much output is kept.
        processes: Whether it hosts further processes, as a Sandbox does; its own command may be empty then.
        checkpoint: What it keeps.
    """

    key: str
    command: Sequence[str]
    image: str
    token: str
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: float = 1.0
    memory_bytes: int = 1 << 30
    gpus: int = 0
    timeout_s: float | None = None
    mounts: Sequence[Mount] = ()
    inputs: Sequence[InputFile] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    source: str | None = None
    state_dir: str | None = None
    workspace_dir: str | None = None
    cwd: str = "/workspace"
    network: Literal["none"] = "none"
    grace_s: float = 10.0
    log_limit_bytes: int = 50 * 1024 * 1024
    processes: bool = False
    checkpoint: CheckpointPlan = NO_CHECKPOINTS


@dataclass(frozen=True, slots=True)
class MemberState:
    """What is known of a member now.

    Attributes:
        exit_code: Of the command, when it exited by itself.
        signal: Number of the signal that ended it.
        reason: ``OOMKilled``, ``DeadlineExceeded``, ``StartFailed``, the reason of a stop, or the one that the command
            wrote to ``/nodus/termination/message.json``.
        retryable: False when the command said that another try fails the same way.
        times: Seconds since the epoch by name: ``created``, ``started``, ``finished``, and ``pausedAt`` while its
            funding has run out; plain seconds: ``paused`` in all before that, and ``ran``, by a clock nobody sets.
        funded_s: How long it may run, pauses left out; None where that isn't limited.
    """

    key: str
    phase: MemberPhase
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    fix: str | None = None
    retryable: bool | None = None
    times: Mapping[str, float] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    isolation: str | None = None
    funded_s: float | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more, though it ran."""
        return self.phase in ("Exited", "Lost")


class Reported(NamedTuple):
    """What a member's command said of itself, as it stands in an Attempt's status; empty where it said nothing."""

    progress: Mapping[str, Any]
    """``stage``, ``units``, ``metrics``, ``tasks``; and ``ignored``, how many events were not taken, by why."""
    checkpoint: Mapping[str, Any]
    """``seq``, ``time``, ``size`` and ``trigger`` of the newest one that it saved, and ``count``."""


NOTHING_SAID = Reported({}, {})


class Usage(NamedTuple):
    """What a member has used, and holds."""

    cpu_s: float
    """CPU seconds since its start, of all its processes."""
    memory_bytes: int
    """Resident memory; pages that processes share count in each."""


class Collected(NamedTuple):
    """A file that was put into the blob store."""

    name: str
    path: str
    sha256: str
    size_bytes: int


class LogPiece(NamedTuple):
    """A stretch of a member's output; ``dropped`` bytes are missing before ``data``."""

    offset: int
    data: bytes
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the machines have and what is free of it.

    Attributes:
        cpu: Cores for members.
        memory_bytes: Memory for members; a share of the machine's is kept for graders and the server.
    """

    cpu: float
    memory_bytes: int
    free_cpu: float
    free_memory_bytes: int


class StartRefused(NodusError):
    """The member can't be started as asked, and trying again would not help; the message says why."""

    reason, status = "StartFailed", 422


class ComputeBackend(Protocol):
    """Runs members and graders; see the module's docstring for the rules."""

    name: str

    @property
    def graders(self) -> GraderHost:
        """Starts graders on the hosts of its members; the grading service alone uses it, and closes it."""
        ...

    @property
    def processes(self) -> Processes:
        """Processes and files inside members that host them."""
        ...

    async def capacity(self) -> Capacity:
        """Return what the machines have and what is free."""
        ...

    async def reserve(self, key: str, cpu: float, memory_bytes: int, gpus: int = 0) -> str | None:
        """Set capacity aside for a member, once per key; None when it is done, else what is missing, for a person."""
        ...

    async def start(self, spec: MemberSpec) -> MemberState:
        """Start a member unless its key was started before; return where it stands.

        Raises:
            StartRefused: When it can't run here at all: unknown image, missing blob, no isolation.
        """
        ...

    async def stop(self, key: str, reason: str, *, grace_s: float | None = None, checkpoint_s: float = 0.0) -> None:
        """Ask for the end of a member; returns at once. One that hasn't begun never begins.

        Args:
            key: Which member.
            reason: Why, as it will stand in its state.
            grace_s: Between SIGTERM and SIGKILL; None for what its spec says.
            checkpoint_s: How long its command may take to save a checkpoint first, if it asked to be told.
        """
        ...

    async def refuse(self, key: str, message: str, fix: str | None = None) -> None:
        """Record that a member can't be started and never will be: it is Exited with the reason ``StartFailed``."""
        ...

    async def usage(self, keys: Sequence[str]) -> Mapping[str, Usage]:
        """Return what members use now; those that do not run are left out."""
        ...

    async def state(self, key: str) -> MemberState:
        """Return where a member stands."""
        ...

    def reported(self, key: str) -> Reported:
        """Return what a member's command has said of itself."""
        ...

    async def attach(self) -> list[MemberState]:
        """Find all members there are, running or not, after a start of the server."""
        ...

    def events(self) -> AsyncIterator[str]:
        """Yield the key of each member whose state changes, until cancelled. May repeat, may miss; states are truth."""
        ...

    def read_log(self, key: str, offset: int = 0, *, follow: bool = False) -> AsyncIterator[LogPiece]:
        """Yield a member's output from ``offset``; with ``follow``, until it ended."""
        ...

    async def collect(self, key: str, rules: Sequence[OutputRule]) -> list[Collected]:
        """Put a member's output files into the blob store, by name; links and special files are left out."""
        ...

    def workspace_directory(self, sandbox_uid: str) -> Path:
        """Return where the files of a Sandbox are that outlive its members; it need not be there yet."""
        ...

    async def workspaces(self) -> list[str]:
        """Return the uids of the Sandboxes that have such files."""
        ...

    async def release_workspace(self, sandbox_uid: str) -> None:
        """Delete the files of a Sandbox; its members are being released."""
        ...

    async def release(self, key: str) -> None:
        """Stop a member at once, give its capacity back and delete what it left on the machine."""
        ...

    async def finish(self, key: str) -> None:
        """Give the capacity of a member that ended back; its logs stay."""
        ...
