"""The runtime's own promises, with a controller made for the purpose."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from nodus.core.kinds import ATTEMPT, JOB
from nodus.server.controllers.runtime import (
    Action,
    ActionResult,
    BaseController,
    EventNote,
    Key,
    NewObject,
    Outcome,
)
from nodus.server.store import Object, objects
from nodus.testing.eventually import eventually_async

from .conftest import NODE, World


@dataclass(frozen=True)
class Context:
    obj: Object
    result: ActionResult | None = None


class Script(BaseController):
    """Returns the outcomes it is given, one a pass, and then nothing."""

    kind = JOB

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.seen: list[ActionResult | None] = []
        self.acted: list[str] = []
        self.ended: list[str] = []
        self.error: Exception | None = None

    def load(self, conn: Any, obj: Object) -> Context:
        return Context(obj)

    def decide(self, ctx: Context, now: datetime) -> Outcome:
        self.seen.append(ctx.result)
        if self.error is not None:
            raise self.error
        return self.outcomes.pop(0) if self.outcomes else Outcome()

    async def act(self, ctx: Context, action: Action) -> ActionResult:
        self.acted.append(action.key)
        return ActionResult(action.key, action.name, {"n": len(self.acted)})

    async def gone(self, uid: str) -> None:
        self.ended.append(uid)


async def one_pass(world: World, controller: Script, obj: Object) -> None:
    manager = world.managers[-1] if world.managers else world.manager(controller)
    manager.wake("Job", obj.uid)
    await manager.drain()


async def test_result_of_an_action_is_in_the_next_pass_and_not_in_the_one_after(world: World) -> None:
    job = world.add_job()
    script = Script(Outcome(action=Action("do", "k")))
    await one_pass(world, script, job)
    await one_pass(world, script, job)
    assert script.acted == ["k"]
    assert script.seen == [None, ActionResult("k", "do", {"n": 1}), None]


async def test_status_is_written_at_most_once_a_second_unless_the_phase_changes(world: World) -> None:
    job = world.add_job()
    statuses = [{"phase": "Running", "message": str(n)} for n in range(4)] + [{"phase": "Suspended"}]
    script = Script(*[Outcome(status=status) for status in statuses])
    written = []
    for advance in (0, 0.3, 0.3, 0.5, 0.0):
        world.clock.advance(advance)
        await one_pass(world, script, job)
        written.append(world.get(job).status.get("message"))
    assert written == ["0", "0", "0", "3", None]


async def test_everything_of_an_outcome_is_written_or_nothing(world: World) -> None:
    job = world.add_job()
    taken = world.store.write_sync(objects.create, ATTEMPT, "default", "taken", {"job": "other", "epoch": 1})
    child = NewObject(ATTEMPT, "mine", {"job": "job", "epoch": 1})
    foreign = NewObject(ATTEMPT, taken.name, {"job": "job", "epoch": 2})
    script = Script(
        Outcome(status={"phase": "Running"}, create=[child, foreign], events=[EventNote("Normal", "A", "b")])
    )
    await one_pass(world, script, job)
    assert (world.phase(job), [a.name for a in world.list(ATTEMPT)]) == ("Queued", ["taken"])


async def test_child_that_is_there_already_is_left_as_it_is(world: World) -> None:
    job = world.add_job()
    child = NewObject(ATTEMPT, "mine", {"job": "job", "epoch": 1}, status={"phase": "Pending"})
    script = Script(Outcome(create=[child]), Outcome(create=[child], status={"phase": "Running"}))
    await one_pass(world, script, job)
    await one_pass(world, script, job)
    [attempt] = world.attempts(job)
    assert (attempt.owner_references[0]["uid"], world.phase(job)) == (job.uid, "Running")


async def test_pass_that_fails_is_logged_and_tried_again_later(world: World, caplog: pytest.LogCaptureFixture) -> None:
    job = world.add_job()
    script = Script()
    script.error = RuntimeError("a bug")
    with caplog.at_level(logging.ERROR):
        await one_pass(world, script, job)
    assert "a bug" in caplog.text
    assert (len(script.seen), len(world.managers[-1].queue)) == (1, 1)
    script.error = None
    world.clock.advance(1)
    await world.managers[-1].drain()
    assert len(script.seen) == 2


async def test_deleted_object_is_cleaned_up_after(world: World) -> None:
    job = world.add_job()
    script = Script()
    await one_pass(world, script, job)
    world.store.write_sync(objects.delete, world.get(job))
    await one_pass(world, script, job)
    assert script.ended == [job.uid]


async def test_two_servers_share_objects_and_a_restarted_one_gets_its_own_back_at_once(world: World) -> None:
    job = world.add_job()
    scripts = [Script(), Script(), Script()]
    first, other, restarted = (
        world.manager(script, owner=owner) for script, owner in zip(scripts, (NODE, "node-2", NODE), strict=True)
    )
    for manager in (first, other, restarted):
        manager.wake("Job", job.uid)
        await manager.drain()
    assert [len(script.seen) for script in scripts] == [1, 0, 1]


async def test_running_manager_follows_changes_of_objects_and_of_their_children(world: World) -> None:
    class Watching(Script):
        watches = (ATTEMPT,)

    script = Watching()
    running = asyncio.create_task(world.manager(script).run())

    async def passes(count: int) -> bool:
        return len(script.seen) >= count

    job = world.add_job()
    await eventually_async(lambda: passes(1))
    seen = len(script.seen)
    child = world.store.write_sync(objects.create, ATTEMPT, "default", "c", {"job": "job", "epoch": 1}, owner=job)
    await eventually_async(lambda: passes(seen + 1))
    seen = len(script.seen)
    world.store.write_sync(objects.delete, child)
    await eventually_async(lambda: passes(seen + 1))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_pass_that_acts_for_long_keeps_its_lease(world: World) -> None:
    job = world.add_job()
    manager = world.manager(Script(), lease_ttl_s=0.2)
    key = Key("Job", job.uid)
    token = await manager._leases.hold(key)
    world.clock.advance(0.15)
    await manager._leases.renew()
    assert await manager._leases.hold(key) == token
    other = world.manager(Script(), owner="node-2")
    assert await other._leases.hold(key) is None
    await manager._leases.release_all()
    assert await other._leases.hold(key) is not None


def test_outcome_compares_by_value() -> None:
    assert Outcome(events=[EventNote("Normal", "A", "b")]) == Outcome(events=(EventNote("Normal", "A", "b"),))
    assert dataclasses.replace(Outcome(), requeue_after_s=1.0) != Outcome()
