"""Results that an environment may give as they are or as something to wait for."""

from __future__ import annotations

from typing import Any


def finished(value: Any) -> Any:
    """Return a value, or what it becomes when it is a coroutine or another awaitable."""
    if not hasattr(value, "__await__"):
        return value
    import asyncio  # late: few environments wait, and what a worker never loads its forks need not copy

    return asyncio.run(_wait(value))


async def _wait(value: Any) -> Any:
    return await value
