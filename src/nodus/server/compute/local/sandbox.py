"""Start one command in a sandbox, know everything about it while it runs, and leave nothing of it behind.

Used by job supervisors and by the grading pool; standard library only, importable without the rest of the server.

A sandbox is a bubblewrap container: own mount, pid, network, ipc, uts and cgroup namespaces, a root file system made of
the paths named in its :class:`SandboxSpec` and nothing else, no capabilities, no new privileges, a system call filter,
and limits by control groups (or resource limits where there are none). The command runs as a uid that owns nothing.

* As root, bubblewrap makes no user namespace and ``setpriv`` drops to the sandbox's uid inside it; so an interpreter
  below a 0700 home still works, because root binds it. Without control groups, graders get a uid each, see ``uidpool``.
* As another user, a user namespace maps the user to the sandbox's uid.

Life of a sandbox::

    launch() -> running --(command exits | kill_tree())--> wait() returns --> every process and the cgroup are gone

    spec = SandboxSpec(argv=("/usr/bin/id",), mounts=system_mounts())
    process = launch(spec, stdout=subprocess.PIPE)
    code = process.wait(timeout_s=10)
    usage = process.usage()

``launch`` must be called from a thread that lives as long as the sandbox may: the kernel kills the sandbox when the
*thread* that started it ends (but see ``SandboxSpec.init``). Not protected against: bugs in the kernel,
timing side channels, a caller that mounts something secret.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from nodus.server.compute.local import cgroups, seccomp, uidpool
from nodus.server.compute.local.mounts import Mount, system_mounts
from nodus.server.compute.local.sandboxspec import (
    MIB,
    SANDBOX_UID,
    Mode,
    SandboxSpec,
    bwrap_options,
    inner_argv,
    prlimit,
)

_PR_SET_CHILD_SUBREAPER = 36
_REAP_TIMEOUT_S = 5.0
# The shell joins the control groups before it becomes bubblewrap: adding the pid afterwards would miss the inner
# process, and a preexec_fn would fork a threaded server.
_JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; umask "$1"; shift; exec "$@"'

__all__ = [
    "MIB",
    "SANDBOX_UID",
    "Mode",
    "Mount",
    "SandboxError",
    "SandboxProcess",
    "SandboxSpec",
    "Usage",
    "become_subreaper",
    "current_mode",
    "host_owner",
    "launch",
    "system_mounts",
]


class SandboxError(RuntimeError):
    """A sandbox could not be started."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox used.

    Attributes:
        oom_kills: Processes that the kernel killed for want of memory.
        peak_memory_bytes: The most memory used at once; None where there is no control group.
        forks_refused: Forks refused for the process limit.
    """

    oom_kills: int = 0
    peak_memory_bytes: int | None = None
    forks_refused: int = 0


def current_mode() -> Mode:
    """Return how this process starts sandboxes: ``root`` or ``userns``."""
    return "root" if os.geteuid() == 0 else "userns"


def host_owner(uid: int = SANDBOX_UID) -> tuple[int, int]:
    """Return the host uid and gid of a sandbox's processes: who must own the directories it writes to."""
    return (uid, uid) if os.geteuid() == 0 else (os.getuid(), os.getgid())


