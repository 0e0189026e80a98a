"""From an Environment's spec to Ready or Failed, with real sandboxes and a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.errors import EnvironmentTasksFailed
from nodus.core.kinds import ENVIRONMENT
from nodus.server.catalog import read_catalog
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.controllers.environment import Context, EnvironmentController, fingerprint
from nodus.server.controllers.runtime import Manager
from nodus.server.grading import Completion, EnvironmentLibrary, GradingService, MemoryManifests, StoredManifests
from nodus.server.grading.selfcheck import SelfCheckFailed, check
from nodus.server.store import Object, Store, leases, objects
from nodus.testing.eventually import eventually_async
from tests.integration.grading.conftest import MakeEnvironment, Specify, processes_with

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

GOOD = """
def tasks(split):
    count = 5 if split == "train" else 3
    return [{"prompt": f"{split} {n}", "answer": str(n), "metadata": {"n": n}} for n in range(count)]

def reward(completion, answer):
    return None if not completion else float(completion == answer)
"""


async def test_manifest_is_made_once_and_kept(service: GradingService, make_environment: MakeEnvironment) -> None:
    environment = make_environment(GOOD)
    first = await service.tasks(environment, "train", 1)
    assert len(first.tasks) == 5 and not first.has_answers
    assert all(task.answer is None for task in first.tasks)
    other_order = await service.tasks(environment, "train", 2)
    assert {t.task_id for t in first.tasks} == {t.task_id for t in other_order.tasks} and first != other_order
    assert environment.directory is not None
    (environment.directory / "nodus_task.py").unlink()  # what was listed once is never listed again
    assert await service.tasks(environment, "train", 1) == first


async def test_answers_stay_out_of_reach_of_program_environments(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    manifest = await service.tasks(make_environment(GOOD), "test", 0)
    assert "answer" not in manifest.jsonl()


async def test_exact_match_grades_without_a_sandbox(service: GradingService, make_environment: MakeEnvironment) -> None:
    environment = make_environment(GOOD, graders=[{"name": "whole-text", "kind": "ExactMatch"}])
    tasks = (await service.tasks(environment, "test", 9)).tasks
    items = [Completion(t.task_id, n, str(t.metadata["n"])) for n, t in enumerate(tasks)]
    verdicts = await service.grade("job", environment, [*items, Completion(tasks[0].task_id, 9, "")])
    assert [v.verdict for v in verdicts] == ["Correct"] * 3 + ["InvalidOutput"]
    assert service.graders == 0 and not processes_with(environment.name)
    assert "answer" not in (await service.tasks(environment, "test", 9)).jsonl()


@pytest.mark.parametrize("document", read_catalog(), ids=lambda d: f"{d['kind']}-{d['metadata']['name']}")
async def test_catalog_environment_lists_what_it_declares_and_grades(
    document: dict[str, Any], service: GradingService
) -> None:
    if document["kind"] != "Environment":
        return
    name, spec = document["metadata"]["name"], document["spec"]
    found = await check(service, name, spec, "check")
    assert {split: {"size": size} for split, size in found.splits.items()} == spec["splits"]


@pytest.mark.parametrize(
    ("source", "step", "message"),
    [
        ("import missing_module", "load", "No module named 'missing_module'"),
        ("def tasks(s): return [('p' + s, 'a')]\ndef reward(c, a): return str(c == a)", "grade", "returned str 'True'"),
        ("def tasks(s): return [('p' + s, 'a')]\ndef reward(c, a): return c[0] == a", "grade", "an empty reply"),
        ("def tasks(s): return [('p' + s, 'a')]\ndef reward(c, a): raise KeyError(c)", "grade", "its own answer"),
        (
            "def tasks(s): return [('<answer>' + s, 'a')]\n"
            "def reward(c, a): return {'a': 1}[c[8:]] if c.startswith('<answer>') else None",
            "grade",
            "the reply '<answer>a</answer>' to '<answer>test': reward raised KeyError: 'a</answer>'\nTraceback",
        ),
        ("def tasks(s): raise OSError('disk')\ndef reward(c, a): return 1", "tasks", "OSError: disk"),
        ("def tasks(s): return []\ndef reward(c, a): return 1", "tasks", "are both empty"),
        (
            "import random\ndef tasks(s): return [(str(random.random()), 'a')]\ndef reward(c, a): return 1",
            "tasks",
            "differ between two processes",
        ),
        (
            "import random as r\ndef tasks(s): return [(str(n), n) for n in range(r.SystemRandom().randrange(3000))]\n"
            "def reward(c, a): return 1",
            "tasks",
            "the same version must always list the same tasks",
        ),
        (
            "def tasks(s): return [('p', 'a')]\ndef reward(c, a): return 1\nimport socket; socket.socket()",
            "load",
            "Addr",
        ),
    ],
    ids=[
        "import",
        "text reward",
        "empty reply",
        "raise",
        "parsed",
        "no list",
        "no tasks",
        "random",
        "sizes",
        "network",
    ],
)
async def test_environment_that_cannot_be_trusted_fails_its_check_with_the_step(
    source: str, step: str, message: str, service: GradingService, specify: Specify
) -> None:
    name, spec = specify(source)
    with pytest.raises(SelfCheckFailed) as caught:
        await check(service, name, spec, "check")
    assert caught.value.step == step
    assert message in caught.value.message and f"step {step!r} failed" in caught.value.message
    assert service.graders == 0


async def test_answers_of_any_type_are_fine_where_a_program_grades(service: GradingService, specify: Specify) -> None:
    name, spec = specify("def tasks(s): return [(s, {1, 2})]\ndef reward(c, a): return len(a) == 2")
    assert (await check(service, name, spec, "check")).splits == {"train": 1, "test": 1}
    with pytest.raises(SelfCheckFailed, match="is not JSON"):
        await check(service, name, {**spec, "graders": [{"name": "whole-text", "kind": "ExactMatch"}]}, "check")


@pytest.mark.parametrize("first", ["", "import os; os.closerange(3, 256)"], ids=["silent", "results closed"])
async def test_manifest_of_an_environment_that_is_too_slow_says_so(
    first: str, service: GradingService, make_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodus.server.grading.service.TASKS_TIMEOUT_S", 0.5)
    environment = make_environment(f"{first}\nimport time\ntime.sleep(60)")
    with pytest.raises(EnvironmentTasksFailed, match=r"took longer than 0\.5 s"):
        await service.tasks(environment, "train", 0)


# the controller


class World:
    """A store, a grading service over its blobs, and the controllers of one or two servers."""

    def __init__(self, store: Store, service: GradingService, clock: FakeClock) -> None:
        self.store, self.service, self.clock = store, service, clock
        self.controller = EnvironmentController(service)

    def manager(self, owner: str = "one") -> Manager:
        return Manager(self.store, [self.controller], owner=owner, clock=self.clock)

    def create(self, name: str, spec: dict[str, Any]) -> Object:
        return self.store.write_sync(lambda conn: objects.create(conn, ENVIRONMENT, "default", name, spec))

    def get(self, obj: Object) -> Object:
        return self.store.read_sync(lambda conn: objects.get_by_uid(conn, obj.uid))

    async def settled(self, manager: Manager, obj: Object) -> dict[str, Any]:
        """Run passes until the object is Ready or Failed; return its status."""

        async def done() -> bool:
            await manager.resync()
            await manager.drain()
            self.clock.advance(1)
            return self.get(obj).status.get("phase") in ("Ready", "Failed")

        await eventually_async(done, timeout_s=60)
        return self.get(obj).status


@pytest.fixture
async def world(tmp_path: Path, clock: FakeClock, environment_names: list[str]) -> AsyncIterator[World]:
    store = Store.open(f"sqlite:///{tmp_path}/nodus.db", clock, sync=False)
    library = EnvironmentLibrary(tmp_path / "environments", lambda blob: tmp_path / blob.removeprefix("sha256:"))
    service = GradingService(library, StoredManifests(store), LocalGraders(), clock)
    yield World(store, service, clock)
    await service.close()
    store.close()


async def test_environment_becomes_ready_with_digest_and_sizes(world: World, specify: Specify) -> None:
    name, spec = specify(GOOD)
    status = await world.settled(world.manager(), world.create(name, spec))
    assert (status["phase"], status["splits"]) == ("Ready", {"train": 5, "test": 3})
    assert status["digest"] == (await world.service.resolve(name, spec)).digest
    assert [(c["type"], c["status"]) for c in status["conditions"]] == [("Verified", "True")]
    ENVIRONMENT.status_model.model_validate(status)


async def test_environment_that_does_not_load_fails_with_step_and_traceback(world: World, specify: Specify) -> None:
    name, spec = specify("import json\n\nvalue = json.loads('no json')\n")
    status = await world.settled(world.manager(), world.create(name, spec))
    assert (status["phase"], status["reason"]) == ("Failed", "EnvironmentBuildFailed")
    assert "step 'load' failed" in status["message"]
    assert 'nodus_task.py", line 3' in status["message"] and "JSONDecodeError" in status["message"]
    ENVIRONMENT.status_model.model_validate(status)


async def test_bad_bundle_fails_the_unpack_step(world: World, specify: Specify) -> None:
    name, spec = specify(GOOD, files={"../outside.py": "x"})
    status = await world.settled(world.manager(), world.create(name, spec))
    assert status["phase"] == "Failed" and "step 'unpack' failed" in status["message"]


async def test_manifests_are_kept_in_the_database(world: World, specify: Specify) -> None:
    environment = await world.service.resolve(*specify(GOOD))
    first = await world.service.tasks(environment, "test", 4)
    again = GradingService(world.service.library, StoredManifests(world.store), LocalGraders(), world.clock)
    assert environment.directory is not None
    (environment.directory / "nodus_task.py").unlink()
    assert await again.tasks(environment, "test", 4) == first


async def test_only_what_is_unchecked_is_eligible(world: World) -> None:
    spec = {"version": "1.0.0", "package": {"source": {"blob": "sha256:" + "0" * 64, "module": "m"}}}
    obj = world.create("e", spec)
    eligible = world.controller.eligible

    def seen(status: dict[str, Any], **changes: Any) -> bool:
        import dataclasses

        return eligible(dataclasses.replace(obj, status=status, spec={**spec, **changes}))

    assert seen({}) and seen({"phase": "Pending"})
    done = {"phase": "Ready", "checked": fingerprint(spec)}
    assert not seen(done) and not seen({**done, "phase": "Failed"})
    assert not seen(done, summary="only words")
    assert seen(done, version="1.0.1")


async def test_stale_lease_discards_the_pass(world: World, specify: Specify) -> None:
    obj = world.create(*specify(GOOD))
    manager = world.manager()
    await manager.resync()
    world.store.write_sync(lambda conn: leases.acquire(conn, f"Environment/{obj.uid}", "another", 3600))
    await manager.drain()
    assert world.get(obj).status == {}


async def test_crash_between_check_and_status_checks_again(world: World, specify: Specify) -> None:
    obj = world.create(*specify(GOOD))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    first = world.controller.decide(Context(obj), now)
    assert first.action is not None
    await world.controller.act(Context(obj), first.action)  # and the server dies: the result is lost
    world.controller = EnvironmentController(world.service)
    assert (await world.settled(world.manager("two"), obj))["phase"] == "Ready"


async def test_machine_without_sandboxes_leaves_it_pending_with_the_fix(tmp_path: Path, world: World) -> None:
    from nodus.server.compute.local.probe import Isolation

    nothing = Isolation(
        "none", "root", False, False, False, "rlimits", "rlimits", ("not installed: x",), (), "install x"
    )
    service = GradingService(world.service.library, MemoryManifests(), LocalGraders(lambda: nothing))
    world.controller = EnvironmentController(service)
    obj = world.create("e", {"version": "1.0.0", "package": {"source": {"blob": "sha256:" + "0" * 64, "module": "m"}}})
    manager = world.manager()

    async def explained() -> bool:
        await manager.resync()
        await manager.drain()
        world.clock.advance(31)  # a status of the same phase is written once a second, and the check tried again later
        return "reason" in world.get(obj).status

    await eventually_async(explained)
    status = world.get(obj).status
    assert (status["phase"], status["reason"]) == ("Pending", "NoSandbox")
    assert "install x" in status["message"]
