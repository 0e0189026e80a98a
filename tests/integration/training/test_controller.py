"""The TrainingJob controller on a real store: its fixed five tests, and every way a run can go."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import EVENT, JOB, TRAINING_JOB, VOLUME
from nodus.server.controllers.runtime import Action, ActionResult, Manager
from nodus.server.controllers.trainingjob import Context, TrainingJobController
from nodus.server.store import Object, Store, leases, objects, taskevents, volumes
from nodus.server.store.taskevents import SampleKey, VerdictRow
from nodus.testing.eventually import eventually


@dataclass
class FakeGrading:
    """Notes whose graders were given back."""

    released: list[str] = field(default_factory=list)

    async def release(self, uid: str) -> None:
        self.released.append(uid)


class World:
    """A store with one controller, and hands that do what the others would."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.grading = FakeGrading()
        self.manager = self.make_manager(TrainingJobController(store, self.grading))

    def make_manager(self, controller: TrainingJobController, **options: Any) -> Manager:
        return Manager(self.store, [controller], owner="node", clock=self.clock, **options)

    async def settle(self, manager: Manager | None = None) -> None:
        for _ in range(6):
            self.clock.advance(2)
            await (manager or self.manager).resync()
            await (manager or self.manager).drain()

    def get(self, obj: Object) -> Object:
        return self.store.read_sync(objects.get_by_uid, obj.uid)

    def job(self, name: str = "run") -> Object | None:
        return self.store.read_sync(objects.find, JOB, "default", name)

    def volumes(self) -> list[Object]:
        return self.store.read_sync(objects.list_, VOLUME, "default").items

    def events(self, obj: Object) -> list[str]:
        found = self.store.read_sync(objects.list_, EVENT, None).items
        return [e.spec["reason"] for e in found if e.spec["involvedObject"]["name"] == obj.name]

    def set_status(self, obj: Object, **status: Any) -> Object:
        return self.store.write_sync(objects.update_status, obj.uid, {**self.get(obj).status, **status})

    def set_spec(self, obj: Object, **spec: Any) -> Object:
        current = self.get(obj)
        return self.store.write_sync(objects.update, current, spec={**current.spec, **spec})

    def import_model(self) -> Object:
        (volume,) = self.volumes()
        sha256 = self.store.blobs.put_bytes(b"{}")
        self.store.write_sync(volumes.commit, volume.uid, [volumes.FileEntry("config.json", sha256, 2)])
        return self.set_status(volume, phase="Ready", revision=1)

    async def started(self, run: Object) -> Object:
        """Bring a run to where its Job is running."""
        await self.settle()
        self.import_model()
        await self.settle()
        job = self.job(run.name)
        assert job is not None
        return self.set_status(job, phase="Running", startTime="2026-01-01T00:00:10Z")

    def grade(self, run: Object, phase: str, passed: int, failed: int, step: int = 0, attempt: str = "run-1") -> None:
        rows = []
        for number in range(passed + failed):
            good = number < passed
            verdict, outcome = ("Correct", "Passed") if good else ("Incorrect", "Failed")
            key = SampleKey(phase, step, f"t{number // (4 if step else 1)}", number % 4 if step else 0)
            rows.append(VerdictRow(key, "0" * 64, verdict, outcome, float(good), None, {}))
        self.store.write_sync(taskevents.record_verdicts, run.uid, attempt, rows)


@pytest.fixture
def world(store: Store, clock: FakeClock) -> World:
    return World(store, clock)


@pytest.fixture
async def run(create: Callable[..., Any], manifest: Callable[..., dict[str, Any]]) -> Object:
    """A TrainingJob that was just admitted."""
    made: Object = await create(manifest(environment={"name": "nodus/arithmetic@2.0.0", "heldOutTasks": 20}))
    return made


# The five --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Cancelled"])
async def test_finished_run_is_left_alone(world: World, run: Object, phase: str) -> None:
    world.set_status(run, phase=phase)
    before = world.get(run)
    await world.settle()
    assert (world.get(run), world.job(), world.volumes()) == (before, None, [])


