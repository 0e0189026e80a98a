"""What an attempt holds is settled however it goes: deleted while the server was away, lost, left by its owner; and no
money is held for one that waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from nodus.core.errors import Unavailable
from nodus.core.kinds import ATTEMPT, OFFERING
from nodus.server.compute.base import MemberState
from nodus.server.controllers.attempt import AttemptController
from nodus.server.store import Object, ledger, objects
from nodus.server.store.ledger import HoldRequest, Limit, Owner
from nodus.server.store.schema import transfers
from nodus.testing.compute import FakeBackend

from .conftest import NODE, NoLookups, World

RATE = 3_600_000_000
"""A nano-dollar for each microsecond."""
HELD = 60_000_000


class FundedBackend(FakeBackend):
    """Says how long members ran and at what price, for as long as their directories are there."""

    async def funded_at(self, key: str) -> tuple[int, str]:
        return (0, "") if self.read_state(key).phase == "Absent" else (RATE, "compute/local-cpu")

    def ran(self, key: str, seconds: float) -> None:
        state = self.read_state(key)
        self._states[key] = replace(state, times={"created": 0.0, "started": 0.0, "ran": seconds})


@pytest.fixture
def funded(world: World) -> FundedBackend:
    world.backend = FundedBackend()
    world.store.write_sync(ledger.grant, 10 * HELD, "start")
    return world.backend


async def run(world: World) -> tuple[Object, Object]:
    """Return a Job and its attempt, which runs and holds money."""
    job = world.add_job()
    await world.settle(world.manager())
    [attempt] = world.attempts(job)
    limits = (Limit("Object", attempt.uid, f"attempt/{attempt.name}"), Limit("Object", job.uid, "job/job"))
    owner = Owner("Attempt", attempt.uid, attempt.name, "default")
    world.store.write_sync(ledger.hold, HoldRequest(f"attempt/{attempt.uid}/slice/0", HELD, owner, job.uid, limits))
    return job, attempt


def books(world: World) -> tuple[int, int]:
    """Return what is held and what was spent."""
    found = world.store.read_sync(ledger.balance)
    return found.held, found.spent


async def test_a_run_deleted_while_no_server_ran_is_charged_for_what_it_ran(
    world: World, funded: FundedBackend
) -> None:
    job, attempt = await run(world)
    funded.ran(attempt.uid, 12.0)
    # The server is killed between this transaction and what follows from it.
    world.store.write_sync(objects.delete, job)
    await world.attempt_controller().attach()
    assert books(world) == (0, 12_000_000)
    assert funded.released == [attempt.uid]


async def test_a_run_that_was_lost_and_then_deleted_is_charged_nothing_more(
    world: World, funded: FundedBackend
) -> None:
    job, attempt = await run(world)
    started = world.clock.now().timestamp()
    funded._states[attempt.uid] = MemberState(attempt.uid, "Lost", times={"created": started, "started": started})
    world.clock.advance(3600)
    world.store.write_sync(objects.delete, job)
    await world.attempt_controller().settle_left_over()
    assert books(world) == (0, 0)


async def test_an_attempt_goes_with_an_owner_that_was_deleted_without_it(world: World, funded: FundedBackend) -> None:
    job, attempt = await run(world)
    funded.ran(attempt.uid, 12.0)
    world.store.write_sync(objects.delete, job, "Orphan")
    # Another Job that has the name since neither follows it nor pays for it.
    other = world.add_job(state="Suspended")
    manager = world.manager()
    await world.settle(manager)
    assert world.list(ATTEMPT) == []
    manager.wake(ATTEMPT.name, attempt.uid)  # As its deletion does, in the feed of changes.
    await manager.drain()
    assert books(world) == (0, 12_000_000)
    assert funded.released == [attempt.uid]
    assert world.phase(other) == "Suspended"


class Importing(NoLookups):
    """A Volume that is not there yet."""

    def check(self, conn: object, job: Object) -> None:
        self.find(conn, job)

    def find(self, conn: object, job: Object) -> None:
        raise Unavailable("the volume 'data' is Importing")


async def test_an_attempt_that_waits_for_a_volume_takes_no_holds(world: World, funded: FundedBackend) -> None:
    spec = {"cpu": 2, "memory": "4Gi", "count": 0, "priceUSDPerHour": "3.60"}
    world.store.write_sync(objects.create, OFFERING, None, "local-cpu", spec)
    job = world.add_job()
    attempts = AttemptController(world.store, funded, Importing(), NODE, world.clock)  # type: ignore[arg-type]
    manager = world.manager(world.job_controller(), attempts)
    for _ in range(5):
        await world.settle(manager)
        world.clock.advance(2.0)
    assert world.attempts(job)[0].status["reason"] == "Waiting"
    assert (funded.started, funded.reserved, books(world)) == ([], {}, (0, 0))
    assert len(world.store.read_sync(lambda conn: conn.execute(select(transfers)).all())) == 1  # the grant
