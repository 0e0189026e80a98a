"""The fixed five tests of every controller, for Sandboxes, and what survives a stop."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from nodus.core.kinds import ATTEMPT, PROCESS, SANDBOX
from nodus.server.compute.processes import Activity
from nodus.server.controllers.runtime import Action, ActionResult, Manager
from nodus.server.controllers.sandbox import START_ANNOTATION, SandboxController
from nodus.server.controllers.sandboxmember import SANDBOX_LABEL
from nodus.server.store import Object, leases, objects
from nodus.testing.eventually import eventually

from .conftest import NODE, World


def add(world: World, **spec: Any) -> Object:
    given = {"image": "nodus/agent-tools", **spec}
    return world.store.write_sync(objects.create, SANDBOX, "default", "dev", given, status={"phase": "Pending"})


def add_process(world: World, sandbox: Object, **spec: Any) -> Object:
    attempt = world.list(ATTEMPT)[-1]
    given = {"command": ["x"], "sandbox": "dev", "attempt": attempt.uid, "number": 1, **spec}
    return world.store.write_sync(
        objects.create, PROCESS, "default", "sb-dev-1", given, owner=sandbox, status={"phase": "Pending"}
    )


def manager_of(world: World, sandboxes: SandboxController | None = None, **more: Any) -> Manager:
    chosen = sandboxes or SandboxController(NODE, world.backend)  # type: ignore[arg-type]
    return world.manager(chosen, world.attempt_controller(), **more)


def set_began(world: World) -> None:
    """Let the newest member have begun now, by the clock of the test."""
    key = world.backend.started[-1].key
    world.backend.end(key, None, phase="Running", times={"started": world.clock.now().timestamp()})


async def test_stopped_sandbox_is_left_alone(world: World) -> None:
    sandbox = add(world, state="Stopped")
    world.store.write_sync(objects.update_status, sandbox.uid, {"phase": "Stopped", "stopReason": "Stopped"})
    before = world.get(sandbox)
    await world.settle(manager_of(world))
    assert (world.get(sandbox).resource_version, world.list(ATTEMPT)) == (before.resource_version, [])


async def test_sandbox_starts_with_its_files_and_its_attempt_is_labelled(world: World) -> None:
    sandbox = add(world, env=[{"name": "A", "value": "b"}], resources={"cpu": 2, "memory": "1Gi"})
    await world.settle(manager_of(world))
    assert world.phase(sandbox) == "Running"
    [attempt] = world.list(ATTEMPT)
    assert attempt.labels[SANDBOX_LABEL] == "dev"
    [member] = world.backend.started
    assert (member.key, member.processes, member.cpu, member.memory_bytes) == (attempt.uid, True, 2.0, 1 << 30)
    assert member.workspace_dir == str(world.backend.workspace_directory(sandbox.uid))
    assert member.env["A"] == "b"
    assert member.env["NODUS_SANDBOX"] == "dev"


async def test_stop_and_start_keep_the_workspace(world: World) -> None:
    sandbox = add(world)
    manager = manager_of(world)
    await world.settle(manager)
    world.set_spec(sandbox, state="Stopped")
    await world.settle(manager, seconds=5)
    assert (world.phase(sandbox), world.get(sandbox).status["stopReason"]) == ("Stopped", "Stopped")
    assert world.backend.reserved == {}
    assert world.store.read_sync(leases.holder, f"Sandbox/{sandbox.uid}") is None
    world.set_spec(sandbox, state="Running")
    await world.settle(manager, seconds=5)
    assert world.phase(sandbox) == "Running"
    first, second = world.backend.started
    assert (first.workspace_dir, first.key != second.key) == (second.workspace_dir, True)
    assert world.get(sandbox).status["attempt"]["epoch"] == 2


async def test_idle_sandbox_stops_and_wakes_when_asked(world: World) -> None:
    sandbox = add(world, lifecycle={"idleTimeout": "10m"})
    manager = manager_of(world)
    await world.settle(manager)
    set_began(world)
    [attempt] = world.list(ATTEMPT)
    world.backend.processes.activities[attempt.uid] = Activity(False, world.clock.now().timestamp())
    world.clock.advance(599)
    await world.settle(manager)
    assert world.phase(sandbox) == "Running"
    world.clock.advance(2)
    await world.settle(manager, seconds=5)
    assert (world.phase(sandbox), world.get(sandbox).status["stopReason"]) == ("Stopped", "Idle")
    now = world.get(sandbox)
    world.store.write_sync(objects.update, now, annotations={START_ANNOTATION: "2026-01-01T00:00:00Z"})
    await world.settle(manager)
    assert world.phase(sandbox) == "Running"


async def test_lost_attempt_is_followed_by_another(world: World) -> None:
    sandbox = add(world)
    manager = manager_of(world)
    await world.settle(manager)
    process = add_process(world, sandbox)
    [member] = world.backend.started
    await world.backend.processes.exec(member.key, _spec(process))
    await world.settle(manager)
    world.backend.end(member.key, None, phase="Lost", reason="AttemptLost")
    world.backend.processes.end(process.uid, 137, phase="Lost", reason="SandboxLost")
    await world.settle(manager, seconds=5)
    assert (world.phase(sandbox), world.get(sandbox).status["recoveries"]) == ("Running", 1)
    assert world.get(process).status["reason"] == "SandboxLost"
    assert len(world.backend.started) == 2


async def test_deleted_sandbox_leaves_nothing(world: World) -> None:
    sandbox = add(world)
    manager = manager_of(world)
    await world.settle(manager)
    add_process(world, sandbox)
    [attempt] = world.list(ATTEMPT)
    world.store.write_sync(objects.delete, world.get(sandbox), "Background")
    for kind, uid in (("Sandbox", sandbox.uid), ("Attempt", attempt.uid)):
        manager.wake(kind, uid)
    await manager.drain()
    assert [world.list(kind) for kind in (SANDBOX, ATTEMPT, PROCESS)] == [[], [], []]
    assert (world.backend.emptied, world.backend.released) == ([sandbox.uid], [attempt.uid])


async def test_files_of_sandboxes_deleted_while_no_server_ran_are_deleted_at_its_start(world: World) -> None:
    sandbox = add(world)
    world.backend.filled = [sandbox.uid, "deleted-meanwhile"]
    await SandboxController(NODE, world.backend).attach(world.store)  # type: ignore[arg-type]
    assert world.backend.emptied == ["deleted-meanwhile"]


async def test_pass_with_a_stale_token_writes_nothing_and_says_so_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = add(world)
    manager = manager_of(world, lease_ttl_s=0.001)
    await world.settle(manager)
    lease = f"Sandbox/{sandbox.uid}"
    assert eventually(lambda: world.store.write_sync(leases.acquire, lease, "another-server", 60.0))
    changed = world.set_spec(sandbox, state="Stopped")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            world.clock.advance(0.0001)
            manager.wake("Sandbox", sandbox.uid)
            await manager.drain()
    assert world.get(sandbox).resource_version == changed.resource_version
    assert sum("took it over" in record.message for record in caplog.records) == 1


class InterruptedLoad(SandboxController):
    """Somebody changes the attempt after it was read, once."""

    world: World
    interrupted = False

    def load(self, conn: Any, obj: Object) -> Any:
        ctx = super().load(conn, obj)
        if ctx.live is not None and not self.interrupted and ctx.wanted == "Stopped":
            type(self).interrupted = True
            status = {**ctx.live.status, "message": "changed meanwhile"}
            self.world.store.write_sync(objects.update_status, ctx.live.uid, status)
        return ctx


async def test_contended_child_is_decided_about_again(world: World) -> None:
    InterruptedLoad.world, InterruptedLoad.interrupted = world, False
    sandbox = add(world)
    manager = manager_of(world, InterruptedLoad(NODE, world.backend))  # type: ignore[arg-type]
    await world.settle(manager)
    world.set_spec(sandbox, state="Stopped")
    await world.settle(manager, seconds=5)
    assert InterruptedLoad.interrupted
    assert world.phase(sandbox) == "Stopped"


class DiesAfterTheEffect(SandboxController):
    """The process dies once, after an effect and before its result is known."""

    dies = True

    async def act(self, ctx: Any, action: Action) -> ActionResult:
        result = await super().act(ctx, action)
        if self.dies:
            type(self).dies = False
            raise KeyboardInterrupt
        return result


async def test_crash_between_act_and_apply_converges(world: World) -> None:
    DiesAfterTheEffect.dies = True
    sandbox = add(world)
    dying = DiesAfterTheEffect(NODE, world.backend)  # type: ignore[arg-type]
    manager = manager_of(world, dying)
    await world.settle(manager)
    process = add_process(world, sandbox)
    world.clock.advance(10)
    manager.wake("Sandbox", sandbox.uid)
    with pytest.raises(KeyboardInterrupt):
        await manager.drain()
    await world.settle(manager_of(world), seconds=5)
    assert [spec.key for spec in world.backend.processes.started] == [process.uid]
    assert world.get(process).status["phase"] == "Running"


def _spec(process: Object) -> Any:
    from nodus.server.controllers.sandboxmember import process_spec

    return process_spec({}, process)
