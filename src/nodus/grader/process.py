"""System calls that the worker needs and Python does not wrap, and the cleaning up between completions."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import stat
import time
from collections.abc import Sequence

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_SANDBOX = "NODUS_GRADING_SANDBOX"
"""Set in the sandbox of an image, where process 1 is the sandbox's own reaper and the runner is process 2."""
_LEFTOVERS_TIMEOUT_S = 0.2
_WIPE_TIMEOUT_S = 0.5
SCRATCH = ("/tmp", "/dev/shm")

_libc = ctypes.CDLL(None, use_errno=True)


def hide_memory() -> None:
    """Close this process to others of its uid: /proc/PID/mem, environ, fd, and ptrace."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def end_with_writer(descriptor: int) -> None:
    """End this process, at once and whatever it is doing, when the last writer of a pipe is gone.

    The kernel then sends SIGIO, and its handler is the C library's ``_exit`` itself: it works while the environment
    hangs inside C code, where Python could run no handler. Nothing may ever be written to the pipe.
    """
    _libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    _libc.signal(signal.SIGIO, ctypes.cast(_libc._exit, ctypes.c_void_p))
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_inheritable(descriptor, False)
    if select.select([descriptor], [], [], 0)[0]:
        os._exit(signal.SIGIO)  # it was gone before there was a handler


def end_at_alarm() -> None:
    """End this process at SIGALRM, whatever it is doing then; its exit code is the signal's number."""
    _libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    _libc.signal(signal.SIGALRM, ctypes.cast(_libc._exit, ctypes.c_void_p))


def is_namespace_init() -> bool:
    """Say whether this is the first process of its own sandbox, and so may end every other one and empty /tmp."""
    behind_reaper = os.environ.get(_SANDBOX) == "1" and (os.getpid(), os.getppid()) == (2, 1)
    return behind_reaper or os.getpid() == 1


def adopt_orphans() -> None:
    """Have what its children leave running as this process's own children, as process 1 has."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_leftovers() -> bool:
    """Kill and reap every other process of the sandbox; True when none is left.

    Only for the first process: there, kill(-1) spares itself (and process 1) and nothing outside the sandbox is
    reachable, and every orphan is its child, so that "no children" means "no processes".
    """
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    deadline = time.monotonic() + _LEFTOVERS_TIMEOUT_S
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)


def wipe(directories: Sequence[str] = SCRATCH) -> bool:
    """Empty the scratch directories; False when something could not be removed (then the worker must be replaced).

    What can't be removed within half a second is left: whoever filled them must not make others wait, and a new sandbox
    is empty too.
    """
    deadline = time.monotonic() + _WIPE_TIMEOUT_S
    try:
        return all(_empty(directory, deadline) for directory in directories if os.path.isdir(directory))
    except (OSError, RecursionError):
        return False


def _empty(directory: str, deadline: float) -> bool:
    """Remove all that is in a directory; False when time ran out."""
    with os.scandir(directory) as entries:
        found = list(entries)  # one descriptor at a time, however deep it goes
    for entry in found:
        if time.monotonic() > deadline:
            return False
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
            continue
        os.chmod(entry.path, stat.S_IRWXU)
        if not _empty(entry.path, deadline):
            return False
        os.rmdir(entry.path)
    return True
