"""What grading costs a run: held before each batch, charged with its verdicts, and no more than the cap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.errors import Unavailable
from nodus.core.kinds import ATTEMPT, ENVIRONMENT, JOB
from nodus.core.money import NANO
from nodus.server.billing import gradingbill
from nodus.server.billing.funding import SECOND_US, Pace
from nodus.server.billing.limits import limits_for
from nodus.server.billing.pricebook import PriceBook
from nodus.server.controllers import funding, memberspec
from nodus.server.store import Object, Store, ledger, objects
from nodus.server.store.ledger import HoldRequest, Owner
from nodus.server.store.reconcile import verify
from nodus.server.training.service import TrainingService
from tests.integration.training.test_service import CountingGrading, completions

PRICES = PriceBook("test", {"CPU": 0, "default": 0}, grading=3600 * NANO)
"""A dollar a second; the graders of these tests work a millisecond on each completion."""
MS = NANO // 1000
LABELS = {memberspec.TRAINING_LABEL: "run"}


@pytest.fixture
def grading(store: Store, tmp_path: Path) -> CountingGrading:
    return CountingGrading(store, tmp_path / "environments")


@pytest.fixture
def service(store: Store, grading: CountingGrading) -> TrainingService:
    return TrainingService(store, grading, PRICES)


@pytest.fixture
def run_with(
    store: Store, grading: CountingGrading, create: Callable[..., Any], manifest: Callable[..., Any]
) -> Callable[..., Any]:
    """Creates a run and its attempt ``run-1``: ``await run_with(maxCostUSD="1.00")``."""

    async def make(**changes: Any) -> Object:
        environment = store.read_sync(objects.get, ENVIRONMENT, "nodus", "arithmetic")
        digest = (await grading.resolve("arithmetic", environment.spec)).digest
        store.write_sync(objects.update_status, environment.uid, {**environment.status, "digest": digest})
        wanted = {"name": "nodus/arithmetic@2.0.0", "trainTasks": 150, "heldOutTasks": 20}
        made: Object = await create(manifest(environment=wanted, **changes))
        spec = {"job": made.name, "epoch": 1, "state": "Running"}
        store.write_sync(objects.create, ATTEMPT, "default", "run-1", spec, status={"phase": "Running"})
        store.write_sync(ledger.grant, 10_000 * NANO, "start")
        return made

    return make


def cost(store: Store, run: Object) -> ledger.Cost:
    return store.read_sync(ledger.cost_of, run.uid)


async def test_a_run_pays_for_the_time_of_its_graders_once(
    service: TrainingService, store: Store, run_with: Any
) -> None:
    run = await run_with()
    items = completions("train", 150)
    await service.grade(run, "run-1", "Training", 1, items)
    assert (cost(store, run).total, cost(store, run).held) == (150 * MS, 0)
    await service.grade(run, "run-1", "Training", 1, items)
    assert cost(store, run).total == 150 * MS
    assert store.read_sync(verify) == []


async def test_a_run_pays_for_the_time_of_its_episodes_steps(
    service: TrainingService, grading: CountingGrading, store: Store, run_with: Any
) -> None:
    run = await run_with()
    asked = [{"taskId": f"train{n:03}", "sample": 0, "turns": ["a"]} for n in range(140)]
    for _ in range(2):  # nothing is recorded of an answer: asked again, it is worked on again
        await service.step(run, "run-1", "Training", 1, asked)
    assert (cost(store, run).total, cost(store, run).held) == (2 * 140 * 2 * MS, 0)
    grading.fails = True
    await service.step(run, "run-1", "Training", 1, asked[:7])
    assert (cost(store, run).total, cost(store, run).held) == (2 * 140 * 2 * MS, 0)
    assert store.read_sync(verify) == []


async def test_what_could_not_be_graded_is_covered(
    service: TrainingService, grading: CountingGrading, store: Store, run_with: Any
) -> None:
    run = await run_with()
    grading.fails = True
    await service.grade(run, "run-1", "Training", 1, completions("train", 4))
    assert cost(store, run).total == 0


async def test_a_cap_that_is_reached_suspends_the_attempt_and_is_never_exceeded(
    service: TrainingService, grading: CountingGrading, store: Store, run_with: Any
) -> None:
    run = await run_with(maxCostUSD="10.05")
    environment = await grading.resolve(
        "arithmetic", store.read_sync(objects.get, ENVIRONMENT, "nodus", "arithmetic").spec
    )
    assert environment.timeout_s == 10  # what one completion may cost, in dollars
    await service.grade(run, "run-1", "Training", 1, completions("train", 50))
    with pytest.raises(Unavailable, match="being suspended"):
        for step in range(2, 10):
            await service.grade(run, "run-1", "Training", step, completions("train", 50))
    attempt = store.read_sync(objects.get, ATTEMPT, "default", "run-1")
    assert (attempt.spec["state"], attempt.spec["stopReason"]) == ("Stopped", "MaxCostReached")
    assert attempt.spec["needsUSD"] == "10.00"
    found = cost(store, run)
    assert (found.held, found.total <= 10_050_000_000) == (0, True)
    assert store.read_sync(verify) == []


async def test_a_batch_that_a_killed_server_left_is_graded_and_charged_once(
    service: TrainingService, grading: CountingGrading, store: Store, run_with: Any, clock: FakeClock
) -> None:
    run = await run_with()
    grading.dies_after = 0
    items = completions("train", 5)
    with pytest.raises(ConnectionError):
        await service.grade(run, "run-1", "Training", 1, items)
    assert cost(store, run).held > 0
    grading.dies_after = 10**9
    await service.grade(run, "run-1", "Training", 1, items)
    assert (cost(store, run).total, cost(store, run).held) == (5 * MS, 0)


async def test_a_hold_whose_batch_never_came_back_is_released_and_the_batch_can_still_be_graded(
    service: TrainingService, grading: CountingGrading, store: Store, run_with: Any, clock: FakeClock
) -> None:
    run = await run_with()
    grading.dies_after = 0
    items = completions("train", 5)
    with pytest.raises(ConnectionError):
        await service.grade(run, "run-1", "Training", 1, items)
    assert store.write_sync(gradingbill.release_left) == 0
    clock.advance(2 * 3600)
    assert store.write_sync(gradingbill.release_left) == 1
    assert cost(store, run).held == 0
    grading.dies_after = 10**9
    await service.grade(run, "run-1", "Training", 1, items)
    assert (cost(store, run).total, cost(store, run).held) == (5 * MS, 0)
    assert store.read_sync(verify) == []


async def test_an_attempt_that_ended_leaves_no_hold_in_the_way_of_the_next(
    service: TrainingService, grading: CountingGrading, store: Store, run_with: Any
) -> None:
    run = await run_with()
    grading.dies_after = 0
    items = completions("train", 5)
    with pytest.raises(ConnectionError):
        await service.grade(run, "run-1", "Training", 1, items)
    [held] = store.read_sync(ledger.open_holds)
    attempt = store.read_sync(objects.get, ATTEMPT, "default", "run-1")
    store.write_sync(objects.update_status, attempt.uid, {"phase": "Lost"})
    assert store.write_sync(gradingbill.release_left) == 1
    assert cost(store, run).held == 0
    # Should it have been graded all the same, elsewhere, its verdicts stand.
    store.write_sync(gradingbill.settle, held.reference, [], PRICES)
    assert (cost(store, run).total, store.read_sync(verify)) == (0, [])


def test_a_run_that_could_not_pay_for_grading_waits_until_it_can(store: Store) -> None:
    spec = {"command": ["train"], "maxCostUSD": "5.00"}
    job = store.write_sync(objects.create, JOB, "default", "run", spec, labels=LABELS, status={"phase": "Suspended"})
    stopped = {"job": "run", "epoch": 1, "state": "Stopped", "stopReason": "MaxCostReached", "needsUSD": "10.00"}
    attempt = store.write_sync(objects.create, ATTEMPT, "default", "run-1", stopped, status={"phase": "Cancelled"})
    store.write_sync(ledger.grant, 100 * NANO, "start")
    terms = funding.Terms("test", Pace(10 * SECOND_US), PRICES.grading)
    assert store.read_sync(funding.shortage, job, "node", terms) is None
    # Else it would be started again and again, and pay for each start, though none gets to be graded.
    short = store.read_sync(funding.shortage, job, "node", terms, [attempt])
    assert short is not None and "needs $10.00 and has $5.00" in short["message"]


async def test_what_a_run_that_is_stopped_gives_back_does_not_start_it_again(
    service: TrainingService, store: Store, run_with: Any
) -> None:
    run = await run_with(maxCostUSD="20.00")
    run = store.write_sync(objects.update, store.read_sync(objects.get_by_uid, run.uid), labels=LABELS)
    attempt = store.read_sync(objects.get, ATTEMPT, "default", "run-1")

    def take_the_rest(conn: Any) -> None:
        owner = Owner("Attempt", attempt.uid, "run-1")
        ledger.hold(conn, HoldRequest("slice", 19 * NANO, owner, run.uid, limits_for(conn, run)))

    store.write_sync(take_the_rest)
    with pytest.raises(Unavailable):
        await service.grade(run, "run-1", "Training", 1, completions("train", 5))
    stopped = store.read_sync(objects.get, ATTEMPT, "default", "run-1")
    assert stopped.spec["needsUSD"] == "20.00"
    store.write_sync(ledger.settle, "slice", [ledger.Charge("compute", 7 * NANO)])
    terms = funding.Terms("test", Pace(10 * SECOND_US), 1)
    assert store.read_sync(funding.shortage, run, "node", terms, [stopped]) is not None
    raised = store.write_sync(objects.update, run, spec={**run.spec, "maxCostUSD": "30.00"})
    assert store.read_sync(funding.shortage, raised, "node", terms, [stopped]) is None
