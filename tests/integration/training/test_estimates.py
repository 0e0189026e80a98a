"""What a dry run of a TrainingJob says it takes: by the runtime's figures, and by the runs that were made here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nodus.core.clock import FakeClock, rfc3339
from nodus.core.kinds import JOB, OFFERING, TRAINING_JOB, TRAINING_RUNTIME
from nodus.core.money import format_usd
from nodus.server.api.present import dry_run_etag
from nodus.server.billing.pricebook import PriceBook
from nodus.server.services import Services
from nodus.server.store import Object, Store, measurements, objects, taskevents
from nodus.server.store.measurements import KEPT, Key, Measurement
from nodus.server.store.taskevents import SampleKey, VerdictRow

from .test_controller import World

Manifest = Callable[..., dict[str, Any]]
LIBRARY = {"uri": "library://smollm2-135m-instruct"}
REFERENCE = {"batchSize": 8, "gradientAccumulation": 4, "maxCompletionLength": 12}
CENT_A_SECOND = 36_000_000_000
KEY = Key("nodus/grpo-lora", "acme/tiny", "CPU")


@pytest.fixture
def preview(admit: Any, manifest: Manifest) -> Callable[..., Any]:
    """The estimate of a manifest with changes: ``await preview(steps=40)``."""

    async def run(*, spec: dict[str, Any] | None = None, **parameters: Any) -> dict[str, Any]:
        merged = {"numGenerations": 4, **REFERENCE, "steps": 10, **parameters}
        admitted = await admit(manifest(**{"model": LIBRARY, "parameters": merged, **(spec or {})}))
        assert admitted.causes == []
        found: dict[str, Any] = admitted.preview["estimate"]
        return found

    return run


@pytest.fixture
def priced(store: Store, services: Services) -> Callable[[int], None]:
    """Sets the price of a core's hour in nano-dollars, and of the machine of two cores."""

    def price(core: int) -> None:
        services.prices = PriceBook("2026.11+test", {"CPU": core, "default": core}, 0)
        offering = store.read_sync(objects.get, OFFERING, None, "local-cpu")
        spec = {**offering.spec, "priceUSDPerHour": format_usd(2 * core)}
        store.write_sync(objects.update, offering, spec=spec)

    return price


def codes(estimate: dict[str, Any], part: str = "warnings") -> list[str]:
    return [notice["code"] for notice in estimate[part]]


# The runtime's figures --------------------------------------------------------------------------------------------


async def test_steps_and_tasks_times_their_seconds_at_the_price(preview: Any, priced: Any) -> None:
    priced(CENT_A_SECOND)  # for a core, so two for the machine
    found = await preview()
    # 10 steps of 8 seconds, 64 held-out tasks of 0.25 seconds before and after.
    assert (found["steps"], found["secondsPerStep"]) == (10, 8.0)
    assert (found["evaluatedTasks"], found["secondsPerTask"]) == (128, 0.25)
    assert found["duration"] == {"p50": "1m52s", "p90": "2m48s"}
    assert found["costUSD"] == {"p50": "2.24", "p90": "3.36"}
    assert (found["rateUSDPerHour"], found["holdUSD"]) == ("72.00", "12.00")
    assert (found["accelerator"], found["pricebookVersion"]) == ("CPU", "2026.11+test")
    assert "measured" not in found


async def test_work_scales_the_seconds(preview: Any) -> None:
    twice = await preview(batchSize=16)
    assert (twice["secondsPerStep"], twice["secondsPerTask"]) == (16.0, 0.25)
    short = await preview(maxCompletionLength=24, gradientAccumulation=1)
    assert (short["secondsPerStep"], short["secondsPerTask"]) == (4.0, 0.5)


async def test_validations_between_steps_are_evaluated_tasks(preview: Any) -> None:
    assert (await preview(evalSteps=5))["evaluatedTasks"] == 3 * 64  # after step 5; the last step's is the final one
    only = await preview(spec={"mode": "Evaluate", "evaluation": None})
    assert ("steps" in only, only["evaluatedTasks"]) == (False, 64)


async def test_ones_own_duration_counts_instead(preview: Any, priced: Any) -> None:
    priced(CENT_A_SECOND)
    found = await preview(spec={"expectedDuration": "100s"})
    assert (found["costUSD"], found["duration"]) == ({"p50": "2.00", "p90": "2.00"}, {"p50": "1m40s", "p90": "1m40s"})


async def test_share_of_the_cores_is_paid(preview: Any, priced: Any) -> None:
    priced(3)
    found = await preview(spec={"resources": {"cpu": "500m", "memory": "4Gi"}})
    assert found["rateUSDPerHour"] == "0.000000002"  # 1.5 nano-dollars an hour, rounded up


