"""The fixed five tests of every controller, for Images, with a recipe that touches no network."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nodus.core.kinds import IMAGE
from nodus.server.compute.local.logstore import LogWriter
from nodus.server.controllers.image import MAX_TRIES, ImageController
from nodus.server.controllers.runtime import Action, ActionResult, Manager
from nodus.server.grading.builds import BuildFailed, Builds, BuildStore, Built, Order, Report
from nodus.server.store import Object, leases, objects
from nodus.testing.eventually import eventually

from .conftest import World

PACKAGE = {"pip": {"name": "words", "version": "1.0.0"}}


class Recipe:
    """Writes one file; what it does meanwhile is the test's."""

    steps: ClassVar[Sequence[str]] = ("download", "load")

    def __init__(self) -> None:
        self.builds = 0
        self.fail: BuildFailed | None = None
        self.go_on = threading.Event()
        self.go_on.set()

    def key(self, order: Order) -> str:
        return str(order.package)

    def build(self, order: Order, work: Path, report: Report) -> Built:
        self.builds += 1
        report.step("download", "a file")
        (work / "site").mkdir()
        (work / "site" / "words.py").write_text("x")
        report.step("load")
        if self.fail is not None:
            raise self.fail
        while not self.go_on.wait(0.02):
            report.check()
        return Built({"site": "x"}, packages={"words": "1.0.0"})


class Images:
    """A controller with its builds, over a world."""

    def __init__(self, world: World, root: Path) -> None:
        self.world, self.recipe = world, Recipe()
        self.builds = Builds(BuildStore(root), {"pip": self.recipe}, LogWriter, world.clock)
        self.controller = ImageController(self.builds)
        self.image: Object = world.store.write_sync(
            objects.create, IMAGE, "default", "env-words-1.0.0",
            {"environment": "words", "version": "1.0.0", "package": PACKAGE}, status={"phase": "Pending"},
        )  # fmt: skip

    def manager(self, controller: ImageController | None = None, **more: Any) -> Manager:
        return self.world.manager(controller or self.controller, **more)

    @property
    def status(self) -> dict[str, Any]:
        return self.world.get(self.image).status

    async def until(self, manager: Manager, reached: Callable[[], bool]) -> None:
        """Run passes until something holds."""
        for _ in range(200):
            await manager.resync()
            await self.one_pass(manager)
            if reached():
                return
        raise AssertionError(f"not reached: {self.status}")

    async def one_pass(self, manager: Manager) -> None:
        self.world.clock.advance(0.1)
        key = manager.queue.next_ready()
        if key is not None:
            await manager.reconcile(key)
            manager.queue.done(key)


@pytest.fixture
async def images(world: World, tmp_path: Path) -> AsyncIterator[Images]:
    made = Images(world, tmp_path / "builds")
    yield made
    await made.builds.close()


async def test_finished_image_is_left_alone(images: Images) -> None:
    images.world.store.write_sync(objects.update_status, images.image.uid, {"phase": "Failed", "message": "no"})
    manager = images.manager()
    await manager.resync()
    assert await manager.drain() == 0
    assert (images.recipe.builds, images.status["message"]) == (0, "no")


async def test_image_is_built_step_by_step(images: Images) -> None:
    images.recipe.go_on.clear()
    manager = images.manager()
    await images.until(manager, lambda: images.status.get("message", "").startswith("load"))
    assert images.status["phase"] == "Building"
    assert [step["phase"] for step in images.status["steps"]] == ["Succeeded", "Running"]
    images.recipe.go_on.set()
    await images.until(manager, lambda: images.status["phase"] == "Ready")
    assert images.status["packages"] == {"words": "1.0.0"}
    assert images.builds.store.find(images.status["digest"]) is not None
    assert images.world.store.read_sync(leases.holder, f"Image/{images.image.uid}") is None


async def test_stale_lease_writes_nothing(images: Images, caplog: pytest.LogCaptureFixture) -> None:
    manager, uid = images.manager(lease_ttl_s=0.001), images.image.uid
    images.recipe.go_on.clear()
    await images.until(manager, lambda: images.status["phase"] == "Building")
    assert eventually(lambda: images.world.store.write_sync(leases.acquire, f"Image/{uid}", "another-server", 60.0))
    images.recipe.go_on.set()
    await images.builds.wait(uid, 10)
    before = images.world.get(images.image).resource_version
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            images.world.clock.advance(0.0001)
            manager.wake("Image", uid)
            await manager.drain()
    assert images.world.get(images.image).resource_version == before
    assert sum("took it over" in record.message for record in caplog.records) == 1


async def test_what_was_built_and_is_gone_is_built_again(images: Images) -> None:
    manager = images.manager()
    await images.until(manager, lambda: images.status["phase"] == "Ready")
    digest = images.status["digest"]
    images.builds.store.remove([digest.removeprefix("sha256:")])
    await images.until(manager, lambda: images.recipe.builds == 2 and images.status["phase"] == "Ready")
    assert images.status["digest"] == digest


class Dies(ImageController):
    """Killed between the build's end and the write that says so."""

    async def act(self, ctx: Any, action: Action) -> ActionResult:
        result = await super().act(ctx, action)
        if "digest" in result.value:
            raise asyncio.CancelledError
        return result


async def test_killed_after_the_build_converges_with_one_build(images: Images) -> None:
    dying = images.manager(Dies(images.builds))
    with pytest.raises(asyncio.CancelledError):
        await images.until(dying, lambda: images.status["phase"] == "Ready")
    assert images.status["phase"] == "Building"
    again = images.manager()
    await images.until(again, lambda: images.status["phase"] == "Ready")
    assert (images.recipe.builds, images.status["steps"][0]["phase"]) == (1, "Skipped")


async def test_transient_failures_are_tried_again_and_then_end(images: Images) -> None:
    images.recipe.fail = BuildFailed("the index can't be reached", "It is tried again.", transient=True)
    manager = images.manager()
    await images.until(manager, lambda: images.status.get("tries") == 1)
    assert images.status["phase"] == "Pending"
    assert images.status["retryTime"]
    for _ in range(MAX_TRIES):
        images.world.clock.advance(100)
        await images.until(manager, lambda: images.status["phase"] in ("Pending", "Failed"))
    assert (images.status["phase"], images.recipe.builds) == ("Failed", MAX_TRIES)
    assert images.status["message"] == "step 'load' failed: the index can't be reached"
    assert "== load failed" in images.status["logTail"]


async def test_deleted_image_stops_its_build(images: Images) -> None:
    images.recipe.go_on.clear()
    manager = images.manager()
    await images.until(manager, lambda: images.status["phase"] == "Building")
    images.world.store.write_sync(objects.delete, images.image, "Background")
    await images.controller.gone(images.image.uid)
    assert images.builds.state(images.image.uid) is None
    assert not images.builds.store.log_directory(images.image.uid).exists()


async def test_build_that_waits_for_another_of_its_package_is_stopped_at_once(images: Images) -> None:
    images.recipe.go_on.clear()
    first, second = (Order(uid, uid, "words", "1.0.0", PACKAGE) for uid in ("one", "two"))
    images.builds.begin(first)
    await asyncio.to_thread(eventually, lambda: images.recipe.builds == 1)
    images.builds.begin(second)
    await images.builds.wait("two", timeout_s=0.1)
    await images.builds.stop("two")
    images.builds.begin(second)
    await images.builds.stop("two")  # before it has begun
    assert images.builds.state("two") is None
    images.recipe.go_on.set()
    await images.builds.wait("one", timeout_s=20)
    state = images.builds.state("one")
    assert state is not None and state.build is not None and images.recipe.builds == 1
