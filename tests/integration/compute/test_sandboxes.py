"""What the rest of the server does with a Sandbox (agents, the API): real controllers, supervisors and sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodus.core.errors import SandboxNotRunning, SandboxStarting
from nodus.core.kinds import SANDBOX
from nodus.server.controllers.service import running
from nodus.server.sandboxes import ProcessRequest, SandboxService
from nodus.server.services import Services
from nodus.server.store import objects
from nodus.testing.eventually import eventually

from .server_process import open_services

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(90)]


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    services = open_services(data_dir)
    async with running(services):
        yield services
        for sandbox in (await services.store.read(objects.list_, SANDBOX, None)).items:
            await services.store.write(objects.delete, sandbox, "Background")
        for member in await services.backend.attach():
            await services.backend.release(member.key)
    services.store.close()


async def test_a_sandbox_from_its_first_command_to_the_next_start(services: Services) -> None:
    spec = {"image": "nodus/agent-tools", "resources": {"cpu": "500m", "memory": "256Mi"}, "workingDir": "/tmp"}
    await services.store.write(objects.create, SANDBOX, "default", "agent", spec, status={"phase": "Pending"})
    sandboxes = SandboxService(services)
    with pytest.raises(SandboxStarting):
        await sandboxes.running("default", "agent", patience_s=0.0)
    place = await sandboxes.running("default", "agent")

    request = ProcessRequest(["sh", "-c", "pwd; echo $A; echo err >&2; exit 3"], env={"A": "b"})
    process = await sandboxes.exec(place, request, user="usr_agent")
    done = await sandboxes.finish(process, limit_bytes=1 << 20)
    assert (done.exit_code, done.reason, done.truncated) == (3, "NonZeroExitCode", False)
    assert (done.stdout, done.stderr) == (b"/tmp\nb\n", b"err\n")

    process = await sandboxes.exec(place, ProcessRequest(["sleep", "60"], timeout="300ms"), user="usr_agent")
    done = await sandboxes.finish(process, limit_bytes=1 << 20)
    assert (done.exit_code, done.reason) == (137, "DeadlineExceeded")

    process = await sandboxes.exec(place, ProcessRequest(["head", "-c", "100000", "/dev/zero"]), user="usr_agent")
    done = await sandboxes.finish(process, limit_bytes=1000)
    assert (done.stdout, done.truncated, done.exit_code) == (bytes(1000), True, 0)

    async def content() -> AsyncIterator[bytes]:
        yield b"kept"

    await sandboxes.put_file(place, "/workspace/file", content())
    await sandboxes.stop("default", "agent")
    with pytest.raises(SandboxNotRunning):
        await sandboxes.running("default", "agent")
    assert await asyncio.to_thread(eventually, lambda: _phase(services) == "Stopped")
    await sandboxes.start("default", "agent")
    again = await sandboxes.running("default", "agent", patience_s=30.0)
    assert again.attempt.uid != place.attempt.uid
    file = await sandboxes.open_file(again, "/workspace/file")
    assert b"".join([block async for block in file.blocks()]) == b"kept"
    await file.close()
    await sandboxes.delete_file(again, "/workspace/file")


def _phase(services: Services) -> str | None:
    found: str | None = services.store.read_sync(objects.get, SANDBOX, "default", "agent").status.get("phase")
    return found