async def test_run_goes_from_model_to_job_to_summary(world: World, run: Object) -> None:
    await world.settle()
    assert (world.get(run).status["phase"], world.get(run).status["progress"]) == (
        "Provisioning",
        {"stage": "CachingModel"},
    )
    job = await world.started(run)
    assert job.labels["nodus.dev/trainingjob"] == "run"
    assert job.owner_references[0]["uid"] == run.uid
    params = json.loads(world.store.blobs.read_bytes(job.spec["inputs"][0]["blob"]))
    assert params["trainingJob"] == "run" and params["modelDigest"].startswith("sha256:")
    assert params["environment"]["trainTasks"] == 200

    world.grade(run, "Baseline", 8, 12)
    world.grade(run, "Training", 3, 5, step=1)
    events = [
        {"id": "s", "type": "Stage", "stage": "Training"},
        {"id": "m", "type": "Metrics", "step": 1, "totalSteps": 4, "loss": 0.25, "reward": 0.375, "kl": 0.0},
    ]
    world.store.write_sync(taskevents.append, run.uid, "run-1", events)
    await world.settle()
    status = world.get(run).status
    assert (status["phase"], status["progress"]["stage"]) == ("Running", "Training")
    assert status["metrics"] == {"step": 1, "totalSteps": 4, "loss": "0.25", "reward": "0.375", "kl": "0"}
    assert status["summary"]["baseline"]["passRate"] == "0.4000"
    assert status["diagnostics"] == {"rewardSignal": "ContrastObserved"}

    world.grade(run, "Evaluation", 15, 5)
    outputs = [{"name": "results.json", "path": "/nodus/outputs/results.json", "sha256": "a" * 64, "size": 7}]
    world.set_status(job, phase="Succeeded", outputs=outputs, completionTime="2026-01-01T00:01:00Z")
    await world.settle()
    status = world.get(run).status
    assert status["phase"] == "Succeeded"
    assert status["summary"]["comparison"]["changePP"] == "35.0"
    assert status["outputs"] == [{"name": "results.json", "sizeBytes": 7}]
    assert status["provenance"]["modelDigest"] == params["modelDigest"]
    assert world.grading.released == [run.uid]
    assert "Succeeded" in world.events(run)
    assert world.store.read_sync(leases.holder, f"TrainingJob/{run.uid}") is None


async def test_pass_with_a_stale_token_writes_nothing(
    world: World, run: Object, caplog: pytest.LogCaptureFixture
) -> None:
    manager = world.make_manager(TrainingJobController(world.store, world.grading), lease_ttl_s=0.001)
    await world.settle(manager)
    lease = f"TrainingJob/{run.uid}"
    assert eventually(lambda: world.store.write_sync(leases.acquire, lease, "another-server", 60.0))
    world.import_model()
    before = world.get(run)
    with caplog.at_level(logging.WARNING):
        manager.wake("TrainingJob", run.uid)
        await manager.drain()
    assert (world.get(run), world.job()) == (before, None)


class InterruptedLoad(TrainingJobController):
    """Somebody changes the Job after it was read, once."""

    interrupted = False

    def load(self, conn: Any, obj: Object) -> Context:
        ctx = super().load(conn, obj)
        if ctx.job is not None and not self.interrupted and ctx.state == "Suspended":
            self.interrupted = True
            self._store.write_sync(objects.update_status, ctx.job.uid, {**ctx.job.status, "message": "meanwhile"})
        return ctx


async def test_contended_job_is_decided_about_again(world: World, run: Object) -> None:
    controller = InterruptedLoad(world.store, world.grading)
    manager = world.make_manager(controller)
    await world.settle(manager)
    world.import_model()
    await world.settle(manager)
    world.set_spec(run, state="Suspended")
    await world.settle(manager)
    job = world.job()
    assert controller.interrupted and job is not None
    assert (job.spec["state"], job.status["message"]) == ("Suspended", "meanwhile")