def become_subreaper() -> None:
    """Make orphans below this process its children, so that it can wait for a sandbox's inner process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def isolation_name(mode: Mode, group: cgroups.Cgroup | None) -> str:
    """Return the isolation as verdicts record it, such as ``bubblewrap-root+seccomp+cgroup-v1``."""
    if mode == "unsafe":
        return "none (--allow-unsafe-sandbox)"
    limits = f"cgroup-v{group.version}" if group else "rlimits"
    return f"bubblewrap-{mode}+seccomp+{limits}"


def _memory_fd(name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name)
    with open(os.dup(descriptor), "wb") as stream:
        stream.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


@dataclass(slots=True)
class SandboxProcess:
    """A running sandbox.

    Attributes:
        popen: The outer process (bubblewrap's monitor); its pipes are the command's.
        inner_pid: Process 1 of the sandbox as the host numbers it.
        isolation: What a verdict records.
        argv: The command inside.
        mode: How it was started.
        init: Whether process 1 is a reaper and not the command.
        started_at: Monotonic seconds.
    """

    popen: subprocess.Popen[bytes]
    inner_pid: int
    isolation: str
    argv: tuple[str, ...]
    mode: Mode
    init: bool
    started_at: float
    _inner_fd: int | None = None
    _group: cgroups.Cgroup | None = None
    _own_uid: int | None = None
    _usage: Usage | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def pid(self) -> int:
        """The outer process's pid."""
        return self.popen.pid

    def poll(self) -> int | None:
        """Return the exit code when the sandbox has ended and everything is cleaned up, else None."""
        if self.popen.poll() is None:
            return None
        return self.wait()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the command's end, and for the end of every process of the sandbox.

        Returns:
            The exit code; 128 plus the signal's number when a signal ended it.

        Raises:
            subprocess.TimeoutExpired: When it still runs after ``timeout_s``.
        """
        code = self.popen.wait(timeout_s)
        self._finish()
        return code if code >= 0 else 128 - code

    def kill_tree(self) -> int:
        """Kill every process of the sandbox and return its exit code once none is left."""
        if self.mode == "unsafe":
            self._kill_group()
        elif self.popen.poll() is None:
            # the inner process first: its end takes the whole pid namespace along, and the outer one reaps it
            self.interrupt()
            try:
                self.popen.wait(_REAP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        return self.wait()

    def signal(self, number: int) -> bool:
        """Send a signal to the command (not to its reaper); False when it is already gone."""
        if self.popen.poll() is not None:
            return False
        target = self.command_pid()
        if target is None:
            return False
        try:
            os.kill(target, number)
        except ProcessLookupError:
            return False
        return True

    def command_pid(self) -> int | None:
        """Return the command's pid on the host; None when it is gone or not there yet."""
        if not self.init or self.mode == "unsafe":
            return self.inner_pid
        try:
            children = Path(f"/proc/{self.inner_pid}/task/{self.inner_pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def pids(self) -> list[int]:
        """Return the sandbox's processes as the host numbers them (empty without a control group)."""
        return self._group.pids() if self._group else []

    def usage(self) -> Usage:
        """Return what the sandbox used so far, or in all once it has ended."""
        if self._usage is not None:
            return self._usage
        if self._group is None:
            return Usage()
        return Usage(self._group.oom_kills(), self._group.peak_memory_bytes(), self._group.pids_refused())

    def interrupt(self) -> None:
        """Kill the sandbox and return at once; whoever waits for it cleans up. Safe from any thread."""
        if self.mode == "unsafe":
            self._kill_group()
            return
        with self._lock:
            self._signal_inner(signal.SIGKILL)

    def _signal_inner(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._inner_fd is not None:
                signal.pidfd_send_signal(self._inner_fd, number)

    def _kill_group(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    def _finish(self) -> None:
        """Wait until the pid namespace is empty, note the usage and remove the control group; once."""
        with self._lock:
            if self._inner_fd is not None:
                # a pidfd of a namespace's process 1 is readable only after every process in it was reaped
                self._signal_inner(signal.SIGKILL)
                poller = select.poll()  # not select: a server may have descriptors above its limit
                poller.register(self._inner_fd, select.POLLIN)
                poller.poll(_REAP_TIMEOUT_S * 1000)
                os.close(self._inner_fd)
                self._inner_fd = None
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(self.inner_pid, os.WNOHANG)
            if self.mode == "unsafe" and self._usage is None:
                self._kill_group()
            if self._usage is None:
                self._usage = self.usage()
            if self._group is not None:
                self._group.remove()
                self._group = None
            if self._own_uid is not None:
                uidpool.give_back(self._own_uid)
                self._own_uid = None


def launch(
    spec: SandboxSpec,
    *,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = subprocess.DEVNULL,
    stderr: int | IO[bytes] | None = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    mode: Mode | None = None,
) -> SandboxProcess:
    """Start a sandbox.

    Args:
        spec: What runs and what it sees.
        stdin: As ``subprocess.Popen`` takes it; closed by default.
        stdout: Likewise; dropped by default.
        stderr: Likewise; bubblewrap's own complaints go there too.
        pass_fds: Descriptors the command gets under the same numbers; no other is inherited.
        mode: ``unsafe`` runs the command without isolation (the operator must have asked for it).

    Returns:
        The running sandbox. Its command may still fail to start: that is an exit code.

    Raises:
        SandboxError: When bubblewrap is missing or cannot start.
        UnsupportedArchitecture: When the machine has no system call filter.
    """
    mode = mode or current_mode()
    group = cgroups.create(cgroups.Limits(spec.memory_bytes, spec.pids, spec.cpu, spec.oom_group))
    own_uid = uidpool.take() if mode == "root" and group is None and spec.pids_by_rlimit is not None else None
    if own_uid is not None:
        spec = uidpool.as_user(spec, own_uid)
    joins = [str(path) for path in group.procs_files()] if group else []
    prefix = ["/bin/sh", "-c", _JOIN, "nodus-sandbox", *joins, "--", f"{spec.umask:03o}", *prlimit(spec, group)]
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    try:
        if mode == "unsafe":
            popen = _spawn_unsafe(spec, prefix, streams, pass_fds)
            inner_pid = popen.pid
        else:
            popen, inner_pid = _spawn(spec, inner_argv(spec, mode, group), mode, prefix, streams, pass_fds)
    except BaseException:
        if group:
            group.remove()
        if own_uid is not None:
            uidpool.give_back(own_uid)
        raise
    inner_fd = None
    if mode != "unsafe":
        with contextlib.suppress(ProcessLookupError):
            inner_fd = os.pidfd_open(inner_pid)
    name = isolation_name(mode, group)
    started = time.monotonic()
    return SandboxProcess(popen, inner_pid, name, spec.argv, mode, spec.init, started, inner_fd, group, own_uid)


def _spawn(
    spec: SandboxSpec,
    inner: list[str],
    mode: Mode,
    prefix: list[str],
    streams: Mapping[str, object],
    pass_fds: Sequence[int],
) -> tuple[subprocess.Popen[bytes], int]:
    """Start bubblewrap and return it with the inner pid that it reported."""
    with contextlib.ExitStack() as stack:

        def temporary(descriptor: int) -> int:
            stack.callback(os.close, descriptor)
            return descriptor

        files = {path: temporary(_memory_fd("file", content)) for path, content in spec.files.items()}
        profile = spec.seccomp if spec.seccomp is not None else seccomp.grader_profile()
        filter_fd = temporary(_memory_fd("seccomp", profile))
        # options travel by descriptor: environment values must not show in the host's process list
        encoded = b"\0".join(option.encode() for option in bwrap_options(spec, mode, files))
        options_fd = temporary(_memory_fd("options", encoded))
        info_read, info_write = os.pipe()
        info = stack.enter_context(open(info_read, "rb"))
        command = [*prefix, "bwrap", "--args", str(options_fd), "--seccomp", str(filter_fd)]
        command += ["--info-fd", str(info_write), *([] if spec.init else ["--as-pid-1"])]
        try:
            popen = subprocess.Popen(
                [*command, "--", *inner],
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C"},
                pass_fds=(*pass_fds, *files.values(), filter_fd, options_fd, info_write),
                **streams,  # type: ignore[call-overload]
            )
        finally:
            os.close(info_write)
        report = info.read()
    try:
        return popen, int(json.loads(report)["child-pid"])
    except (ValueError, KeyError):
        raise SandboxError(_start_failure(popen)) from None


def _start_failure(popen: subprocess.Popen[bytes]) -> str:
    complaint = popen.stderr.read().decode(errors="replace").strip() if popen.stderr else ""
    code = popen.wait()
    for stream in (popen.stdin, popen.stdout, popen.stderr):
        if stream:
            stream.close()
    return f"bubblewrap could not start a sandbox (exit {code}){': ' + complaint if complaint else ''}"


def _spawn_unsafe(
    spec: SandboxSpec, prefix: list[str], streams: Mapping[str, object], pass_fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    cwd = spec.cwd if os.path.isdir(spec.cwd) else "/tmp"
    popen: subprocess.Popen[bytes] = subprocess.Popen(
        [*prefix, *spec.argv],
        env=dict(spec.env),
        cwd=cwd,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
        **streams,  # type: ignore[call-overload]
    )
    return popen


def main() -> int:
    """Run a command in a sandbox from a shell, for a look around: ``python -m ...sandbox COMMAND...``."""
    spec = SandboxSpec(argv=tuple(sys.argv[1:]), mounts=system_mounts(), env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"})
    return launch(spec, stdin=None, stdout=None, stderr=None).wait()


if __name__ == "__main__":
    raise SystemExit(main())
