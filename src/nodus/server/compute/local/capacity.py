"""What this machine has for members, and who has which part of it. No overcommit: what is given is given."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from nodus.server.compute.base import Capacity

_GIB = 1 << 30
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory.max"))


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to give.

    Attributes:
        cores: Numbers of the cores that members run on.
        memory_bytes: Memory for members: the machine's less a share for graders, sandboxes and the server.
        gpus: Device nodes, one per GPU.
    """

    cores: tuple[int, ...]
    memory_bytes: int
    gpus: tuple[str, ...] = ()

    @classmethod
    def this_one(cls) -> Machine:
        """Look at the machine this process runs on, within the limits this process has."""
        cores = tuple(sorted(os.sched_getaffinity(0)))
        kept = len(cores) // 8
        total = _memory_bytes()
        reserve = min(total // 2, max(_GIB, total // 8))
        gpus = tuple(sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*")))
        return cls(cores[: len(cores) - kept], total - reserve, gpus)


@dataclass(frozen=True, slots=True)
class Share:
    """What one member was given."""

    cpu: float
    memory_bytes: int
    cores: tuple[int, ...]
    gpus: tuple[str, ...] = ()


class Shares:
    """Gives parts of a machine to members by key. Safe to use from threads."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._given: dict[str, Share] = {}
        self._lock = threading.Lock()

    def take(self, key: str, cpu: float, memory_bytes: int, gpus: int = 0) -> str | None:
        """Give a part to ``key``, once; None when it has it, else what is missing as one sentence."""
        with self._lock:
            if key in self._given:
                return None
            if problem := self._missing(cpu, memory_bytes, gpus):
                return problem
            self._given[key] = Share(cpu, memory_bytes, self._free_cores(cpu), self._free_gpus()[:gpus])
            return None

    def restore(self, key: str, share: Share) -> None:
        """Note what a member that runs already was given before this server started."""
        with self._lock:
            self._given[key] = share

    def give_back(self, key: str) -> bool:
        """End a member's part; tell whether it had one."""
        with self._lock:
            return self._given.pop(key, None) is not None

    def of(self, key: str) -> Share | None:
        """Return what ``key`` was given, or None."""
        return self._given.get(key)

    def capacity(self) -> Capacity:
        """Return the whole and what is free of it."""
        with self._lock:
            free_cpu, free_memory = self._free()
            return Capacity(float(len(self.machine.cores)), self.machine.memory_bytes, free_cpu, free_memory)

    def _free(self) -> tuple[float, int]:
        cpu = len(self.machine.cores) - sum(share.cpu for share in self._given.values())
        return cpu, self.machine.memory_bytes - sum(share.memory_bytes for share in self._given.values())

    def _missing(self, cpu: float, memory_bytes: int, gpus: int) -> str | None:
        machine = self.machine
        if gpus > len(machine.gpus):
            return f"it asks for {_count(gpus, 'GPU')} and this machine has {len(machine.gpus)}"
        if cpu > len(machine.cores):
            return f"it asks for {_count(cpu, 'CPU')} and this machine has {len(machine.cores)} for runs"
        if memory_bytes > machine.memory_bytes:
            return f"it asks for {_gib(memory_bytes)} of memory and this machine has {_gib(machine.memory_bytes)}"
        free_cpu, free_memory = self._free()
        if cpu > free_cpu + 1e-9:
            return f"waiting for {_count(cpu, 'CPU')}; {max(free_cpu, 0):g} of {len(machine.cores)} are free"
        if memory_bytes > free_memory:
            return f"waiting for {_gib(memory_bytes)} of memory; {_gib(max(free_memory, 0))} are free"
        if gpus > len(self._free_gpus()):
            return f"waiting for {_count(gpus, 'GPU')}; {len(self._free_gpus())} of {len(machine.gpus)} are free"
        return None

    def _free_cores(self, cpu: float) -> tuple[int, ...]:
        """Choose the cores with the least on them, so that members get cores of their own where possible."""
        load = dict.fromkeys(self.machine.cores, 0.0)
        for share in self._given.values():
            for core in share.cores:
                load[core] = load.get(core, 0.0) + share.cpu / max(1, len(share.cores))
        ranked = sorted(self.machine.cores, key=lambda core: (load[core], core))
        return tuple(sorted(ranked[: max(1, math.ceil(cpu))]))

    def _free_gpus(self) -> tuple[str, ...]:
        taken = {gpu for share in self._given.values() for gpu in share.gpus}
        return tuple(gpu for gpu in self.machine.gpus if gpu not in taken)


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.3g} GiB"


def _memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(path.read_text()))
    return total
