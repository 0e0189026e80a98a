"""The fixed five tests of every controller, for Jobs and Attempts on the runtime."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from nodus.core.kinds import ATTEMPT, JOB
from nodus.server.controllers.attempt import AttemptController
from nodus.server.controllers.job import JobController
from nodus.server.controllers.runtime import Action, ActionResult
from nodus.server.controllers.service import end_lost_attempts
from nodus.server.store import Object, leases, nodes, objects
from nodus.testing.eventually import eventually

from .conftest import NODE, World


async def test_job_finished_is_left_alone(world: World) -> None:
    job = world.add_job()
    world.store.write_sync(objects.update_status, job.uid, {"phase": "Succeeded"})
    await world.settle(world.manager())
    assert world.attempts(job) == []


async def test_attempt_of_another_node_is_left_alone(world: World) -> None:
    job = world.add_job(state="Suspended")
    spec = {"job": "job", "epoch": 1, "node": "another-node", "state": "Running"}
    attempt = world.store.write_sync(
        objects.create, ATTEMPT, "default", "job-1", spec, owner=job, status={"phase": "Running"}
    )
    await world.settle(world.manager(world.attempt_controller()))
    assert (world.backend.started, world.get(attempt).resource_version) == ([], attempt.resource_version)


async def test_job_runs_to_its_end_and_lets_its_leases_go(world: World) -> None:
    job = world.add_job()
    manager = world.manager()
    await world.settle(manager)
    assert world.phase(job) == "Running"
    [member] = world.backend.started
    world.backend.end(member.key)
    await world.settle(manager, seconds=5)
    assert (world.phase(job), world.get(job).status["exitCode"]) == ("Succeeded", 0)
    held = [world.store.read_sync(leases.holder, f"{o.kind}/{o.uid}") for o in (job, *world.attempts(job))]
    assert held == [None, None]
    assert world.backend.reserved == {}


@pytest.mark.parametrize("kind", [JOB, ATTEMPT])
async def test_pass_with_a_stale_token_writes_nothing_and_says_so_once(
    world: World, caplog: pytest.LogCaptureFixture, kind: Any
) -> None:
    job = world.add_job()
    manager = world.manager(lease_ttl_s=0.001)
    # The lease is taken, and runs out in the database while this server's clock stands still.
    await world.settle(manager)
    obj = job if kind is JOB else world.attempts(job)[0]
    lease = f"{kind.name}/{obj.uid}"
    assert eventually(lambda: world.store.write_sync(leases.acquire, lease, "another-server", 60.0))
    before = world.get(obj)
    world.set_spec(before, state="Suspended" if kind is JOB else "Stopped")
    changed = world.get(obj)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            world.clock.advance(0.0001)
            manager.wake(kind.name, obj.uid)
            await manager.drain()
    assert world.get(obj).status == changed.status
    assert world.get(obj).resource_version == changed.resource_version
    assert sum("took it over" in record.message for record in caplog.records) == 1


class InterruptedLoad(JobController):
    """Somebody changes the attempt after it was read, once."""

    world: World
    interrupted = False

    def load(self, conn: Any, obj: Object) -> Any:
        ctx = super().load(conn, obj)
        if ctx.last is not None and not self.interrupted and ctx.wanted == "Cancelled":
            type(self).interrupted = True
            status = {**ctx.last.status, "message": "changed meanwhile"}
            self.world.store.write_sync(objects.update_status, ctx.last.uid, status)
        return ctx


async def test_contended_child_is_decided_about_again(world: World) -> None:
    InterruptedLoad.world, InterruptedLoad.interrupted = world, False
    job = world.add_job()
    jobs = InterruptedLoad(NODE, world.backend, world.clock, world.store, None)  # type: ignore[arg-type]
    manager = world.manager(jobs, world.attempt_controller())
    await world.settle(manager)
    world.set_spec(job, state="Cancelled")
    await world.settle(manager, seconds=5)
    assert InterruptedLoad.interrupted
    assert (world.phase(job), world.attempts(job)[0].status["phase"]) == ("Cancelled", "Cancelled")


class DiesAfterTheEffect(AttemptController):
    """The process dies once, after an effect and before its result is known."""

    dies_at: str = ""

    async def act(self, ctx: Any, action: Action) -> ActionResult:
        result = await super().act(ctx, action)
        if action.name == self.dies_at:
            type(self).dies_at = ""
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("moment", ["start", "collect"])
async def test_crash_between_act_and_apply_converges(world: World, moment: str) -> None:
    DiesAfterTheEffect.dies_at = moment
    job = world.add_job()
    dying = DiesAfterTheEffect(world.store, world.backend, world.attempt_controller()._lookups, NODE, world.clock)
    first = world.manager(world.job_controller(), dying)
    with pytest.raises(KeyboardInterrupt):
        await world.settle(first)
        world.backend.end(world.backend.started[0].key)
        await world.settle(first)
    second = world.manager()
    await world.settle(second)
    if moment == "start":
        assert world.phase(job) == "Running"
        world.backend.end(world.backend.started[0].key)
    await world.settle(second, seconds=5)
    assert world.phase(job) == "Succeeded"
    assert len(world.backend.started) == len(world.attempts(job)) == 1


async def test_job_is_deleted_after_its_time_to_live(world: World) -> None:
    kept, short = world.add_job("kept"), world.add_job("short", ttlSecondsAfterFinished=60)
    manager = world.manager()
    await world.settle(manager)
    for member in world.backend.started:
        world.backend.end(member.key)
    await world.settle(manager, seconds=2)
    assert (world.phase(kept), world.phase(short)) == ("Succeeded", "Succeeded")
    world.clock.advance(61)
    await world.settle(manager)
    assert [job.name for job in world.list(JOB)] == ["kept"]


async def test_attempts_of_a_host_that_is_lost_are_lost_and_follow_elsewhere(world: World) -> None:
    job = world.add_job()
    await world.settle(world.manager())
    world.store.write_sync(nodes.heartbeat, NODE, "here", {}, 0.0)
    assert eventually(lambda: world.store.write_sync(end_lost_attempts)) == 1
    await world.settle(world.manager())
    assert [attempt.status["phase"] for attempt in world.attempts(job)] == ["Lost", "Running"]
    states = await world.attempt_controller().attach()
    assert len(states) == 2
    assert world.backend.stopped == {world.attempts(job)[0].uid: "Superseded"}
