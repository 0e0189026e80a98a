"""What a compute backend does inside a member that hosts processes, as a Sandbox does: run commands, touch files.

The keys are the member's (an Attempt's uid) and the process's own uid; a process is started at most once. Output is
kept for as long as the member's directory is, whatever becomes of server and member.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

Stream = Literal["stdout", "stderr"]
ProcessPhase = Literal["Absent", "Running", "Exited", "Lost"]
"""Absent: it was never started. Lost: its member ended without a word, and it with it."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A command to run inside a member.

    Attributes:
        key: The Process's uid.
        command: Program and arguments, run without a shell.
        env: Variables on top of the member's.
        cwd: Absolute working directory.
        tty: Whether it gets a terminal; its output is one stream then.
        stdin: Whether it gets input; without, it reads the end of its input at once.
        timeout_s: Killed this long after its start; None for never.
        size: Rows and columns of the terminal.
    """

    key: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/workspace"
    tty: bool = False
    stdin: bool = False
    timeout_s: float | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What is known of a process now.

    Attributes:
        exit_code: 128 and the signal's number for one that a signal ended.
        reason: ``DeadlineExceeded``, the reason of a stop, or ``SandboxStopped``; None when it ended by itself.
        times: Seconds since the epoch by name: ``started``, ``finished``.
    """

    phase: ProcessPhase
    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None
    times: Mapping[str, float] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether it ran and does no more."""
        return self.phase in ("Exited", "Lost")


class OutputPiece(NamedTuple):
    """A stretch of a process's output; ``dropped`` bytes are missing at its offset, and ``data`` is empty then."""

    offset: int
    stream: Stream
    data: bytes
    dropped: int = 0

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.offset + len(self.data) + self.dropped


EntryType = Literal["file", "directory", "symlink", "other"]


class FileEntry(NamedTuple):
    """A name in a directory of a member."""

    name: str
    type: EntryType
    size: int
    mode: str
    """Octal, such as ``0644``."""
    modified: str
    """RFC 3339."""
    target: str | None = None
    """Where a link leads."""
    to_directory: bool = False
    """Whether a link leads to a directory."""


class Activity(NamedTuple):
    """Whether anything goes on in a member, and else when something last did, in seconds since the epoch."""

    busy: bool
    at: float


class OpenFile(Protocol):
    """What a path inside a member is: a file being read, or a directory being listed. Close it in any case."""

    size: int | None
    """Bytes of a file; None where that can't be told before, as for files of ``/proc``."""
    mode: str
    modified: str
    is_directory: bool

    def blocks(self) -> AsyncIterator[bytes]:
        """Yield the file's bytes."""
        ...

    def entries(self) -> AsyncIterator[FileEntry]:
        """Yield the directory's entries by name."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class Processes(Protocol):
    """Processes and files inside members."""

    async def exec(self, member: str, spec: ProcessSpec) -> None:
        """Start a process unless its key was started before.

        Raises:
            SandboxNotRunning: The member doesn't run.
            TooManyRequests: As many processes as there may be run already.
            Unavailable: It can't be started just now.
        """
        ...

    async def state(self, member: str, key: str) -> ProcessState:
        """Return where a process stands."""
        ...

    async def read(self, member: str, key: str, after: int, *, limit_bytes: int = 1 << 20) -> list[OutputPiece]:
        """Return what there is of its output from an offset on, not much over a limit; empty when there is no more."""
        ...

    async def wait(self, member: str, key: str, after: int, timeout_s: float, *, reader: str = "") -> bool:
        """Wait until there is output after an offset, or the process ended, or the time is over.

        A process that writes faster than its readers read is slowed down; one that nobody has read for a while is not.

        Args:
            member: The member's key.
            key: The process's.
            after: The offset, as far as the reader has come.
            timeout_s: Longest wait.
            reader: Tells readers apart that follow the same process.

        Returns:
            Whether it ended. Its output up to then can be read.
        """
        ...

    async def write(self, member: str, key: str, data: bytes, *, ends: bool = False, seq: int | None = None) -> None:
        """Give it input.

        Args:
            member: The member's key.
            key: The process's.
            data: The bytes.
            ends: Whether they are the last.
            seq: Number of this call from 1, for a sender that may repeat one.

        Raises:
            StdinBackpressure: It does not read what it was given before.
            Conflict: It has no input, or the number is out of order.
            SandboxNotRunning: It does not run.
        """
        ...

    async def signal(self, member: str, key: str, number: int) -> None:
        """Send a signal to it and its group; one that ended stays as it is."""
        ...

    async def resize(self, member: str, key: str, rows: int, columns: int) -> None:
        """Set the size of its terminal."""
        ...

    async def stop(self, member: str, key: str, reason: str, grace_s: float) -> None:
        """Ask for its end, and enforce it after a while; one that ended stays as it is."""
        ...

    async def open_file(self, member: str, path: str, *, within: Sequence[str] = ()) -> OpenFile:
        """Open a file or directory with the member's own rights.

        Args:
            member: The member.
            path: Absolute path inside of it.
            within: Directories that it must be below, links followed; empty for anywhere.

        Raises:
            Forbidden: It is below none of these.
            NotFound: There is none.
            Invalid: It is no file, or may not be read.
            SandboxNotRunning: The member doesn't run.
        """
        ...

    async def put_file(
        self,
        member: str,
        path: str,
        content: AsyncIterator[bytes],
        *,
        mode: int | None = None,
        expected_sha256: str | None = None,
        limit_bytes: int,
    ) -> tuple[int, str]:
        """Write a file whole or not at all, with its directories; return its size and sha256.

        Args:
            member: The member's key.
            path: Absolute; one that ends in a slash makes a directory.
            content: The bytes.
            mode: Permissions; those of the file as it is, or ``0644``, when None.
            expected_sha256: Digest of the bytes sent, or of the file as it is.
            limit_bytes: Most bytes.

        Raises:
            SHA256Mismatch: Neither has that digest.
            FileTooLarge: There are more bytes, or there is no room for them.
            Invalid: It can't be written.
            SandboxNotRunning: The member doesn't run.
        """
        ...

    async def delete_file(self, member: str, path: str, *, recursive: bool = False) -> None:
        """Delete a file, or a directory that is empty or, with ``recursive``, whatever is in it.

        Raises:
            NotFound: There is none.
            Invalid: It is a directory that isn't empty, or may not be deleted.
            SandboxNotRunning: The member doesn't run.
        """
        ...

    async def activity(self, member: str) -> Activity | None:
        """Return whether anything goes on in a member; None before it began."""
        ...

    async def forget(self, member: str, key: str) -> None:
        """Delete what is kept of a process that ended."""
        ...