async def test_model_and_accelerator_without_figures_are_said(preview: Any, priced: Any, store: Store) -> None:
    priced(1_000_000_000)
    found = await preview(spec={"model": {"uri": "hf://acme/tiny"}})
    (notice,) = [notice for notice in found["warnings"] if notice["code"] == "ModelNotMeasured"]
    assert "HuggingFaceTB/SmolLM2-135M-Instruct on a CPU; acme/tiny may take more or less" in notice["message"]
    runtime = store.read_sync(objects.get, TRAINING_RUNTIME, "nodus", "grpo-lora")
    store.write_sync(objects.update, runtime, spec={**runtime.spec, "estimate": {}})
    unknown = await preview()
    assert "costUSD" not in unknown and "duration" not in unknown
    assert {"StepsNotEstimated", "EvaluationNotEstimated", "DurationUnknown"} <= set(codes(unknown))
    assert "costUSD" in await preview(spec={"expectedDuration": "1h"})


async def test_slowest_allowed_accelerator_counts_where_none_of_them_is_here(preview: Any, services: Services) -> None:
    services.prices = PriceBook("2026.11", {"CPU": 0, "default": 0, "A100-80G": 36_000_000_000}, 0)
    defaults = {"batchSize": 1, "gradientAccumulation": 4, "maxCompletionLength": 64}
    gpu = {"type": ["H100", "A100-80G"], "count": 1}
    environment = {"name": "nodus/arithmetic@2.0.0", "trainTasks": 100}
    found = await preview(spec={"resources": {"gpu": gpu}, "environment": environment}, **defaults)
    assert (found["accelerator"], found["secondsPerStep"]) == ("A100-80G", 0.7)
    assert found["costUSD"]["p50"] == "0.07"
    assert codes(found, "blockingReasons") == ["AcceleratorUnavailable", "InsufficientCredits"]
    here = await preview(spec={"resources": {"gpu": "H100:1"}, "environment": environment}, **defaults)
    assert (here["accelerator"], here["secondsPerStep"]) == ("H100", 0.45)


async def test_caps_below_the_estimate_and_below_a_start(preview: Any, priced: Any) -> None:
    priced(CENT_A_SECOND)
    assert "MaxCostBelowEstimate" in codes(await preview(spec={"maxCostUSD": "2.23"}))
    low = await preview(spec={"maxCostUSD": "1.79"})
    assert codes(low, "blockingReasons") == ["MaxCostTooLow", "InsufficientCredits"]
    assert low["holdUSD"] == "1.79"


# What runs here took ------------------------------------------------------------------------------------------------


def verdicts(phase: str, tasks: int, step: int = 0) -> list[VerdictRow]:
    keys = [SampleKey(phase, step, f"t{number}", 0) for number in range(tasks)]
    return [VerdictRow(key, "0" * 64, "Correct", "Passed", 1.0, None, {"durationMs": 2.5}) for key in keys]


class Trainer:
    """Reports of one attempt, at the times that a test wants."""

    def __init__(self, store: Store, clock: FakeClock, run: Object) -> None:
        self.store, self.clock, self.run = store, clock, run

    def report(self, after_s: float, **event: Any) -> None:
        self.clock.advance(after_s)
        self.store.write_sync(taskevents.append, self.run.uid, "run-1", [event])

    def grade(self, after_s: float, rows: list[VerdictRow]) -> None:
        self.clock.advance(after_s)
        self.store.write_sync(taskevents.record_verdicts, self.run.uid, "run-1", rows)

    def train(self, *, steps: int, step_s: float, task_s: float, start_s: float, tasks: int) -> None:
        """A whole run, with as many held-out tasks before and after."""
        self.report(start_s, id="stage-Baseline", type="Stage", stage="Baseline")
        self.grade(tasks * task_s, verdicts("Baseline", tasks))
        self.report(0, id="stage-Training", type="Stage", stage="Training")
        for step in range(1, steps + 1):
            self.report(step_s, id=f"metrics-{step}", type="Metrics", step=step, totalSteps=steps)
        self.report(0, id="stage-Evaluating", type="Stage", stage="Evaluating")
        self.grade(tasks * task_s, verdicts("Evaluation", tasks, steps))


