"""The time that a member is funded for: its supervisor pauses it when that is over, whatever became of the server.

Standard library only: the supervisor imports it. The server writes the seconds into ``funding.json`` of the attempt's
directory and pokes the supervisor; without that file the member runs unpaused. Time is counted while the member runs,
not while it is paused, on the monotonic clock.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nodus.server.compute.local.attemptdir import read_json, write_json

FILE = "funding.json"
LOOK_S = 0.5
"""How often a paused member's funding is looked at, for pokes that got lost."""
_ROUNDS, _SETTLE_S = 20, 0.002


class Funding(NamedTuple):
    """How long a member may run, and at what price."""

    seconds: float
    """Since its start, pauses left out."""
    rate: int
    """Nano-dollars an hour; for whoever settles what it used once its attempt is gone."""
    item: str
    """What that is for."""


def write_funding(directory: Path, funding: Funding) -> None:
    """Let a member run for so long."""
    write_json(directory / FILE, funding._asdict())


def read_funding(directory: Path) -> Funding | None:
    """Return how long a member may run, or None where that isn't limited."""
    found = read_json(directory / FILE)
    return None if found is None else Funding(float(found["seconds"]), int(found["rate"]), str(found["item"]))


class FundedTime:
    """Counts how long a member runs, and pauses it where its funding ends. For one thread.

    Args:
        directory: The attempt's.
        inner_pid: Process 1 of the sandbox as the host numbers it.
    """

    def __init__(self, directory: Path, inner_pid: int) -> None:
        self._directory = directory
        self._inner_pid = inner_pid
        self._begun = time.monotonic()
        self._paused_s = 0.0
        self._paused_at: float | None = None
        self._look_at: float | None = self._begun

    @property
    def paused(self) -> bool:
        """Whether it is paused now."""
        return self._paused_at is not None

    @property
    def paused_s(self) -> float:
        """How many seconds its pauses took that are over."""
        return self._paused_s

    @property
    def ran_s(self) -> float:
        """How many seconds it has run, pauses left out."""
        return _ran_s(self._begun, self._paused_s, self._paused_at)

    def to_status(self) -> dict[str, float | None]:
        """Return what :func:`ran_since` needs, for the status of a member that runs."""
        return {"begun": self._begun, "paused": self._paused_s, "pausedAt": self._paused_at}

    def due_s(self) -> float | None:
        """Return after how many seconds :meth:`enforce` has something to do, or None when not before it is told."""
        return None if self._look_at is None else max(0.0, self._look_at - time.monotonic())

    def enforce(self) -> bool:
        """Pause or resume the member as its funding says; True when that changed."""
        funding = read_funding(self._directory)
        over = funding is not None and self.ran_s >= funding.seconds
        if over:
            # Again on every look: a process that was being born escapes the first round.
            _signal_all(self._inner_pid, signal.SIGSTOP)
            self._look_at = time.monotonic() + LOOK_S
        else:
            self._look_at = None if funding is None else time.monotonic() + funding.seconds - self.ran_s
        if over == self.paused:
            return False
        if over:
            self._paused_at = time.monotonic()
        else:
            self.resume()
        return True

    def resume(self) -> None:
        """Let a paused member go on, as when it is asked to end."""
        if self._paused_at is not None:
            self._paused_s += time.monotonic() - self._paused_at
            self._paused_at = None
            _signal_all(self._inner_pid, signal.SIGCONT)


def ran_since(status: Mapping[str, Any]) -> float | None:
    """Return how many seconds a member has run by now, from the status of its supervisor, which is alive.

    Both read the monotonic clock of one boot, so nothing is charged for a clock that was set. None for a status of a
    supervisor that did not write this down.
    """
    clock = status.get("clock")
    return None if clock is None else max(0.0, _ran_s(clock["begun"], clock["paused"], clock["pausedAt"]))


def _ran_s(begun: float, paused_s: float, paused_at: float | None) -> float:
    return (time.monotonic() if paused_at is None else paused_at) - begun - paused_s


def _signal_all(inner_pid: int, number: int) -> None:
    """Send a signal to every process of a sandbox until none is left that it changes."""
    stopped = number != signal.SIGSTOP
    for _ in range(_ROUNDS):
        found = [pid for pid in _members(inner_pid) if _is_stopped(pid) is stopped]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(_SETTLE_S)


def _members(inner_pid: int) -> list[int]:
    """The processes in a sandbox's pid namespace and those below it, and in any case its first."""
    try:
        namespace = os.readlink(f"/proc/{inner_pid}/ns/pid")
        if namespace == os.readlink("/proc/self/ns/pid"):
            return [inner_pid]
    except OSError:
        return []
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (parent := _parent(int(entry))) is not None:
            children.setdefault(parent, []).append(int(entry))
    found, ahead = [], [inner_pid]
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        ahead += children.get(pid, [])
    return found


def _stat(pid: int | str) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` from the state on; of a thread, as ``PID/task/THREAD``."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def _parent(pid: int) -> int | None:
    found = _stat(pid)
    return int(found[1]) if found else None


def _is_stopped(pid: int) -> bool | None:
    """Whether a process is stopped, with all of its threads; None when it has ended.

    The state of the process says nothing of threads that outlived the first, nor of others beside one that is traced.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    states = [found[0] for thread in threads if (found := _stat(f"{pid}/task/{thread}"))]
    living = [state for state in states if state not in "ZX"]
    return all(state in "Tt" for state in living) if living else None
