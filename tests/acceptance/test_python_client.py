"""`nodus.Client` against a real server that is killed under it: nothing made twice, no change lost or repeated."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import nodus
from nodus.client.config import Connection
from nodus.server import datadir
from nodus.server.lifecycle import DownOptions, UpOptions, down, up
from nodus.testing.eventually import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
KILLS, MADE = 2, 40


@dataclass
class Machine:
    """A server on one port for all of its lives."""

    data_dir: Path
    port: int
    pid: int = 0
    key: str = ""

    def start(self) -> None:
        started = up(UpOptions(data_dir=self.data_dir, port=self.port, detach=True, issue_key=not self.key))
        self.pid, self.key = started.pid, self.key or str(started.api_key)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        eventually(lambda: datadir.holder(self.data_dir) is None)

    def client(self) -> nodus.Client:
        url = f"http://127.0.0.1:{self.port}"
        return nodus.Client(connection=Connection(url=url, api_key=self.key, project="default"))


def free_port() -> int:
    """A port that stays free while the server is away: none of those that the system gives out by itself."""
    for port in random.Random(os.getpid()).sample(range(20_000, 32_000), 50):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("fifty ports are taken")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path / "data", free_port())
    found.start()
    yield found
    down(DownOptions(data_dir=found.data_dir))


def document(name: str) -> dict[str, object]:
    # More CPUs than there are: it stays Queued, and its only changes are those made here.
    spec = {"command": ["true"], "resources": {"cpu": "100000"}}
    return {"apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": {"generateName": name}, "spec": spec}


def test_kills_of_the_server_lose_and_repeat_nothing(machine: Machine) -> None:
    seen: list[nodus.Change] = []
    done = threading.Event()

    def watch() -> None:
        with machine.client() as client:
            for change in client.watch("jobs"):
                seen.append(change)
                if change.object.labels.get("last"):
                    done.set()
                    return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with machine.client() as client:
        client.ready()

        def write() -> None:
            for number in range(MADE):
                made = client.create(document(f"j{number:02}-"))
                client.patch("job", made.name, {"metadata": {"labels": {"n": str(number)}}})

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        for kill in range(1, KILLS + 1):
            eventually(lambda kill=kill: len(seen) >= kill * MADE // KILLS, timeout_s=60)
            machine.kill()
            machine.start()
        writer.join(timeout=60)
        assert not writer.is_alive()
        client.create(document("last-") | {"metadata": {"name": "last", "labels": {"last": "1"}}})
        assert done.wait(60)
        watcher.join()
        jobs = client.list("jobs")
    # Each created once, although the server died while it answered: the same key was sent again.
    assert len({job.name[:3] for job in jobs}) == len(jobs) == MADE + 1
    versions = [int(change.object.metadata.resource_version) for change in seen]
    assert versions == sorted(set(versions)), "a change came twice or out of order"
    told = {change.object.name: int(change.object.metadata.resource_version) for change in seen}
    assert len(told) == len(jobs)
    # The server's own changes of the status go on; up to the end of the watch they were all seen.
    here = {job.name: int(job.metadata.resource_version) for job in jobs}
    assert all(told[name] == version for name, version in here.items() if version <= versions[-1])
    first = {change.object.uid: change.type for change in reversed(seen)}
    assert set(first.values()) == {"ADDED"}


async def test_many_awaited_calls_at_once(machine: Machine) -> None:
    async with machine.client() as client:
        made = await asyncio.gather(*(client.create.aio(document(f"many{number:02}-")) for number in range(30)))
        assert len({job.name for job in made}) == 30

        async def seen() -> set[str]:
            names: set[str] = set()
            async for change in client.watch.aio("jobs", timeout=30):
                names.add(change.object.name)
                if len(names) == 30:
                    break
            return names

        found = await asyncio.gather(*(seen() for _ in range(5)))
        assert all(names == {job.name for job in made} for names in found)
        await asyncio.gather(*(client.delete.aio("job", job.name) for job in made))
        batch = await client.create_many.aio([document("batch-") for _ in range(120)])
        assert [job.name for job in await client.list.aio("jobs")] == sorted(job.name for job in batch)
        with pytest.raises(nodus.errors.Invalid):  # all or nothing
            await client.create_many.aio([document("never-"), document("never-") | {"spec": {"commands": []}}])
        for job in batch:
            await client.delete.aio("job", job.name)
        assert await client.list.aio("jobs") == []