class DiesAfterTheEffect(TrainingJobController):
    """The process dies once, after the parameters were stored and before that is known."""

    async def act(self, ctx: Any, action: Action) -> ActionResult:
        await super().act(ctx, action)
        raise ConnectionError("the process died")


async def test_crash_between_effect_and_record_converges_on_one_job(world: World, run: Object) -> None:
    await world.settle()
    world.import_model()
    dying = world.make_manager(DiesAfterTheEffect(world.store, world.grading))
    await dying.resync()
    await dying.drain()
    assert world.job() is None
    await world.settle()
    assert world.job() is not None
    assert len(world.store.read_sync(objects.list_, JOB, None).items) == 1


# Ways a run can go -----------------------------------------------------------------------------------------------


async def test_no_contrast_is_said_when_training_taught_nothing(world: World, run: Object) -> None:
    job = await world.started(run)
    world.grade(run, "Training", 8, 0, step=1)
    world.grade(run, "Training", 0, 8, step=2)
    await world.settle()
    assert world.get(run).status["diagnostics"] == {"rewardSignal": "InsufficientEvidence"}
    world.set_status(job, phase="Succeeded")
    await world.settle()
    found = world.get(run).status["diagnostics"]
    assert found["rewardSignal"] == "NoRewardContrast" and "sampling.temperature" in found["message"]


async def test_two_runs_of_one_revision_share_its_volume(world: World, run: Object, create: Any, manifest: Any) -> None:
    second = await create(manifest(), "second")
    await world.settle()
    assert len(world.volumes()) == 1
    world.import_model()
    await world.settle()
    for name in (run.name, second.name):
        job = world.job(name)
        assert job is not None and job.spec["volumes"][0]["volume"] == world.volumes()[0].name


async def test_model_that_cannot_be_imported_fails_the_run_with_its_reason(world: World, run: Object) -> None:
    await world.settle()
    (volume,) = world.volumes()
    failed = {"failedTime": "2026-01-02T00:00:00Z"}
    world.set_status(
        volume, phase="Failed", reason="ModelRevisionNotFound", message="gone", fix="another", **{"import": failed}
    )
    await world.settle()
    status = world.get(run).status
    assert (status["phase"], status["reason"], status["message"], status["fix"]) == (
        "Failed",
        "ModelRevisionNotFound",
        "gone",
        "another",
    )


async def test_volume_that_failed_for_an_earlier_run_is_imported_again(
    world: World, create: Any, manifest: Any, clock: FakeClock
) -> None:
    await create(manifest(), "first")
    await world.settle()
    (volume,) = world.volumes()
    failed = {"failedTime": "2026-01-01T00:00:30Z"}
    world.set_status(volume, phase="Failed", reason="HubUnavailable", message="away", **{"import": failed})
    await world.settle()
    clock.advance(3600)
    second = await create(manifest(), "second")
    await world.settle()
    (again,) = world.volumes()
    assert again.uid != volume.uid
    assert world.get(second).status["progress"]["stage"] == "CachingModel"


async def test_foreign_volume_of_that_name_is_a_clear_conflict(world: World, run: Object) -> None:
    name = run.status["pinned"]["model"]["volume"]
    spec = {"accessMode": "ReadWriteOnce", "size": "1Gi"}
    world.store.write_sync(objects.create, VOLUME, "default", name, spec, status={"phase": "Ready", "revision": 0})
    await world.settle()
    status = world.get(run).status
    assert (status["phase"], status["reason"]) == ("Failed", "ModelVolumeConflict")
    assert f"nodus delete volume/{name}" in status["fix"]


async def test_foreign_job_of_the_name_is_a_clear_conflict(world: World, run: Object) -> None:
    foreign = world.store.write_sync(objects.create, JOB, "default", "run", {"command": ["true"]})
    await world.settle()
    status = world.get(run).status
    assert (status["phase"], status["reason"]) == ("Failed", "JobNameConflict")
    assert world.get(foreign).spec == {"command": ["true"]}


async def test_cancel_before_a_job_exists_ends_the_run(world: World, run: Object) -> None:
    await world.settle()
    world.set_spec(run, state="Cancelled")
    await world.settle()
    status = world.get(run).status
    assert status["phase"] == "Cancelled" and status["completionTime"]
    assert world.job() is None


