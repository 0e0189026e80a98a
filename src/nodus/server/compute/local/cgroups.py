"""Memory, process and CPU limits by control groups, versions 1 and 2.

Runs in whichever process launches sandboxes; standard library only, importable alone. A sandbox's group is made below
the group this process is in (version 2: below the nearest ancestor that lets us), is joined by the launcher before it
becomes bubblewrap, and is removed after the last process is gone. Where no group can be made, ``create`` returns None
and the sandbox falls back to resource limits, which bound one process at a time: ``probe`` reports that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PREFIX = "nodus-"
_MOUNTS = Path("/proc/self/mounts")
_OWN = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group may use.

    Attributes:
        memory_bytes: Bytes of memory (no swap on top); None for no limit.
        pids: Processes and threads; None for no limit.
        cpu: CPUs, such as 1.5; None for no limit.
        oom_group: Version 2: on out-of-memory kill the whole group, not one process.
    """

    memory_bytes: int | None = None
    pids: int | None = None
    cpu: float | None = None
    oom_group: bool = False


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be made: version 2 has one directory for all controllers, version 1 one each.

    Attributes:
        version: 1 or 2.
        parents: Controller name to the directory below which groups are made.
    """

    version: int
    parents: dict[str, Path]


def _mounts(text: str) -> tuple[dict[str, Path], Path | None]:
    """Return the version 1 mount of each controller, and the version 2 mount."""
    first: dict[str, Path] = {}
    second: Path | None = None
    for line in text.splitlines():
        fields = line.split(" ")
        if fields[2] == "cgroup2":
            second = second or Path(fields[1])
        elif fields[2] == "cgroup":
            for option in fields[3].split(","):
                first.setdefault(option, Path(fields[1]))
    return first, second


def _own_groups(text: str) -> dict[str, str]:
    """Return controller to the path of this process's group; version 2 is under the empty name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _version_one(mounts: dict[str, Path], own: dict[str, str]) -> Hierarchy | None:
    parents: dict[str, Path] = {}
    for controller in ("memory", "pids", "cpu"):
        if controller not in mounts or controller not in own:
            continue
        # inside a container the path may be the host's and not visible here: then the mount is our own group
        for parent in (mounts[controller] / own[controller].lstrip("/"), mounts[controller]):
            if os.access(parent, os.W_OK):
                parents[controller] = parent
                break
    return Hierarchy(1, parents) if "memory" in parents and "pids" in parents else None


def _version_two(mount: Path, own: dict[str, str]) -> Hierarchy | None:
    """Find the nearest ancestor whose children get the memory and pids controllers and that we may write."""
    group = mount / own.get("", "/").lstrip("/")
    while group == mount or mount in group.parents:
        if os.access(group, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK) and _enable(group):
            return Hierarchy(2, {"": group})
        if group == mount:
            break
        group = group.parent
    return None


