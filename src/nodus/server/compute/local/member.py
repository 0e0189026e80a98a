"""From an attempt's spec to a running sandbox, and from its end to words. Used by the supervisor; stdlib only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
from typing import Any, NamedTuple

from nodus.server.compute.local import seccomp
from nodus.server.compute.local.attemptdir import AttemptDir
from nodus.server.compute.local.hosting import Hosting
from nodus.server.compute.local.mounts import IDENTITY_FILES, Mount
from nodus.server.compute.local.sandbox import SandboxError, SandboxProcess, SandboxSpec, launch
from nodus.server.compute.programs import RUN_PROGRAM

MAX_PROCESSES = 4096
MAX_OPEN_FILES = 65536
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_LEADING = ("bwrap", "prlimit", os.path.basename(os.path.realpath("/bin/sh")))
"""Programs that a sandbox's first process is, one after the other, until it is the sandbox."""
# Bubblewrap ties a sandbox's life to its parent's only at the end of its own set-up: a supervisor that is killed within
# those milliseconds would leave a sandbox behind. So the command waits for a word of the supervisor, whose end is none.
_GATE = ("/bin/sh", "-c", f"read -r NODUS_GATE || exit\nexec </dev/null\n{RUN_PROGRAM}")


def sandbox_spec(attempt: AttemptDir, spec: dict[str, Any], hosting: Hosting | None = None) -> SandboxSpec:
    """Return the sandbox that ``spec.json`` asks for.

    The directories that the command writes are below the attempt's own, except for those named in ``mounts``.
    """
    command = spec["command"] if hosting is None else hosting.command(spec["command"])
    own = [
        Mount(str(attempt.run), "/run/nodus"),
        Mount(str(attempt.workspace), "/workspace", readonly=False),
        Mount(str(attempt.outputs), "/nodus/outputs", readonly=False),
        Mount(str(attempt.termination), "/nodus/termination", readonly=False),
    ]
    given = [Mount(str(m["host"]), str(m["path"]), bool(m["readonly"]), bool(m.get("symlink"))) for m in spec["mounts"]]
    memory_bytes = int(spec["memoryBytes"])
    cpu = float(spec["cpu"])
    return SandboxSpec(
        argv=(*_GATE, mark(attempt.key), *command),
        env=dict(spec["env"]),
        mounts=(*own, *given),
        # Memory of a tmpfs counts as the command's own; the half is what Linux gives a tmpfs by default.
        tmpfs={"/tmp": memory_bytes // 2, "/dev/shm": memory_bytes // 2},
        files={**IDENTITY_FILES, **{path: text.encode() for path, text in spec.get("files", {}).items()}},
        cwd=str(spec["cwd"]),
        hostname=str(spec.get("hostname", "nodus")),
        devices=tuple(spec.get("devices", ())),
        seccomp=seccomp.job_profile(),
        # A Sandbox has a process one of its own, which reaps, and ends when the supervisor's end of its socket does.
        init=hosting is None,
        memory_bytes=memory_bytes,
        pids=MAX_PROCESSES,
        # Whole cores are given by affinity, which programs see; a quota on top would only throttle.
        cpu=None if cpu.is_integer() else cpu,
        open_files=min(MAX_OPEN_FILES, _most_open_files()),
    )


class Started(NamedTuple):
    """A sandbox that is ready to run its command."""

    process: SandboxProcess
    output: int
    """The descriptor that the command's output (both streams, in order) is read from."""
    gate: int
    """Write a line to it and close it: the command begins."""


def mark(key: str) -> str:
    """Return the argument by which a sandbox's processes are found on the host: the gate's name for itself."""
    return f"nodus-attempt-{key}"


def kill_left_over(key: str) -> int:
    """Kill what a supervisor that was killed during the start left behind; return how many processes.

    Until bubblewrap has set itself up, its inner half waits for the outer one and doesn't notice its end; before that
    the programs that lead to it don't either. The command of such a sandbox never began.
    """
    wanted, killed = mark(key).encode(), 0
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if not entry.isdigit() or os.path.basename(os.readlink(f"/proc/{entry}/exe")) not in _LEADING:
                continue
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    os.kill(int(entry), signal.SIGKILL)
                    killed += 1
    return killed


def start_member(attempt: AttemptDir, spec: dict[str, Any], hosting: Hosting | None = None) -> Started:
    """Start the sandbox; the command in it waits at the gate.

    Call it from the main thread: the sandbox dies with the thread that started it.

    Args:
        attempt: Its directory.
        spec: The content of ``spec.json``.
        hosting: For an attempt that hosts further processes.

    Raises:
        SandboxError: When the sandbox can't be made.
        OSError: When a descriptor or process can't be had.
    """
    if cores := spec.get("cores"):
        with contextlib.suppress(OSError):  # A core that went offline: the quota of the others is enough.
            os.sched_setaffinity(0, {int(core) for core in cores})
    gate_read, gate = os.pipe()
    read_end, write_end = os.pipe()
    with contextlib.suppress(OSError):  # Over the user's limit of pipe memory: a small pipe works too.
        fcntl.fcntl(read_end, _F_SETPIPE_SZ, _PIPE_BYTES)
    try:
        inherited = () if hosting is None else (hosting.inner_fd,)
        sandbox = sandbox_spec(attempt, spec, hosting)
        process = launch(sandbox, stdin=gate_read, stdout=write_end, stderr=write_end, pass_fds=inherited)
    except SandboxError as error:
        os.close(gate)
        os.set_blocking(read_end, False)
        with contextlib.suppress(OSError), os.fdopen(read_end, "rb") as complaints:
            # Bubblewrap speaks where the command would have spoken.
            raise SandboxError(f"{error} {(complaints.read(4096) or b'').decode(errors='replace').strip()}") from error
        raise
    finally:
        os.close(write_end)
        os.close(gate_read)
    return Started(process, read_end, gate)


def describe_end(process: SandboxProcess, code: int, stop_reason: str | None, spec: dict[str, Any]) -> dict[str, Any]:
    """Return how a member ended, as ``status.json`` says it.

    Args:
        process: The sandbox; it has ended.
        code: Its exit code; 128 and the signal's number when a signal ended it.
        stop_reason: Why the supervisor stopped it, if it did.
        spec: The content of ``spec.json``.
    """
    usage = process.usage()
    number = code - 128 if 128 < code < 128 + 65 else None
    end: dict[str, Any] = {"exitCode": code, "signal": number, "peakMemoryBytes": usage.peak_memory_bytes}
    if stop_reason is not None:
        return {**end, "reason": stop_reason}
    if usage.oom_kills and code != 0:
        limit_mib = int(spec["memoryBytes"]) // (1 << 20)
        end["reason"] = "OOMKilled"
        end["message"] = f"the command needed more than its {limit_mib} MiB of memory and was killed"
        end["fix"] = "Ask for more with resources.memory."
    elif code in (126, 127):
        what = "was not found" if code == 127 else "can't be executed"
        program = next(iter(spec["command"]), "process one")
        end["message"] = f"exit code {code}; in most cases the command ({program!r}), or one that it ran, {what}"
    elif number is not None:
        end["message"] = f"the command was ended by {_signal_name(number)}"
    elif code:
        end["message"] = f"the command exited with code {code}"
    if usage.forks_refused and code:
        end["message"] = f"{end.get('message', '')}; it ran into the limit of {MAX_PROCESSES} processes".lstrip("; ")
    return end


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _most_open_files() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else hard
