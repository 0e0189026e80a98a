"""A run's output while it comes: attempt after attempt, every byte once, also when the server restarts meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from nodus.client.http import ConnectionFailed
from nodus.client.outcomes import TERMINAL
from nodus.client.resources import JsonObject, Resources
from nodus.client.transport import TransportError, pause

ATTEMPT_ENDS = (*TERMINAL, "Lost")
FIRST_LOOK_S, LAST_LOOK_S = 0.05, 1.0
JOB_LABEL = "nodus.dev/job"

Seen = Callable[[JsonObject], None]


async def follow(
    resources: Resources, project: str, name: str, *, owner: str = "Job", seen: Seen | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield the output of a run from its newest attempt on, until the run has ended.

    Of a Job with completions, whole lines of all indexes, each with its index before it.

    Args:
        resources: The server.
        project: Where the run is.
        name: The run.
        owner: Its kind: a Job, or a TrainingJob, whose Job has its name.
        seen: Is given the run each time it was read.

    Raises:
        NotFound: When there is no such run, or it is deleted meanwhile.
    """
    done: set[str] = set()
    wait_s = FIRST_LOOK_S
    while True:
        job = await resources.get(owner, name, project=project)
        if seen is not None:
            seen(job)
        over = (job.get("status") or {}).get("phase") in TERMINAL
        if (job.get("spec") or {}).get("completions") is not None:
            path = await resources.path("Job", name, project=project, subresource="log")
            # After a break only what is new: where the lines of all indexes stood is not known.
            query = {"follow": True, "tailLines": 0 if done else None}
            done.add(name)
            if not over or query["tailLines"] is None:
                async with aclosing(_chunks(resources, path, query)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            if over:
                return
            continue
        attempts = await _attempts(resources, project, name)
        pending = [attempt for attempt in attempts if attempt not in done]
        for attempt in pending if done else pending[-1:]:
            async with aclosing(_whole(resources, project, attempt)) as chunks:
                async for chunk in chunks:
                    yield chunk
        done.update(attempts)
        if over and not pending:
            return
        wait_s = FIRST_LOOK_S if pending else min(LAST_LOOK_S, wait_s * 1.5)
        await pause(wait_s)


async def _attempts(resources: Resources, project: str, name: str) -> list[str]:
    found = await resources.list("Attempt", project=project, labels=f"{JOB_LABEL}={name}")
    found.sort(key=lambda attempt: int((attempt.get("spec") or {}).get("epoch") or 0))
    return [str(attempt["metadata"]["name"]) for attempt in found]


async def _whole(resources: Resources, project: str, attempt: str) -> AsyncGenerator[bytes, None]:
    """Every byte of an attempt, taken up where it broke off."""
    path = await resources.path("Attempt", attempt, project=project, subresource="log")
    offset = 0
    while True:
        # Asked before reading: what was written until the end is read after it.
        known = await resources.get("Attempt", attempt, project=project)
        ended = (known.get("status") or {}).get("phase") in ATTEMPT_ENDS
        query: dict[str, Any] = {"follow": None if ended else True, "offsetBytes": offset or None}
        before = offset
        async with aclosing(_chunks(resources, path, query)) as chunks:
            async for chunk in chunks:
                offset += len(chunk)
                yield chunk
        if ended:
            return
        if offset == before:
            await pause(FIRST_LOOK_S)  # it ended, and its phase does not show it yet; or the server stops


async def _chunks(resources: Resources, path: str, query: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """The chunks of one answer, up to its end or to where it breaks."""
    try:
        async with aclosing(read(resources, path, query)) as chunks:
            async for chunk in chunks:
                yield chunk
    except ConnectionFailed:
        return


async def read(resources: Resources, path: str, query: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a log as the server cuts it: with ``tailLines``, ``sinceSeconds``, ``index`` and so on.

    Raises:
        ConnectionFailed: When it breaks off.
    """
    exchange = await resources.api.stream("GET", path, query=query, headers={"Accept": "*/*"}, timeout_s=None)
    try:
        async with aclosing(exchange.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk
    except TransportError as error:
        raise ConnectionFailed("the log broke off; the server may be restarting", fix="Ask for it again.") from error
    finally:
        await exchange.close()


async def lines(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[str, None]:
    """Yield lines, each with its newline, of chunks of bytes; the last one may lack it."""
    rest = b""
    async with aclosing(chunks):
        async for chunk in chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace") + "\n"
    if rest:
        yield rest.decode(errors="replace")