def _enable(group: Path) -> bool:
    """Say whether children of a version 2 group have the controllers, switching them on if that is allowed."""
    try:
        available = (group / "cgroup.controllers").read_text().split()
        enabled = (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    if not {"memory", "pids"} <= set(available):
        return False
    missing = [name for name in ("memory", "pids", "cpu") if name in available and name not in enabled]
    for name in missing:
        with contextlib.suppress(OSError):  # EBUSY: the group has processes of its own; an ancestor may do
            (group / "cgroup.subtree_control").write_text(f"+{name}")
    enabled = (group / "cgroup.subtree_control").read_text().split()
    return {"memory", "pids"} <= set(enabled)


@cache
def hierarchy() -> Hierarchy | None:
    """Return where this process may make groups, or None; looked up once."""
    try:
        return find_hierarchy(_MOUNTS.read_text(), _OWN.read_text())
    except OSError:
        return None


def find_hierarchy(mounts: str, own: str) -> Hierarchy | None:
    """Return where groups can be made, from the texts of /proc/self/mounts and /proc/self/cgroup."""
    first, unified = _mounts(mounts)
    groups = _own_groups(own)
    return _version_one(first, groups) or (_version_two(unified, groups) if unified else None)


@dataclass(slots=True)
class Cgroup:
    """One sandbox's control group.

    Attributes:
        name: Its directory name, which says who made it: ``nodus-<pid namespace>-<pid>-<start time>-<random>``.
        version: 1 or 2.
        directories: Controller to directory.
    """

    name: str
    version: int
    directories: dict[str, Path]

    def procs_files(self) -> list[Path]:
        """Return the files into which a process writes 0 to join."""
        return sorted({directory / "cgroup.procs" for directory in self.directories.values()})

    def _file(self, controller: str, first: str, second: str) -> Path | None:
        if self.version == 2:
            return self.directories[""] / second
        directory = self.directories.get(controller)
        return directory / first if directory else None

    def pids(self) -> list[int]:
        """Return the processes in the group, as this process sees them."""
        found: set[int] = set()
        for path in self.procs_files():
            with contextlib.suppress(OSError):
                found.update(int(line) for line in path.read_text().split())
        return sorted(found)

    def oom_kills(self) -> int:
        """Return how many processes the kernel killed here for want of memory."""
        path = self._file("memory", "memory.oom_control", "memory.events")
        return _counter(path, "oom_kill")

    def peak_memory_bytes(self) -> int | None:
        """Return the most memory used at once, or None where the kernel does not say."""
        path = self._file("memory", "memory.max_usage_in_bytes", "memory.peak")
        return _number(path)

    def pids_refused(self) -> int:
        """Return how many forks were refused for the process limit."""
        return _counter(self._file("pids", "pids.events", "pids.events"), "max")

    def remove(self, timeout_s: float = 2.0) -> bool:
        """Kill what is left and remove the group; True when it is gone."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = [directory for directory in self.directories.values() if not _remove(directory)]
            if not left:
                return True
            if time.monotonic() > deadline:
                return False
            for pid in self.pids():
                with contextlib.suppress(OSError):
                    os.kill(pid, 9)
            time.sleep(0.002)


def _number(path: Path | None) -> int | None:
    try:
        return int(path.read_text()) if path else None
    except (OSError, ValueError):
        return None


def _counter(path: Path | None, key: str) -> int:
    if path is None:
        return 0
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [key]), 0)


def _remove(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _settings(version: int, limits: Limits) -> list[tuple[str, str, str, bool]]:
    """Return (controller, file, value, required) in the order of writing."""
    rows: list[tuple[str, str, str, bool]] = []
    if limits.memory_bytes is not None:
        memory = str(limits.memory_bytes)
        if version == 1:
            rows += [
                ("memory", "memory.limit_in_bytes", memory, True),
                ("memory", "memory.memsw.limit_in_bytes", memory, False),  # absent without swap accounting
            ]
        else:
            rows += [("", "memory.max", memory, True), ("", "memory.swap.max", "0", False)]
            rows += [("", "memory.oom.group", "1" if limits.oom_group else "0", False)]
    if limits.pids is not None:
        rows.append(("pids" if version == 1 else "", "pids.max", str(limits.pids), True))
    if limits.cpu is not None:
        quota = max(1000, int(limits.cpu * 100_000))
        if version == 1:
            rows.append(("cpu", "cpu.cfs_period_us", "100000", False))
            rows.append(("cpu", "cpu.cfs_quota_us", str(quota), False))
        else:
            rows.append(("", "cpu.max", f"{quota} 100000", False))
    return rows


def create(limits: Limits) -> Cgroup | None:
    """Make a group with limits; None when this process may make none (the caller falls back to resource limits)."""
    place = hierarchy()
    if place is None:
        return None
    name = f"{PREFIX}{_maker(os.getpid())}-{secrets.token_hex(4)}"
    wanted = {"memory", "pids"} | ({"cpu"} if limits.cpu is not None else set())
    parents = {key: path for key, path in place.parents.items() if key == "" or key in wanted}
    group = Cgroup(name, place.version, {key: path / name for key, path in parents.items()})
    try:
        for directory in group.directories.values():
            directory.mkdir()
        for controller, file, value, required in _settings(place.version, limits):
            _write(group.directories.get(controller), file, value, required)
    except OSError:
        group.remove(0.1)
        return None
    return group


def _write(directory: Path | None, file: str, value: str, required: bool) -> None:
    try:
        if directory is not None:
            (directory / file).write_text(value)
    except OSError:
        if required:
            raise


def sweep() -> int:
    """End what is left of sandboxes whose maker is gone, and remove their groups; return how many. For a start.

    A maker is known by pid namespace, pid and start time, so that neither a reused pid nor a server in another
    container is mistaken for it.
    """
    place = hierarchy()
    if place is None:
        return 0
    removed = 0
    for parent in place.parents.values():
        for directory in parent.glob(f"{PREFIX}*-*-*-*"):
            namespace, pid, *_ = directory.name[len(PREFIX) :].split("-")
            if namespace == _pid_namespace() and not directory.name.startswith(f"{PREFIX}{_maker(int(pid))}-"):
                removed += Cgroup(directory.name, place.version, {"": directory}).remove()
    return removed


def _pid_namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _maker(pid: int) -> str:
    """Return a process as group names have it; one that is gone has no start time."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = "gone"
    return f"{_pid_namespace()}-{pid}-{started}"
