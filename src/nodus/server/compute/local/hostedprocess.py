"""One process of a Sandbox as its supervisor sees it: pipe ends, output on its way to disk, input on its way in.

Standard library only; used by ``processhost`` on its one thread. The process itself runs inside the sandbox and is
known here by its id alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import struct
import termios
import time
from dataclasses import dataclass
from typing import Any, Literal

from nodus.server.compute.local.processlog import STDERR, STDOUT, ProcessLog

READ_BYTES = 64 * 1024
MAX_STDIN_BYTES = 1 << 20
WINDOW_BYTES = 8 << 20
"""How far output may run ahead of a reader that follows it; less than what is kept, so that the reader loses none."""
READER_PATIENCE_S = 10.0
"""A reader that has not asked for so long is gone: output is kept as far as there is room, and the process goes on."""
STANDSTILL_S = 30.0
"""A reader that asks on and on for what it was given before does not follow: nobody is slowed down for it any more."""
QUIET_S, DRAIN_S = 0.2, 5.0
"""A process that ended may have left others behind that hold its output: how long they are listened to."""
KILL_PATIENCE_S = 5.0
_PTMX_MAJOR = 5
_PTMX_MINOR = 2
_TIOCSIG = 0x40045436
_PIPE_BYTES = 256 * 1024
_F_SETPIPE_SZ = 1031
_EOT = b"\x04"

StdinAnswer = Literal["", "NoStdin", "Backpressure", "OutOfOrder", "NotRunning"]


@dataclass(slots=True)
class Reader:
    """Somebody who reads along."""

    offset: int
    """What it asked for last."""
    seen: float
    """When it did, in monotonic seconds."""
    furthest: int
    """The most it ever asked for."""
    moved: float
    """When it came so far."""


class HostedProcess:
    """A process from the moment it is asked for to its last byte.

    Args:
        key: Its id.
        log: Where output and status go.
        tty: Whether it runs on a terminal.
        timeout_s: Killed after this long; None for never.
        now: Monotonic seconds.
    """

    def __init__(self, key: str, log: ProcessLog, *, tty: bool, timeout_s: float | None, now: float) -> None:
        self.key = key
        self.tty = tty
        self.log = log
        self.outputs: dict[int, int] = {}
        """Descriptors that output is read from, with their stream."""
        self.stdin: int | None = None
        self.paused = False
        self.exit_code: int | None = None
        self.reason: str | None = None
        self.deadline = None if timeout_s is None else now + timeout_s
        self.kill_at: float | None = None
        self.given_up_at: float | None = None
        """When it should long have been dead: the sandbox does not obey any more."""
        self.readers: dict[str, Reader] = {}
        """By the name that each gave."""
        self.times = {"started": time.time()}
        self._pid: int | None = None
        self._message: str | None = None
        self._stdin_buffer = bytearray()
        self._stdin_seq = 0
        self._stdin_ends = False
        self._size: tuple[int, int] | None = None
        self._exited_at = self._quiet_at = 0.0
        self._lost_bytes = 0

    # Streams ------------------------------------------------------------------------------------------------------

    def make_pipes(self, owner: tuple[int, int], *, stdin: bool) -> list[int]:
        """Make its streams and return the ends that go into the sandbox: input, output, error.

        Args:
            owner: Host uid and gid of the sandbox's processes, which may open their streams again by path.
            stdin: Whether there is input; without, it reads nothing.

        Raises:
            OSError: When there are no more descriptors to be had; :meth:`close` lets go of those there are.
        """
        inner: list[int] = []
        try:
            inner.append(self._make_stdin(owner) if stdin else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            for stream in (STDOUT, STDERR):
                read_end, write_end = os.pipe()
                inner.append(write_end)
                os.set_blocking(read_end, False)
                self.outputs[read_end] = stream
                _prepare_pipe(write_end, owner)
        except OSError:
            for fd in inner:
                os.close(fd)
            raise
        return inner

    def _make_stdin(self, owner: tuple[int, int]) -> int:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        self.stdin = write_end
        _prepare_pipe(read_end, owner)
        return read_end

    def take_terminal(self, master: int) -> bool:
        """Use the master end that came out of the sandbox; False, and nothing done, when it is no such thing."""
        info = os.fstat(master)
        is_master = stat.S_ISCHR(info.st_mode) and info.st_rdev == os.makedev(_PTMX_MAJOR, _PTMX_MINOR)
        if not self.tty or not is_master or self.outputs:
            return False
        os.set_blocking(master, False)
        self.outputs[master] = STDOUT
        self.stdin = os.dup(master)
        if self._size is not None:
            self.resize(*self._size)
        self.write()
        return True

    def read(self, fd: int, now: float) -> bool:
        """Move what is there from a stream to disk; False at its end, which :meth:`end_stream` is to be told."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""  # EIO: the last process that had the terminal is gone.
        if not data:
            return False
        self._quiet_at = now
        try:
            self.log.write(self.outputs[fd], data)
        except OSError:
            self._lost_bytes += len(data)  # A full disk must not block the process.
        return True

    def end_stream(self, fd: int) -> None:
        """Close a stream that is not read any more."""
        del self.outputs[fd]
        os.close(fd)

    # Input --------------------------------------------------------------------------------------------------------

    @property
    def wants_to_write(self) -> bool:
        """Whether input waits for the process to read it."""
        return self.stdin is not None and bool(self._stdin_buffer)

    def feed(self, data: bytes, *, ends: bool, seq: int | None) -> StdinAnswer:
        """Take input; return why not, or an empty word.

        Args:
            data: The bytes.
            ends: Whether they are the last.
            seq: Number of this call, from 1, for a sender that repeats calls whose answer it missed.
        """
        if self.exit_code is not None:
            return "NotRunning"
        if seq is not None:
            if seq <= self._stdin_seq:
                return ""
            if seq != self._stdin_seq + 1:
                return "OutOfOrder"
        if self.stdin is None and not (self.tty and not self.outputs):  # a terminal that is still on its way
            return "NoStdin"
        if self._stdin_ends:
            return "NoStdin"
        if len(self._stdin_buffer) + len(data) > MAX_STDIN_BYTES:
            return "Backpressure"
        self._stdin_seq = seq if seq is not None else self._stdin_seq
        self._stdin_buffer += data
        if ends:
            if self.tty:
                self._stdin_buffer += _EOT
            self._stdin_ends = True
        self.write()
        return ""

    def write(self) -> None:
        """Give the process as much input as it takes."""
        while self.stdin is not None and self._stdin_buffer:
            try:
                written = os.write(self.stdin, self._stdin_buffer[:READ_BYTES])
            except BlockingIOError:
                return
            except OSError:
                self._stdin_buffer.clear()  # It closed its input, or ended.
                break
            del self._stdin_buffer[:written]
        if self._stdin_ends and not self._stdin_buffer and not self.tty:
            self.close_stdin()

    def close_stdin(self) -> None:
        """Let the process see the end of its input."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    # Control ------------------------------------------------------------------------------------------------------

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal; the kernel tells the program."""
        self._size = rows, columns
        if self.tty and self.stdin is not None:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self.stdin, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal_foreground(self, number: int) -> bool:
        """Signal what is in the foreground of its terminal, as the key would; False where that isn't how."""
        if not self.tty or self.stdin is None or number not in (signal.SIGINT, signal.SIGQUIT):
            return False
        try:
            fcntl.ioctl(self.stdin, _TIOCSIG, number)
        except OSError:
            return False
        return True

    def started(self, pid: int) -> None:
        """Note that it runs."""
        self._pid = pid

    def exited(self, code: int, message: str | None, now: float) -> None:
        """Note that it ended; what it left in its pipes is still to be read."""
        self.exit_code, self._message = code, message
        self.times["finished"] = time.time()
        self._exited_at = self._quiet_at = now
        self.deadline = self.kill_at = self.given_up_at = None
        self._stdin_buffer.clear()

    def over(self, now: float) -> bool:
        """Whether it ended and all that is to be had of its output is on disk."""
        if self.exit_code is None:
            return False
        if not self.outputs:
            return True
        if self.paused:
            return False  # Somebody reads along and will let it go on, or will have left soon.
        return now >= self._quiet_at + QUIET_S or now >= self._exited_at + DRAIN_S

    # Flow ---------------------------------------------------------------------------------------------------------

    def saw(self, reader: str, offset: int, now: float) -> None:
        """Note how far a reader has come."""
        known = self.readers.get(reader)
        if known is None:
            self.readers[reader] = Reader(offset, now, offset, now)
            return
        known.offset, known.seen = offset, now
        if offset > known.furthest:
            known.furthest, known.moved = offset, now

    def decide_flow(self, now: float) -> bool:
        """Decide whether output is to be read now; return whether that changed."""
        for name, reader in list(self.readers.items()):
            if now - reader.seen > READER_PATIENCE_S:
                del self.readers[name]
            elif not self.paused and self.log.total_bytes - reader.offset < WINDOW_BYTES:
                reader.moved = max(reader.moved, now)  # There is nothing that it had to hurry for.
        following = [reader.offset for reader in self.readers.values() if now - reader.moved <= STANDSTILL_S]
        slowest = min(following, default=self.log.total_bytes)
        paused = self.log.total_bytes - slowest >= WINDOW_BYTES
        changed, self.paused = paused != self.paused, paused
        if changed and not paused and self.exit_code is not None:
            self._exited_at = self._quiet_at = now  # What it left behind is read only from now on.
        return changed

    # Records ------------------------------------------------------------------------------------------------------

    def record(self, phase: str) -> None:
        """Write its status to disk."""
        status: dict[str, Any] = {
            "phase": phase,
            "pid": self._pid,
            "exitCode": self.exit_code,
            "reason": self.reason,
            "message": self._message,
            "times": self.times,
            "bytes": self.log.total_bytes,
            "bytesLost": self._lost_bytes,
        }
        try:
            self.log.write_status({key: value for key, value in status.items() if value is not None})
        except OSError as error:
            # A full disk: the end is then told by the supervisor alone, for as long as it lives.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOENT):
                raise

    def close(self) -> None:
        """Let go of everything; what still holds the other ends writes to nobody."""
        self.close_stdin()
        for fd in self.outputs:
            os.close(fd)
        self.outputs.clear()
        self.log.close()


def _prepare_pipe(inner_end: int, owner: tuple[int, int]) -> None:
    with contextlib.suppress(OSError):  # not root: the sandbox's user is ourselves
        os.fchown(inner_end, *owner)
    with contextlib.suppress(OSError):  # over the user's limit of pipe memory: a small pipe works too
        fcntl.fcntl(inner_end, _F_SETPIPE_SZ, _PIPE_BYTES)
