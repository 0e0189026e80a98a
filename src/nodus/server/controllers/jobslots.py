"""The indexes of a Job: each is run to its own end, by one Attempt after another. Pure.

A Job without completions has one index, 0. An index is tried again after a failed attempt, as often as
``spec.backoffLimit`` says, and after a lost one, as ``spec.recovery`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from nodus.core.clock import parse_rfc3339
from nodus.core.kinds import ATTEMPT
from nodus.server.billing.refusals import UNFUNDED
from nodus.server.controllers import stopping

if TYPE_CHECKING:
    from nodus.server.store.objects import Object

MAX_LOST = 10
"""Attempts of an index lost with their supervisors before its Job fails all the same; ``recovery.maxAttempts`` is
another number."""
RETRY_BASE_S, RETRY_MAX_S = 1.0, 60.0
DEFAULT_PARALLELISM = 16
_PAUSED = stopping.PAUSES | {stopping.SIBLING_FAILED}
FINAL_REASONS = ("DeadlineExceeded", "QueueTimeout")
"""Reasons of a failed attempt after which the Job has no further one."""


class Failure(NamedTuple):
    """Why an index, and its Job with it, failed."""

    reason: str
    message: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """One index."""

    index: int
    attempts: tuple[Object, ...] = ()
    """Oldest first."""

    @property
    def last(self) -> Object | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def phase(self) -> str | None:
        """The newest attempt's phase."""
        return self.attempts[-1].status.get("phase") if self.attempts else None

    @property
    def reason(self) -> str | None:
        """The newest attempt's reason."""
        return self.attempts[-1].status.get("reason") if self.attempts else None

    @property
    def live(self) -> bool:
        """Whether its newest attempt waits or runs."""
        return bool(self.attempts) and not ATTEMPT.is_terminal(self.phase)

    @property
    def done(self) -> bool:
        """Whether it succeeded."""
        return self.phase == "Succeeded"

    @property
    def stopped(self) -> bool:
        """Whether it was stopped by somebody who did not ask the Job."""
        return self.phase == "Cancelled" and self.reason not in _PAUSED

    @property
    def unfunded(self) -> bool:
        """Whether it was stopped for want of money."""
        return not self.live and self.reason in UNFUNDED

    @property
    def next_epoch(self) -> int:
        """The number of its next attempt."""
        return int(self.attempts[-1].spec["epoch"]) + 1 if self.attempts else 1

    @property
    def checkpoint(self) -> dict[str, Any] | None:
        """The newest checkpoint that an attempt saved: what the next one goes on from, with the ``attempt``'s name."""
        for attempt in reversed(self.attempts):
            if found := attempt.status.get("checkpoints"):
                return {**{name: value for name, value in found.items() if name != "count"}, "attempt": attempt.name}
        return None

    @property
    def progress(self) -> dict[str, Any] | None:
        """What the newest attempt that reported something has reported."""
        said = (attempt.status.get("progress") for attempt in reversed(self.attempts))
        return next((progress for progress in said if progress), None)

    def ended(self, phase: str) -> int:
        """Count the attempts that ended in ``phase``."""
        return sum(1 for attempt in self.attempts if attempt.status.get("phase") == phase)

    def failure(self, spec: Mapping[str, Any]) -> Failure | None:
        """Return why the index can't be tried again, or None when it can, or need not be."""
        last = self.last
        if last is None or self.phase not in ("Failed", "Lost"):
            return None
        message = last.status.get("message") or "the attempt failed"
        if self.reason == "DeadlineExceeded":
            message = f"it ran into its timeout of {spec.get('timeout')}"
            return Failure("DeadlineExceeded", message, "Allow more with spec.timeout (`nodus run --timeout`).")
        if self.reason == "QueueTimeout":
            queue = (spec.get("placement") or {}).get("queueTimeout")
            message = f"it did not get to run within its queueTimeout of {queue}"
            return Failure("QueueTimeout", message, "Ask for less, or allow more with spec.placement.queueTimeout.")
        if last.status.get("retryable") is False:
            return Failure(self.reason or "Error", message)
        if self.phase == "Lost":
            return self._lost(spec.get("recovery") or {}, message)
        if self.ended("Failed") > int(spec.get("backoffLimit") or 0):
            return Failure(_limit_reason(self.reason), message)
        return None

    def _lost(self, recovery: Mapping[str, Any], message: str) -> Failure | None:
        if recovery.get("continuity") == "Ephemeral":
            return Failure("AttemptLost", f"{message}; an Ephemeral run is not started again")
        most = int(recovery.get("maxAttempts") or MAX_LOST)
        lost = self.ended("Lost")
        return Failure("AttemptLost", f"{lost} attempts were lost; {message}") if lost > most else None

    def pause_s(self, now: datetime) -> float:
        """Return how long to wait before the next attempt; 0 when it is due."""
        last = self.last
        if last is None or self.phase != "Failed":
            return 0.0
        failures = self.ended("Failed")
        # The first retry comes at once: most single failures are a killed process.
        wanted_s = 0.0 if failures <= 1 else min(RETRY_MAX_S, RETRY_BASE_S * 2.0 ** (failures - 2))
        finished = (last.status.get("timings") or {}).get("finishedTime")
        return max(0.0, wanted_s - (now - parse_rfc3339(finished)).total_seconds()) if finished else 0.0


def _limit_reason(reason: str | None) -> str:
    """Say why a Job failed when its attempts are used up: the attempt's own reason, where it has one that says more."""
    return reason if reason and reason != "Error" else "BackoffLimitExceeded"


def is_indexed(spec: Mapping[str, Any]) -> bool:
    """Whether a Job has completions."""
    return spec.get("completions") is not None


def slots_of(spec: Mapping[str, Any], attempts: Iterable[Object]) -> tuple[Slot, ...]:
    """Return the indexes of a Job with their attempts, in order."""
    found: dict[int, list[Object]] = {index: [] for index in range(int(spec.get("completions") or 1))}
    for attempt in attempts:
        found.setdefault(int(attempt.spec.get("slot") or 0), []).append(attempt)
    return tuple(
        Slot(index, tuple(sorted(those, key=lambda attempt: int(attempt.spec["epoch"]))))
        for index, those in found.items()
    )


def room(spec: Mapping[str, Any], live: int) -> int:
    """Return how many further attempts may be alive at once."""
    most = int(spec.get("parallelism") or DEFAULT_PARALLELISM) if is_indexed(spec) else 1
    return max(0, most - live)


def ranges(indexes: Sequence[int]) -> str:
    """Return indexes as text, such as ``0-3,5``."""
    parts: list[tuple[int, int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][1] == index - 1:
            parts[-1] = (parts[-1][0], index)
        else:
            parts.append((index, index))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def attempt_name(job: Object, slot: Slot) -> str:
    """Return the name of an index's next attempt.

    Where two Jobs could come to the same name (long names are cut; the index of one looks like the other's ending), a
    part of the Job's uid tells them apart.
    """
    epoch, mark = slot.next_epoch, job.uid[:6]
    if is_indexed(job.spec):
        return f"{job.name[:42]}-{mark}-{slot.index}-{epoch}"
    return f"{job.name}-{epoch}" if len(job.name) <= 57 else f"{job.name[:50]}-{mark}-{epoch}"