async def test_finished_run_refines_the_next_estimate(
    store: Store, clock: FakeClock, create: Any, manifest: Manifest, preview: Any, services: Services
) -> None:
    spec = {"model": {"uri": "hf://acme/tiny"}}
    before = await preview(spec=spec)
    parameters = {"numGenerations": 4, **REFERENCE, "steps": 4}
    run = await create(manifest(parameters=parameters), "run")
    world = World(store, clock)
    job = await world.started(run)
    started = clock.now()
    trainer = Trainer(store, clock, world.get(run))
    trainer.train(steps=4, step_s=2, task_s=0.5, start_s=5, tasks=64)
    ended = clock.now()
    times = {"startTime": rfc3339(started), "completionTime": rfc3339(ended)}
    world.set_status(job, phase="Succeeded", attempts={"current": 1, "max": 1, "total": 1}, **times)
    await world.settle()
    assert world.get(run).status["phase"] == "Succeeded"

    after = await preview(spec=spec)
    assert (before["secondsPerStep"], after["secondsPerStep"]) == (8.0, 2.0)
    assert (before["secondsPerTask"], after["secondsPerTask"]) == (0.25, 0.5)
    assert after["measured"]["runs"] == 1 and after["measured"]["time"] >= rfc3339(ended)
    assert after["duration"]["p50"] == "1m29s"  # 10 steps, 128 tasks and the 5 seconds of the start
    assert after["overheadUSD"] == {"startup": "0.00"}
    assert "ModelNotMeasured" in codes(before) and "ModelNotMeasured" not in codes(after)
    # The same work on another model was measured by nobody; what its graders will work was.
    services.prices = PriceBook("test", {"CPU": 0, "default": 0}, 3600 * CENT_A_SECOND)
    other = await preview(spec={"model": LIBRARY})
    assert "measured" not in other
    assert other["overheadUSD"] == {"grading": "40.32"}  # 320 completions and 128 tasks, 2.5 ms at 36 dollars a second
    services.prices = PriceBook("test", {"CPU": 0, "default": 0}, 0)
    # Twice the work takes twice the time.
    assert (await preview(spec=spec, batchSize=16))["secondsPerStep"] == 4.0


async def test_plan_is_bound_to_prices_and_not_to_what_was_measured(
    store: Store, admit: Any, manifest: Manifest, priced: Any
) -> None:
    async def etag(**changes: Any) -> str:
        admitted = await admit(manifest(**changes), name=None, generate_name="run-")
        return dry_run_etag(admitted.draft, admitted.preview)

    priced(CENT_A_SECOND)
    before = await etag()
    store.write_sync(measurements.put, "uid", KEY, Measurement(1, 1, 1, 1, 1))
    assert await etag() == before
    assert await etag(maxCostUSD="500.00") != before
    priced(CENT_A_SECOND + 1)
    assert await etag() != before


async def test_run_that_failed_measures_nothing(
    store: Store, clock: FakeClock, create: Any, manifest: Manifest
) -> None:
    run = await create(manifest(), "run")
    world = World(store, clock)
    job = await world.started(run)
    Trainer(store, clock, world.get(run)).train(steps=3, step_s=2, task_s=0.5, start_s=5, tasks=8)
    world.set_status(job, phase="Failed", reason="OOMKilled", message="out of memory")
    await world.settle()
    assert store.read_sync(measurements.recent, KEY).runs == ()


async def test_median_of_the_last_runs_counts_and_older_ones_go(store: Store, clock: FakeClock, preview: Any) -> None:
    work = 8 * 4 * 12
    slow = [Measurement(9_000_000, work, 250_000, 12, 1_000_000)] * 3
    rest = [Measurement(2_000_000 + 100_000 * number, work, None, 12, None) for number in range(KEPT)]
    for number, found in enumerate([*slow, *rest]):
        clock.advance(60)
        store.write_sync(measurements.put, f"uid-{number}", KEY, found)
        store.write_sync(measurements.put, f"uid-{number}", KEY, found)  # the same run again changes nothing
    assert len(store.read_sync(measurements.recent, KEY).runs) == KEPT
    found = await preview(spec={"model": {"uri": "hf://acme/tiny"}})
    assert found["measured"] == {"time": rfc3339(clock.now()), "runs": KEPT}
    assert found["secondsPerStep"] == 2.95
    assert found["secondsPerTask"] == 0.25  # nobody measured one of late: the runtime's own
    # The high estimate is the spread of the runs: the 18th of 20 over the median.
    assert found["duration"] == {"p50": "1m2s", "p90": "1m18s"}


async def test_runs_whose_runtime_is_gone_or_that_said_nothing_are_passed_over(
    store: Store, create: Any, manifest: Manifest
) -> None:
    from nodus.server.training import measuring

    run = await create(manifest(), "run")
    assert store.read_sync(measuring.of_run, run) is None
    gone = replace(run, spec={**run.spec, "runtime": "mine"})
    assert store.read_sync(measuring.of_run, gone) is None
    assert store.read_sync(objects.find, JOB, "default", "run") is None
    assert store.read_sync(objects.get, TRAINING_JOB, "default", "run").status["estimate"]["steps"] == 4
