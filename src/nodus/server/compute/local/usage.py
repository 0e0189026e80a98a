"""What process trees use right now, from ``/proc``: CPU time and resident memory of a process and all below it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from nodus.server.compute.base import Usage

_PROC = Path("/proc")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat behind the name: parent, user and system time, those of ended children, resident pages.
_PARENT, _TIMES, _RESIDENT = 1, slice(11, 15), 21


def tree_usage(roots: Iterable[int]) -> dict[int, Usage]:
    """Return the usage of each tree by the process id of its root; roots that are gone are left out.

    Args:
        roots: Process ids.
    """
    processes = _processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    return {root: _sum(root, processes, children) for root in roots if root in processes}


def _sum(root: int, processes: dict[int, tuple[int, Usage]], children: dict[int, list[int]]) -> Usage:
    cpu_s, memory_bytes, pending, seen = 0.0, 0, [root], set[int]()
    while pending:
        pid = pending.pop()
        if pid in seen:  # a pid that was taken anew while /proc was read
            continue
        seen.add(pid)
        own = processes[pid][1]
        cpu_s, memory_bytes = cpu_s + own.cpu_s, memory_bytes + own.memory_bytes
        pending.extend(children.get(pid, ()))
    return Usage(cpu_s, memory_bytes)


def _processes() -> dict[int, tuple[int, Usage]]:
    """Return parent and usage of every process that can be seen."""
    found: dict[int, tuple[int, Usage]] = {}
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        try:
            stat = (_PROC / entry / "stat").read_text()
        except OSError:
            continue  # it ended meanwhile, or is hidden from us
        fields = stat.rpartition(")")[2].split()  # the name before may hold spaces and parentheses
        cpu_s = sum(map(int, fields[_TIMES])) / _TICKS_A_SECOND
        found[int(entry)] = (int(fields[_PARENT]), Usage(cpu_s, int(fields[_RESIDENT]) * _PAGE_BYTES))
    return found
