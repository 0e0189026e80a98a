"""Processes of a compute backend without processes: tests decide what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nodus.server.compute.processes import Activity, ProcessSpec, ProcessState


class FakeProcesses:
    """Processes that start at once and run until :meth:`end` is called.

    Attributes:
        started: What was started, in order; a key appears at most once.
        stopped: Reasons of stops by key.
        forgotten: Keys in order.
        activities: What :meth:`read_activity` answers, by member.
        refusal: Raised by :meth:`exec`, if anything.
    """

    def __init__(self) -> None:
        self.started: list[ProcessSpec] = []
        self.stopped: dict[str, str] = {}
        self.forgotten: list[str] = []
        self.activities: dict[str, Activity] = {}
        self.refusal: Exception | None = None
        self._states: dict[str, ProcessState] = {}

    def end(self, key: str, exit_code: int | None = 0, **more: Any) -> None:
        """Let a process end; ``more`` are fields of its state, such as ``reason``."""
        given = {"phase": "Exited", "exit_code": exit_code, **more}
        self._states[key] = replace(self.read_state("", key), **given)

    def read_state(self, member: str, key: str) -> ProcessState:
        """Return where a process stands."""
        from nodus.server.compute.processes import ProcessState

        return self._states.get(key) or ProcessState("Absent")

    def read_activity(self, member: str) -> Activity | None:
        """Return what :attr:`activities` says."""
        return self.activities.get(member)

    async def exec(self, member: str, spec: ProcessSpec) -> None:
        """Start a process, once a key."""
        from nodus.server.compute.processes import ProcessState

        if self.refusal is not None:
            raise self.refusal
        if spec.key not in self._states:
            self.started.append(spec)
            self._states[spec.key] = ProcessState("Running", times={"started": 0.0})

    async def stop(self, member: str, key: str, reason: str, grace_s: float) -> None:
        """End a process with a reason."""
        self.stopped[key] = reason
        if not self.read_state(member, key).ended:
            self.end(key, exit_code=143, reason=reason)

    async def forget(self, member: str, key: str) -> None:
        """Forget a process."""
        self.forgotten.append(key)
        self._states.pop(key, None)
