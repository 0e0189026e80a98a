"""A thousand watchers of a real server process: every change reaches each, and memory stays where it was."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up

pytestmark = pytest.mark.acceptance
WATCHERS, SLOW, CHANGES = 1000, 200, 15
PATH = "/apis/nodus.dev/v1/namespaces/default/volumes"
GROWTH_MIB = 250
"""Of the first thousand watchers; what connections, tasks and buffers take."""
LATER_GROWTH_MIB = 40
"""Of a second thousand after the first: nothing is left behind."""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    data_dir = tmp_path / "data"
    yield up(UpOptions(data_dir=data_dir, port=0, detach=True, issue_key=True))
    down(DownOptions(data_dir=data_dir))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def memory_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


class Watcher:
    """One connection; a slow one never reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.names: list[str] = []

    @classmethod
    async def open(cls, started: Started, *, slow: bool) -> Watcher:
        host, port = started.url.removeprefix("http://").split(":")
        watcher = cls(*await asyncio.open_connection(host, int(port)))
        if slow:
            watcher.writer.transport.pause_reading()
        head = f"GET {PATH}?watch=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {started.api_key}\r\n\r\n"
        watcher.writer.write(head.encode())
        if not slow:
            assert b"200" in await watcher.reader.readline()
        return watcher

    async def see(self, count: int) -> None:
        """Read until so many changes were seen."""
        async with asyncio.timeout(50):
            while len(self.names) < count:
                line = await self.reader.readline()
                assert line, "the stream ended"
                if line.startswith(b"{"):
                    self.names.append(json.loads(line)["object"]["metadata"]["name"])


async def round_of(started: Started, client: httpx.AsyncClient, prefix: str) -> None:
    fast = [await Watcher.open(started, slow=False) for _ in range(WATCHERS - SLOW)]
    slow = [await Watcher.open(started, slow=True) for _ in range(SLOW)]
    expected = [f"{prefix}{number:02}" for number in range(CHANGES)]
    for name in expected:
        body: dict[str, Any] = {"metadata": {"name": name, "annotations": {"a": "x" * 4000}}}
        assert (await client.post(PATH, json=body)).status_code == 201
    await asyncio.gather(*(watcher.see(CHANGES) for watcher in fast))
    assert all(watcher.names == expected for watcher in fast)
    for name in expected:
        await client.delete(f"{PATH}/{name}")
    for watcher in (*fast, *slow):
        watcher.writer.transport.abort()


@pytest.mark.timeout(150)
async def test_a_thousand_watchers_see_every_change_in_order_and_memory_stays_flat(started: Started) -> None:
    headers = {"Authorization": f"Bearer {started.api_key}"}
    async with httpx.AsyncClient(base_url=started.url, headers=headers, timeout=30) as client:
        before = memory_mib(started.pid)
        await round_of(started, client, "a")
        first = memory_mib(started.pid)
        await round_of(started, client, "b")
        second = memory_mib(started.pid)
        assert (await client.get("/healthz")).status_code == 200
    assert first - before < GROWTH_MIB
    assert second - first < LATER_GROWTH_MIB
