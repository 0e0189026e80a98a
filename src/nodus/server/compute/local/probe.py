"""Find out, by trying, how well this machine isolates untrusted code, and say what to install or switch on.

Run at the server's start and by ``nodus doctor``; standard library only. It fails closed: ``Isolation.ok`` is True only
when a real sandbox was started and looked right from the inside.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from nodus.server.compute.local import cgroups
from nodus.server.compute.local.sandbox import (
    MIB,
    SANDBOX_UID,
    SandboxError,
    SandboxProcess,
    SandboxSpec,
    current_mode,
    launch,
    system_mounts,
)
from nodus.server.compute.local.seccomp import UnsupportedArchitecture

_TIMEOUT_S = 20.0
# prints "key value" lines about the inside; sh only, so that it also works where Python is the thing that is broken
_LOOK_AROUND = """
while read -r key value rest; do
  case "$key" in Uid:|CapEff:|NoNewPrivs:|Seccomp:) echo "$key $value";; esac
done < /proc/self/status
while read -r name rest; do
  case "$name" in *:) echo "Interface: $name";; esac
done < /proc/net/dev
[ -e /etc/shadow ] && echo "Sees: /etc/shadow"
[ -e /home ] && echo "Sees: /home"
exit 0
"""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What isolation this machine gives.

    Attributes:
        name: As verdicts record it, such as ``bubblewrap-root+seccomp+cgroup-v1``.
        mode: ``root`` (setpriv drops the uid) or ``userns`` (a user namespace maps it).
        user_ns: Whether sandboxes run in a user namespace of their own.
        net_ns: Whether a sandbox sees no network interface but its own loopback.
        seccomp: Whether the system call filter is in force.
        memory_limit: ``cgroup-v1``, ``cgroup-v2``, or ``rlimits`` (bounds one process at a time).
        pids_limit: Likewise.
        problems: Why untrusted code cannot be isolated; empty when it can.
        warnings: What is weaker than it could be.
        fix: What to do about the problems, one command where possible.
    """

    name: str
    mode: str
    user_ns: bool
    net_ns: bool
    seccomp: bool
    memory_limit: str
    pids_limit: str
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    fix: str | None = None

    @property
    def ok(self) -> bool:
        """True when untrusted code can be isolated."""
        return not self.problems


@dataclass(slots=True)
class _Findings:
    facts: dict[str, str] = field(default_factory=dict)
    interfaces: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    fix: str | None = None
    name: str = "none"


def probe() -> Isolation:
    """Start a sandbox, look around in it, and report (some 30 ms); a machine that lacks something is a report too."""
    found = _Findings()
    _check_programs(found)
    if not found.problems:
        _try_sandbox(found)
    if not found.problems:
        _judge(found)
    place = cgroups.hierarchy()
    limits = _limits(found, place)
    mode = current_mode()
    warnings = () if limits != "rlimits" else (_RLIMITS_WARNING,)
    return Isolation(
        name=found.name,
        mode=mode,
        user_ns=mode == "userns" and found.name != "none",
        net_ns=found.interfaces == ["lo:"],
        seccomp=found.facts.get("Seccomp:") == "2",
        memory_limit=limits,
        pids_limit=limits,
        problems=tuple(found.problems),
        warnings=warnings,
        fix=found.fix,
    )


_RLIMITS_WARNING = (
    "no control group can be made here, so memory is bounded for each process and not for a sandbox; "
    "run the server as root, or in a systemd service with Delegate=yes"
)


def _limits(found: _Findings, place: cgroups.Hierarchy | None) -> str:
    if found.name != "none":
        return found.name.rsplit("+", 1)[-1]
    return f"cgroup-v{place.version}" if place else "rlimits"


def _check_programs(found: _Findings) -> None:
    needed = {"bwrap": "bubblewrap", "prlimit": "util-linux", "setpriv": "util-linux"}
    missing = [package for program, package in needed.items() if shutil.which(program) is None]
    if missing:
        packages = " ".join(sorted(set(missing)))
        found.problems.append(f"not installed: {packages}")
        found.fix = f"apt-get install -y {packages}"


def _try_sandbox(found: _Findings) -> None:
    spec = SandboxSpec(
        argv=("/bin/sh", "-c", _LOOK_AROUND),
        env={"PATH": "/usr/bin:/bin"},
        mounts=system_mounts(),
        memory_bytes=256 * MIB,
        pids=64,
    )
    try:
        process = launch(spec, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except UnsupportedArchitecture as error:
        found.problems.append(str(error))
        found.fix = "run the server on x86_64 or aarch64"
        return
    except (SandboxError, OSError) as error:
        _explain(found, str(error))
        return
    found.name = process.isolation
    _read_report(found, process)


def _read_report(found: _Findings, process: SandboxProcess) -> None:
    try:
        output, complaint = process.popen.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill_tree()
        _explain(found, f"a sandbox did not answer within {_TIMEOUT_S:.0f} s")
        return
    code = process.wait()
    if code != 0:
        _explain(found, f"a sandbox ended with {code}: {complaint.decode(errors='replace').strip()}")
        return
    for line in output.decode().splitlines():
        key, _, value = line.partition(" ")
        if key == "Interface:":
            found.interfaces.append(value)
        elif key == "Sees:":
            found.seen.append(value)
        else:
            found.facts[key] = value


def _judge(found: _Findings) -> None:
    expected = {"Uid:": str(SANDBOX_UID), "CapEff:": "0000000000000000", "NoNewPrivs:": "1", "Seccomp:": "2"}
    for key, value in expected.items():
        if found.facts.get(key) != value:
            found.problems.append(f"inside a sandbox {key[:-1]} is {found.facts.get(key)}, expected {value}")
    if found.interfaces != ["lo:"]:
        found.problems.append(f"a sandbox sees the network interfaces {' '.join(found.interfaces)}")
    found.problems += [f"a sandbox sees {path} of the host" for path in found.seen]


def _explain(found: _Findings, message: str) -> None:
    """Record a failed start with the likeliest fix."""
    found.problems.append(message)
    found.name = "none"
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1" and os.geteuid() != 0:
        found.fix = (
            "AppArmor restricts user namespaces: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, "
            "or add an AppArmor profile for /usr/bin/bwrap with the rule 'userns,'"
        )
    elif _sysctl("kernel/unprivileged_userns_clone") == "0" or _sysctl("user/max_user_namespaces") == "0":
        found.fix = "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000, or run as root"
    elif Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        found.fix = (
            "start the container with --privileged, or with --security-opt seccomp=unconfined --cap-add SYS_ADMIN"
        )
    else:
        found.fix = f"make `bwrap --ro-bind / / true` work for this user (kernel {platform.release()})"


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None
