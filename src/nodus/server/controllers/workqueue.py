"""The queue of the controller runtime: every key once, delays, and backoff for keys that fail.

The rules are those of Kubernetes' work queue. A key that is added while it is being worked on runs again afterwards,
never twice at the same time; adding a key that waits changes nothing, except that a shorter delay wins.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from nodus.core.clock import Clock

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys to work on, for the tasks of one event loop.

    Args:
        clock: Where delays are measured.
        base_delay_s: The first delay after a failure; it doubles with each further one.
        max_delay_s: The longest delay after failures.
    """

    def __init__(self, clock: Clock, *, base_delay_s: float = 0.25, max_delay_s: float = 60.0) -> None:
        self._clock = clock
        self._base_delay_s = base_delay_s
        self._max_delay_s = max_delay_s
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def add(self, key: K) -> None:
        """Make ``key`` ready now."""
        self._due.pop(key, None)
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Make ``key`` ready in ``delay_s`` seconds, or sooner when it is already due sooner."""
        if delay_s <= 0:
            self.add(key)
            return
        due = self._clock.monotonic() + delay_s
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, key))
        self._wake.set()

    def failed(self, key: K) -> float:
        """Schedule ``key`` after its backoff delay; return that delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = min(self._max_delay_s, self._base_delay_s * 2.0 ** min(failures, 16))
        # Jitter keeps many keys that failed together from coming back together.
        delay_s *= random.uniform(0.8, 1.0)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """Reset the backoff of ``key``, after a pass that went well."""
        self._failures.pop(key, None)

    def done(self, key: K) -> None:
        """End the work on ``key``; it becomes ready again if it was added meanwhile."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def next_ready(self) -> K | None:
        """Return a ready key and count it as being worked on, or None."""
        self._move_due()
        if not self._ready:
            return None
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._working.add(key)
        return key

    async def get(self) -> K:
        """Wait for a ready key and count it as being worked on; call :meth:`done` when it is."""
        while True:
            self._wake.clear()
            key = self.next_ready()
            if key is not None:
                if self._ready:
                    self._wake.set()
                return key
            delay_s = self._delay_s()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()

    def __len__(self) -> int:
        return len(self._ready) + len(self._due)

    def _delay_s(self) -> float | None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - self._clock.monotonic()) if self._heap else None

    def _move_due(self) -> None:
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                self.add(key)
