"""Wait for a condition by polling, with a bound, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], *, timeout_s: float = 20.0, every_s: float = 0.02) -> T:
    """Call ``check`` until it returns something true, and return that.

    Raises:
        AssertionError: When it did not within ``timeout_s``; shows the last value.
    """
    end = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not true within {timeout_s} s; the last value was {value!r}")
        time.sleep(every_s)


async def eventually_async(check: Callable[[], Awaitable[T]], *, timeout_s: float = 20.0, every_s: float = 0.02) -> T:
    """Like :func:`eventually` for a coroutine function."""
    end = time.monotonic() + timeout_s
    while True:
        value = await check()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not true within {timeout_s} s; the last value was {value!r}")
        await asyncio.sleep(every_s)
