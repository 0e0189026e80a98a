"""Starting processes inside a Sandbox, with pipes or on a terminal of their own."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Mapping, Sequence
from typing import NoReturn

_HIGHEST_DESCRIPTOR = 4096
_DEFAULT_SIGNALS = (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGHUP)
NOT_FOUND, NOT_EXECUTABLE = 127, 126


def spawn(argv: Sequence[str], env: Mapping[str, str], cwd: str, streams: Sequence[int] | None) -> int:
    """Start a process in a session of its own and return its pid.

    Args:
        argv: Program and arguments; the program is looked up in the environment's PATH.
        env: Its whole environment.
        cwd: Its working directory.
        streams: Descriptors of its standard input, output and error; None for nothing and this process's own two.

    Raises:
        OSError: When no process can be started. A program that can't be found or executed is an exit code.
    """
    pid = os.fork()
    if pid == 0:
        _become(argv, env, cwd, streams, terminal=False)
    return pid


def spawn_with_terminal(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, size: Sequence[int] | None
) -> tuple[int, int]:
    """Start a process on a new terminal and return its pid and the terminal's master end.

    Args:
        argv: As for :func:`spawn`, like the next two.
        env: See there.
        cwd: See there.
        size: Rows and columns; 24 and 80 when None.

    Raises:
        OSError: When there is no terminal or no process to be had.
    """
    master, slave = os.openpty()
    rows, columns = size or (24, 80)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    try:
        pid = os.fork()
    except OSError:
        os.close(master)
        raise
    else:
        if pid == 0:
            _become(argv, {"TERM": "xterm-256color", **env}, cwd, (slave, slave, slave), terminal=True)
        return pid, master
    finally:
        os.close(slave)


def _become(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, streams: Sequence[int] | None, *, terminal: bool
) -> NoReturn:
    """Turn this forked process into the program; never returns."""
    code = NOT_EXECUTABLE
    try:
        signal.set_wakeup_fd(-1)
        for number in _DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _plug(streams, terminal=terminal)
        os.chdir(cwd)
        os.execvpe(argv[0], list(argv), dict(env))
    except FileNotFoundError as error:
        code = NOT_FOUND
        if not os.path.isdir(cwd):
            _complain(f"{cwd}: {error.strerror}")
        else:
            _complain(f"{argv[0]}: {error.strerror if '/' in argv[0] else 'command not found'}")
    except OSError as error:
        _complain(f"{argv[0]}: {error.strerror}")
    except BaseException as error:  # noqa: BLE001 - the last frame of a forked process: it must not go on as process one
        _complain(f"{argv[0]}: {error}")
    finally:
        os._exit(code)


def _plug(streams: Sequence[int] | None, *, terminal: bool) -> None:
    """Put the standard streams in place and close everything else."""
    if streams is None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
    else:
        # Copied above the three first, so that putting one in place closes none of the others.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in streams]
        for number, fd in enumerate(high):
            os.dup2(fd, number)
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.closerange(3, _HIGHEST_DESCRIPTOR)


def _complain(text: str) -> None:
    """Say on standard error why the program doesn't start, as a shell would."""
    try:
        os.write(2, f"nodus: {text}\n".encode(errors="replace"))
    except OSError:
        pass  # Nobody reads it; the exit code says enough.
