"""What a sandbox is made of, and the command lines that make it: values in, argument lists out.

Standard library only, importable alone. ``sandbox.py`` starts what is described here.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nodus.server.compute.local import cgroups, mounts
from nodus.server.compute.local.mounts import Mount

SANDBOX_UID = 10001
MIB = 1024 * 1024
Mode = Literal["root", "userns", "unsafe"]
_RESERVED_FACTOR = 2
_PROCESS_HEADROOM = 512
_COUNTS_BY_NAMESPACE = (5, 14)  # since this kernel, RLIMIT_NPROC counts a user namespace's own processes
_CAPABILITIES_TO_DROP_UID = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What runs in a sandbox, what it sees and what it may use.

    Attributes:
        argv: The command, by absolute path inside the sandbox.
        env: Its whole environment; nothing is inherited.
        mounts: Host paths it sees, in addition to /proc and a minimal /dev; see ``system_mounts``.
        tmpfs: Writable in-memory directories, path to size in bytes.
        files: Small read-only files, path to content.
        cwd: Working directory inside.
        hostname: What the sandbox calls itself.
        uid: User and group id inside; as root also the host's uid of the processes.
        network: Only ``none``: an own, empty network namespace with loopback.
        devices: Host device nodes it may use, such as ``/dev/nvidia0``.
        seccomp: A classic BPF program; the grader's profile when None.
        init: True puts a reaper as process 1 (for arbitrary commands). False makes the command itself process 1: for
            commands that reap, and whose exit must mean that nothing is left. As root such a command outlives a
            launcher that is killed (bubblewrap, without capabilities, may not signal the foreign uid), so it must
            watch a descriptor of its launcher's.
        memory_bytes: Limit over all processes of the sandbox.
        pids: Limit of processes and threads.
        pids_by_rlimit: The same where there is no control group, and memory is bounded for each process only. As root,
            the sandbox then runs as a user of its own, of ``uidpool``: it writes to no directory of the host's.
        cpu: CPUs, such as 2.0.
        oom_group: Out of memory ends the whole sandbox instead of its largest process (version 2 groups).
        address_space_bytes: Limit of one process's address space.
        cpu_s: CPU seconds of one process.
        file_bytes: Largest file a process may write.
        open_files: File descriptors of one process.
        umask: File mode creation mask.
        enter: A directory inside that ``argv``, which is ``enterroot.py`` then, makes its root. /proc and /dev are
            below it, and the command starts with what changing root and user takes, which it gives up itself: no
            program of a stranger's root may be run to do that.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    tmpfs: Mapping[str, int] = field(default_factory=lambda: {"/tmp": 64 * MIB, "/dev/shm": 64 * MIB})
    files: Mapping[str, bytes] = field(default_factory=dict)
    cwd: str = "/tmp"
    hostname: str = "nodus"
    uid: int = SANDBOX_UID
    network: Literal["none"] = "none"
    devices: tuple[str, ...] = ()
    seccomp: bytes | None = None
    init: bool = True
    memory_bytes: int | None = None
    pids: int | None = 256
    pids_by_rlimit: int | None = None
    cpu: float | None = None
    oom_group: bool = False
    address_space_bytes: int | None = None
    cpu_s: int | None = None
    file_bytes: int | None = None
    open_files: int = 1024
    umask: int = 0o022
    enter: str | None = None


def bwrap_options(spec: SandboxSpec, mode: Mode, file_fds: Mapping[str, int]) -> list[str]:
    """Return bubblewrap's options for a spec, without the descriptors that ``launch`` adds.

    Args:
        spec: The sandbox.
        mode: ``root`` or ``userns``.
        file_fds: For each path of ``spec.files``, the descriptor its content is read from.
    """
    options = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    options += ["--hostname", spec.hostname, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if mode == "userns":
        options += ["--unshare-user", "--uid", str(spec.uid), "--gid", str(spec.uid)]
    else:
        for capability in _CAPABILITIES_TO_DROP_UID:
            options += ["--cap-add", capability]
    if spec.enter is not None:
        options += ["--cap-add", "CAP_SYS_CHROOT"]
    if not spec.init:
        options.append("--as-pid-1")
    options.append("--clearenv")
    for name, value in spec.env.items():
        options += ["--setenv", name, value]
    options += mounts.options(spec.mounts, spec.tmpfs, file_fds, spec.devices, spec.enter or "")
    return [*options, "--chdir", spec.cwd]


def inner_argv(spec: SandboxSpec, mode: Mode, group: cgroups.Cgroup | None) -> list[str]:
    """Return what bubblewrap executes: the command, as root behind the program that drops to the sandbox's uid.

    A command that enters another root drops to the uid itself.
    """
    if spec.enter is not None:
        return list(spec.argv)
    if mode == "userns":
        processes = spec.pids_by_rlimit or spec.pids
        if group is not None or processes is None or not counts_by_namespace():
            return list(spec.argv)
        # Not over the limit that `prlimit` set for all of the user's: nothing may raise it again.
        return ["/usr/bin/prlimit", f"--nproc={min(processes, _PROCESS_HEADROOM)}", "--", *spec.argv]
    limited: list[str] = []
    if group is None and spec.pids_by_rlimit is not None:
        limited = ["/usr/bin/prlimit", f"--nproc={spec.pids_by_rlimit}", "--"]  # of a user that nobody else is
    drop = [*limited, "/usr/bin/setpriv", "--reuid", str(spec.uid), "--regid", str(spec.uid), "--clear-groups"]
    return [*drop, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--", *spec.argv]


def prlimit(spec: SandboxSpec, group: cgroups.Cgroup | None) -> list[str]:
    """Return the command prefix that sets the resource limits; stricter where there is no control group."""
    limits = ["--core=0", "--memlock=0", "--msgqueue=0", f"--nofile={spec.open_files}"]
    address_space = spec.address_space_bytes
    if group is None:
        # Without a control group, address space times processes is the only bound there is. Libraries reserve more
        # address space than they ever touch, hence the factor.
        by_memory = None if spec.memory_bytes is None else _RESERVED_FACTOR * spec.memory_bytes
        address_space = min((value for value in (address_space, by_memory) if value), default=None)
        # The kernel counts all processes of the uid, in every sandbox: no more than a bound on fork bombs. As a plain
        # user the exact limit is set inside the user namespace, see inner_argv.
        limits.append(f"--nproc={_processes_of(spec.uid if os.geteuid() == 0 else os.getuid()) + _PROCESS_HEADROOM}")
    for name, value in (("as", address_space), ("cpu", spec.cpu_s), ("fsize", spec.file_bytes)):
        if value is not None:
            limits.append(f"--{name}={value}")
    return ["prlimit", *limits, "--"]


def _processes_of(uid: int) -> int:
    """Return how many threads a user runs now: the kernel's limit counts all of them."""
    count = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                count += len(os.listdir(entry / "task"))
    return count


def counts_by_namespace() -> bool:
    """Tell whether the kernel counts a user namespace's processes by themselves, so that they can be limited inside."""
    return _kernel() >= _COUNTS_BY_NAMESPACE


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
