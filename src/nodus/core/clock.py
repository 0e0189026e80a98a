"""Time as a value that callers pass in, so that tests decide what time it is."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Where the current time comes from."""

    def now(self) -> datetime:
        """Return the current time, timezone-aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start that never go back."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return the monotonic clock in seconds."""
        return time.monotonic()


class FakeClock:
    """A clock that moves only when told to; for tests."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._monotonic = 0.0

    def now(self) -> datetime:
        """Return the time it was set to."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds it was advanced in all."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move time forward by ``seconds``."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds


def rfc3339(moment: datetime) -> str:
    """Format a UTC moment as RFC 3339 with whole seconds, such as ``2026-01-31T12:00:00Z``."""
    moment = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return moment.isoformat(timespec="seconds")[:-6] + "Z"  # strftime takes four times as long


def parse_rfc3339(text: str) -> datetime:
    """Read an RFC 3339 timestamp.

    Raises:
        ValueError: When the text is no timestamp, has no timezone, or is no time that UTC has a year for.
    """
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no timezone; write it like 2026-01-31T12:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is outside the years 1 to 9999") from error
