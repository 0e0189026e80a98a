"""What keeps failing ends: after how much, how, and with what it held given back."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.errors import StoreError, Unavailable
from nodus.core.kinds import ATTEMPT, JOB, PROCESS, PROJECT, SANDBOX, VOLUME, Kind
from nodus.server.controllers import givingup
from nodus.server.controllers.outcome import Action, ActionResult, Outcome
from nodus.server.controllers.runtime import BaseController, Manager
from nodus.server.controllers.sandbox import SandboxController
from nodus.server.store import Object, failures, leases, objects
from nodus.server.store.failures import Failures

from .conftest import NODE, World

NOW = FakeClock().now()


async def go_on(world: World, manager: Manager, *, seconds: float) -> None:
    """Let the time pass, with a pass over everything that is due."""
    for _ in range(int(seconds / 5)):
        world.clock.advance(5)
        await manager.resync()
        await manager.drain()


def always(error: Exception) -> Callable[..., Any]:
    """An effect that never succeeds."""

    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def kept(world: World, obj: Object) -> Failures | None:
    return world.store.read_sync(failures.find, obj.uid)


# Pure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "seconds", "due"), [(9, 3600, False), (10, 299, False), (10, 300, True), (5000, 10, False)]
)
def test_both_many_failures_and_some_time_are_needed(count: int, seconds: float, due: bool) -> None:
    assert givingup.is_due(Failures(count, NOW), NOW + timedelta(seconds=seconds)) is due


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (RuntimeError("a bug"), True),
        (Unavailable("the process host does not answer"), True),
        (OSError(errno.EIO, "broken disk"), True),
        (StoreError("the database is away"), False),
        (OSError(errno.ENOSPC, "no space left"), False),
    ],
)
def test_troubles_of_the_database_and_of_a_full_disk_do_not_count(error: Exception, counted: bool) -> None:
    assert givingup.counts(error) is counted


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        (JOB, {"phase": "Queued"}, "StartFailed"),
        (JOB, {"phase": "Queued", "startTime": "2026-01-01T00:00:00Z"}, "InternalError"),
        (JOB, {"phase": "Running"}, "InternalError"),
        (ATTEMPT, {}, "StartFailed"),
        (SANDBOX, {"phase": "Starting"}, "StartFailed"),
        (VOLUME, {"phase": "Pending"}, "InternalError"),
    ],
)
def test_a_run_that_never_began_failed_to_start(kind: Kind, status: dict[str, Any], reason: str) -> None:
    assert givingup.reason_of(kind, status) == reason


def test_the_end_says_what_failed_how_often_and_what_to_do(make_object: Callable[..., Object]) -> None:
    trouble = givingup.Trouble(Failures(12, NOW), OSError(errno.EIO, "broken disk"), Action("collect", "k"))
    outcome = givingup.ended(JOB, make_object("Job", status={"phase": "Running"}), trouble, NOW + timedelta(minutes=6))
    assert outcome.status == {
        "phase": "Failed",
        "reason": "InternalError",
        "message": "the server's step 'collect' failed 12 times within 6m: OSError: [Errno 5] broken disk",
        "fix": givingup.FIX,
        "completionTime": "2026-01-01T00:06:00Z",
    }
    assert [(event.type, event.reason) for event in outcome.events] == [("Warning", "InternalError")]


def test_what_cannot_fail_gets_a_condition_once(make_object: Callable[..., Object]) -> None:
    trouble = givingup.Trouble(Failures(10, NOW), RuntimeError("a bug"))
    ready = {"type": "Ready", "status": "True"}
    project = make_object("Project", status={"conditions": [ready]})
    [first, second] = (givingup.ended(PROJECT, project, trouble, NOW).status or {})["conditions"]
    assert (first, second["type"], second["status"], second["reason"]) == (
        ready,
        "Reconciled",
        "False",
        "InternalError",
    )
    noted = make_object("Project", status={"conditions": [first, second]})
    assert givingup.ended(PROJECT, noted, trouble, NOW) == Outcome()


# In the runtime -----------------------------------------------------------------------------------------------


async def test_attempt_that_can_never_be_started_fails_and_gives_its_capacity_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.backend, "start", always(RuntimeError("no such call")))
    job, manager = world.add_job(backoffLimit=3), world.manager()
    await go_on(world, manager, seconds=200)
    [attempt] = world.attempts(job)
    assert (attempt.status["phase"], list(world.backend.reserved)) == ("Pending", [attempt.uid])
    await go_on(world, manager, seconds=200)
    [attempt] = world.attempts(job)
    for status in (attempt.status, world.get(job).status):
        assert (status["phase"], status["reason"], status["fix"]) == ("Failed", "StartFailed", givingup.FIX)
        assert "step 'start' failed" in status["message"]
        assert "no such call" in status["message"]
    assert world.backend.reserved == {}
    held = [world.store.read_sync(leases.holder, f"{o.kind}/{o.uid}") for o in (job, attempt)]
    assert (held, kept(world, attempt)) == ([None, None], None)


async def test_outputs_that_can_never_be_collected_end_the_attempt_and_its_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, manager = world.add_job(), world.manager()
    await world.settle(manager)
    world.backend.end(world.backend.started[-1].key)
    monkeypatch.setattr(world.backend, "collect", always(ValueError("a file of no kind")))
    await go_on(world, manager, seconds=400)
    status = world.get(job).status
    assert (status["phase"], status["reason"], world.backend.reserved) == ("Failed", "InternalError", {})
    assert "ValueError: a file of no kind" in status["message"]


async def test_the_count_goes_on_after_a_restart(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.backend, "start", always(RuntimeError("no such call")))
    job = world.add_job()
    for _ in range(5):  # servers that live for 70 seconds each: none of them could count so far by itself
        await go_on(world, world.manager(), seconds=70)
    assert world.phase(job) == "Failed"


async def test_a_database_that_is_away_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.backend, "start", always(StoreError("the database is away")))
    job, manager = world.add_job(), world.manager()
    await go_on(world, manager, seconds=900)
    [attempt] = world.attempts(job)
    assert (world.phase(job), kept(world, attempt)) == ("Queued", None)


async def test_a_pass_that_goes_well_forgets_the_failures_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job, manager = world.add_job(), world.manager()
    with monkeypatch.context() as broken:
        broken.setattr(world.backend, "start", always(RuntimeError("not now")))
        await go_on(world, manager, seconds=250)
    [attempt] = world.attempts(job)
    assert (kept(world, attempt) or Failures(0, NOW)).times >= 9
    world.managers.clear()
    manager = world.manager()  # restarted meanwhile: what failed is read, not remembered
    await go_on(world, manager, seconds=120)
    assert (world.phase(job), kept(world, attempt)) == ("Running", None)


async def test_process_that_can_never_be_started_fails_and_its_sandbox_goes_on(world: World) -> None:
    sandbox = world.store.write_sync(
        objects.create, SANDBOX, "default", "dev", {"image": "nodus/agent-tools"}, status={"phase": "Pending"}
    )
    manager = world.manager(SandboxController(NODE, world.backend), world.attempt_controller())  # type: ignore[arg-type]
    await world.settle(manager)
    given = {"command": ["x"], "sandbox": "dev", "attempt": world.list(ATTEMPT)[-1].uid, "number": 1}
    process = world.store.write_sync(
        objects.create, PROCESS, "default", "p", given, owner=sandbox, status={"phase": "Pending"}
    )
    world.backend.processes.refusal = RuntimeError("no such call")
    await go_on(world, manager, seconds=400)
    status = world.get(process).status
    assert (status["phase"], status["reason"]) == ("Failed", "StartFailed")
    assert world.phase(sandbox) == "Running"


class _Projects(BaseController):
    """Says that all is well, unless it has an error."""

    kind = PROJECT
    error: Exception | None = RuntimeError("a bug")

    def eligible(self, obj: Object) -> bool:
        return True

    def load(self, conn: Any, obj: Object) -> tuple[Object]:
        return (obj,)

    def absorb(self, ctx: Any, result: ActionResult) -> Any:
        return ctx

    def decide(self, ctx: Any, now: datetime) -> Outcome:
        if self.error is not None:
            raise self.error
        return Outcome()


async def test_condition_tells_of_what_fails_until_it_goes_well(world: World) -> None:
    project = world.store.write_sync(objects.create, PROJECT, None, "team", {})
    controller = _Projects()
    manager = world.manager(controller)
    await go_on(world, manager, seconds=400)
    [condition] = world.get(project).status["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Reconciled", "False", "InternalError")
    version = world.get(project).resource_version
    await go_on(world, manager, seconds=200)
    assert world.get(project).resource_version == version
    controller.error = None
    await go_on(world, manager, seconds=100)
    assert (world.get(project).status["conditions"], kept(world, project)) == ([], None)
