"""A compute backend without processes: tests decide what its members do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodus.testing.processes import FakeProcesses

if TYPE_CHECKING:
    from nodus.server.compute.base import (
        Capacity,
        Collected,
        LogPiece,
        MemberSpec,
        MemberState,
        OutputRule,
        Reported,
        Usage,
    )


class FakeBackend:
    """Members that start at once, run until :meth:`end` is called, and leave the outputs they are given.

    Attributes:
        started: The spec of each member that was started, in order; a key appears at most once.
        stopped: Reasons of stops by key.
        outputs: What :meth:`collect` returns, by key.
        full: What :meth:`reserve` answers; None gives everybody what they ask for.
        processes: What runs inside of members.
        filled: Uids of Sandboxes that have files.
        emptied: Uids of Sandboxes whose files were deleted, in order.
        asked: Keys of members that were to save a checkpoint before they were stopped.
        said: What :meth:`reported` returns, by key.
    """

    name = "fake"

    def __init__(self) -> None:
        self.started: list[MemberSpec] = []
        self.stopped: dict[str, str] = {}
        self.released: list[str] = []
        self.reserved: dict[str, float] = {}
        self.outputs: dict[str, list[Collected]] = {}
        self.full: str | None = None
        self.processes = FakeProcesses()
        self.filled: list[str] = []
        self.emptied: list[str] = []
        self.asked: set[str] = set()
        self.said: dict[str, Reported] = {}
        self._states: dict[str, MemberState] = {}

    def end(self, key: str, exit_code: int | None = 0, **more: Any) -> None:
        """Let a member end; ``more`` are fields of its state, such as ``reason`` or ``phase="Lost"``."""
        self._states[key] = replace(self.read_state(key), **{"phase": "Exited", "exit_code": exit_code, **more})

    def read_state(self, key: str) -> MemberState:
        """Return where a member stands."""
        from nodus.server.compute.base import MemberState

        return self._states.get(key) or MemberState(key, "Absent")

    def reported(self, key: str) -> Reported:
        """Return :attr:`said`."""
        from nodus.server.compute.base import Reported

        return self.said.get(key) or Reported({}, {})

    def workspace_directory(self, sandbox_uid: str) -> Path:
        """Return a path that nothing is ever written to."""
        return Path("/nonexistent", sandbox_uid)

    async def workspaces(self) -> list[str]:
        """Return :attr:`filled`, less what was deleted."""
        return [uid for uid in self.filled if uid not in self.emptied]

    async def release_workspace(self, sandbox_uid: str) -> None:
        """Note whose files were deleted."""
        self.emptied.append(sandbox_uid)

    def state_directory(self, job_uid: str) -> Path:
        """Return a path that nothing is ever written to."""
        return Path("/nonexistent", job_uid)

    async def usage(self, keys: Sequence[str]) -> dict[str, Usage]:
        """Return one CPU second and a megabyte for each member that runs."""
        from nodus.server.compute.base import Usage

        return {key: Usage(1.0, 1 << 20) for key in keys if self.read_state(key).phase == "Running"}

    async def capacity(self) -> Capacity:
        """Return a machine of four CPUs."""
        from nodus.server.compute.base import Capacity

        return Capacity(4, 8 << 30, 4, 8 << 30)

    async def reserve(self, key: str, cpu: float, memory_bytes: int, gpus: int = 0) -> str | None:
        """Answer :attr:`full`."""
        if self.full is None:
            self.reserved[key] = cpu
        return self.full

    async def start(self, spec: MemberSpec) -> MemberState:
        """Start a member: it runs at once."""
        from nodus.server.compute.base import MemberState

        if spec.key not in self._states:
            self.started.append(spec)
            self._states[spec.key] = MemberState(spec.key, "Running")
        return self._states[spec.key]

    async def stop(self, key: str, reason: str, *, grace_s: float | None = None, checkpoint_s: float = 0.0) -> None:
        """End a member with the reason; it is noted in :attr:`asked` when a checkpoint was to be saved first."""
        if checkpoint_s > 0:
            self.asked.add(key)
        self.stopped[key] = reason
        if not self.read_state(key).ended:
            self.end(key, exit_code=143, reason=reason)

    async def refuse(self, key: str, message: str, fix: str | None = None) -> None:
        """End a member that never began."""
        self.end(key, exit_code=None, reason="StartFailed", message=message, fix=fix, retryable=False)

    async def state(self, key: str) -> MemberState:
        """As :meth:`read_state`."""
        return self.read_state(key)

    async def attach(self) -> list[MemberState]:
        """Return all members."""
        return list(self._states.values())

    async def events(self) -> AsyncIterator[str]:
        """Yield nothing, for ever."""
        await asyncio.Event().wait()
        yield ""

    async def read_log(self, key: str, offset: int = 0, *, follow: bool = False) -> AsyncIterator[LogPiece]:
        """Yield nothing."""
        nothing: tuple[LogPiece, ...] = ()
        for piece in nothing:
            yield piece

    async def collect(self, key: str, rules: Sequence[OutputRule]) -> list[Collected]:
        """Return :attr:`outputs`."""
        return self.outputs.get(key, [])

    async def finish(self, key: str) -> None:
        """Give the member's capacity back."""
        self.reserved.pop(key, None)

    async def release(self, key: str) -> None:
        """Forget a member."""
        self.released.append(key)
        self._states.pop(key, None)
        self.reserved.pop(key, None)

    async def release_state(self, job_uid: str) -> None:
        """Do nothing."""
