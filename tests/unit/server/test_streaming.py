"""Long answers end with the credential that asked for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nodus.core.errors import Unauthorized
from nodus.server.api import streaming
from nodus.server.api.streaming import StreamResponse


async def serve(media_type: str, good: int) -> list[bytes]:
    """What a client gets of five chunks when the credential holds for the first ``good`` of them."""
    checked, sent = 0, []

    async def body() -> AsyncIterator[bytes]:
        for number in range(5):
            yield f"line {number}\n".encode()

    async def check() -> None:
        nonlocal checked
        checked += 1
        if checked > good:
            raise Unauthorized("the key was revoked")

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    response = StreamResponse(body(), asyncio.Event(), media_type)
    response.check = check
    await response({"type": "http", "method": "GET"}, receive, send)
    return [chunk for chunk in sent if chunk]


@pytest.mark.parametrize(
    ("media_type", "told"),
    [("text/plain; charset=utf-8", b"[nodus: the key was revoked]"), ("application/json", b'"reason":"Unauthorized"')],
)
async def test_nothing_is_sent_after_the_key_was_revoked_but_why(media_type: str, told: bytes) -> None:
    got = await serve(media_type, good=2)
    assert got[:2] == [b"line 0\n", b"line 1\n"]
    assert len(got) == 3
    assert told in got[2]


async def test_everything_is_sent_while_it_holds() -> None:
    assert len(await serve("text/plain", good=9)) == 5


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize(
    ("media_type", "last"),
    [
        ("application/json", b'{"type":"ERROR"'),
        ("text/plain; charset=utf-8", b"\n[nodus: revoked]\n"),
        ("application/x-ndjson", b""),
    ],
)
async def test_answer_ends_in_its_own_form(
    monkeypatch: pytest.MonkeyPatch, media_type: str, last: bytes, quiet: bool
) -> None:
    monkeypatch.setattr(streaming, "LOOK_S", 0.001)
    sent: list[dict[str, Any]] = []

    async def body() -> AsyncIterator[bytes]:
        if quiet:
            await asyncio.Event().wait()
        yield b"too late"

    async def refused() -> None:
        raise Unauthorized("revoked")

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def send(message: Any) -> None:
        sent.append(message)

    response = StreamResponse(body(), asyncio.Event(), media_type)
    response.check = refused
    await asyncio.wait_for(response({"type": "http", "method": "GET"}, receive, send), 5)
    content = b"".join(message.get("body", b"") for message in sent)
    assert content.startswith(last)
    assert b"too late" not in content
    assert bool(content) is bool(last)
    assert sent[-1]["more_body"] is False