async def test_cancel_suspend_and_resume_reach_the_job(world: World, run: Object) -> None:
    job = await world.started(run)
    world.set_spec(run, state="Suspended")
    await world.settle()
    assert world.get(job).spec["state"] == "Suspended"
    world.set_status(job, phase="Suspended")
    await world.settle()
    assert world.get(run).status["phase"] == "Suspended"
    assert world.grading.released == [run.uid]
    world.set_spec(run, state="Running")
    await world.settle()
    assert world.get(job).spec["state"] == "Running"
    world.set_status(job, phase="Running")
    world.set_spec(run, state="Cancelled", maxCostUSD="9.00")
    await world.settle()
    assert (world.get(job).spec["state"], world.get(job).spec["maxCostUSD"]) == ("Cancelled", "9.00")
    world.set_status(job, phase="Cancelled", reason="Cancelled")
    await world.settle()
    assert world.get(run).status["phase"] == "Cancelled"


async def test_job_that_failed_fails_the_run_with_its_words(world: World, run: Object) -> None:
    job = await world.started(run)
    world.set_status(job, phase="Failed", reason="GraderFailed", message="32 of 32", fix="correct it")
    await world.settle()
    status = world.get(run).status
    assert (status["phase"], status["reason"], status["message"], status["fix"]) == (
        "Failed",
        "GraderFailed",
        "32 of 32",
        "correct it",
    )
    assert status["diagnostics"]["rewardSignal"] == "InsufficientEvidence"


async def test_job_that_was_deleted_ends_the_run(world: World, run: Object) -> None:
    job = await world.started(run)
    await world.settle()
    world.store.write_sync(objects.delete, job, "Background")
    await world.settle()
    assert (world.get(run).status["phase"], world.get(run).status["reason"]) == ("Failed", "JobDeleted")


async def test_deleting_the_run_deletes_its_job_and_keeps_the_model(world: World, run: Object) -> None:
    job = await world.started(run)
    world.store.write_sync(objects.delete, world.get(run), "Background")
    await world.settle()
    assert world.store.read_sync(objects.find_by_uid, job.uid) is None
    assert len(world.volumes()) == 1


async def test_gpu_that_is_not_here_keeps_the_run_queued_with_the_reason(
    world: World, create: Any, manifest: Any
) -> None:
    run = await create(manifest(resources={"gpu": {"type": ["H100"], "count": 8}}))
    await world.settle()
    status = world.get(run).status
    assert (status["phase"], status["reason"]) == ("Queued", "AcceleratorUnavailable")
    assert "8 x H100 is not here" in status["message"]
    assert (world.job(), world.volumes()) == (None, [])


async def test_environment_that_changed_under_the_run_is_refused(world: World, run: Object) -> None:
    from nodus.core.kinds import ENVIRONMENT

    environment = world.store.read_sync(objects.get, ENVIRONMENT, "nodus", "arithmetic")
    world.set_status(environment, digest="sha256:" + "f" * 64)
    await world.settle()
    assert world.get(run).status["reason"] == "EnvironmentChanged"


async def test_newer_version_of_the_environment_leaves_the_run_at_its_own(world: World, run: Object) -> None:
    from nodus.core.kinds import ENVIRONMENT
    from nodus.server.store import versions

    environment = world.store.read_sync(objects.get, ENVIRONMENT, "nodus", "arithmetic")
    world.store.write_sync(versions.put, environment.uid, "2.0.0", environment.spec)
    world.set_spec(environment, version="3.0.0")
    world.set_status(environment, digest="sha256:" + "f" * 64)
    job = await world.started(run)
    params = json.loads(world.store.blobs.read_bytes(job.spec["inputs"][0]["blob"]))
    assert params["environment"]["digest"] == run.status["pinned"]["environment"]["digest"]


def test_kind_is_the_trainingjob() -> None:
    assert TrainingJobController.kind is TRAINING_JOB
