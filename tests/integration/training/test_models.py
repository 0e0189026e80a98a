"""Imports of models: once per revision, whole or not at all, with a reason when it can't be done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.errors import NotFound, Unavailable
from nodus.core.kinds import SECRET, VOLUME
from nodus.server.controllers.runtime import Manager
from nodus.server.controllers.volume import VolumeController
from nodus.server.services import Services
from nodus.server.store import Object, Store, objects, secret_values, volumes
from nodus.server.training import models as models_module
from nodus.server.training.models import ModelService
from nodus.server.training.references import HubModel, LibraryModel
from nodus.server.volumes import VolumeFiles
from nodus.testing.eventually import eventually_async
from nodus.testing.hub import FakeHub


@pytest.fixture
def files(store: Store, tmp_path: Path) -> VolumeFiles:
    return VolumeFiles(tmp_path / "volumes", store.blobs)


@pytest.fixture
def manager(store: Store, clock: FakeClock, services: Services, files: VolumeFiles) -> Manager:
    controller = VolumeController(services, services.models, files)
    return Manager(store, [controller], owner="test", clock=clock)


@pytest.fixture
def make_volume(store: Store) -> Callable[..., Object]:
    def make(source: dict[str, Any], name: str = "model") -> Object:
        spec = {"accessMode": "ReadOnlyMany", "size": "1Gi", "source": source}
        return store.write_sync(
            objects.create, VOLUME, "default", name, spec, status={"phase": "Pending", "revision": 0}
        )

    return make


async def settle(store: Store, clock: FakeClock, manager: Manager, uid: str, phases: tuple[str, ...]) -> Object:
    """Run passes, with the clock moving on, until the Volume is in one of the phases."""

    async def done() -> Object | None:
        clock.advance(60)
        await manager.resync()
        await manager.drain()
        obj = store.read_sync(objects.find_by_uid, uid)
        return obj if obj is not None and obj.status.get("phase") in phases else None

    return await eventually_async(done, timeout_s=30)


async def test_import_is_fetched_once_checked_and_mounted_read_only(
    store: Store, clock: FakeClock, manager: Manager, make_volume: Any, files: VolumeFiles, hub: FakeHub, tmp_path: Path
) -> None:
    commit = hub.repos["acme/tiny"].branches["main"]
    made = make_volume({"huggingface": {"repo": "acme/tiny", "revision": commit}})
    ready = await settle(store, clock, manager, made.uid, ("Ready", "Failed"))
    assert ready.status["phase"] == "Ready", ready.status
    assert ready.status["import"]["provenance"] == {"repo": "acme/tiny", "revision": commit}
    tree = store.read_sync(volumes.tree, made.uid, 1)
    assert [entry.path for entry in tree] == ["README.md", "config.json", "model.safetensors"]
    directory = files.directory(made.uid, 1, tree)
    assert (directory / "model.safetensors").read_bytes() == bytes(range(256)) * 64
    assert (directory / "config.json").stat().st_mode & 0o777 == 0o444
    assert files.directory(made.uid, 1, tree) == directory
    assert dict(hub.downloads) == {"README.md": 1, "config.json": 1, "model.safetensors": 1}
    assert not (tmp_path / "imports" / made.uid).exists()


async def test_volume_of_a_branch_is_pinned_to_its_commit(
    store: Store, clock: FakeClock, manager: Manager, make_volume: Any, hub: FakeHub
) -> None:
    made = make_volume({"huggingface": {"repo": "acme/tiny"}})
    ready = await settle(store, clock, manager, made.uid, ("Ready", "Failed"))
    assert ready.status["import"]["provenance"]["revision"] == hub.repos["acme/tiny"].branches["main"]


async def test_branch_with_a_name_of_40_characters_is_pinned_like_any_other(
    store: Store, clock: FakeClock, manager: Manager, make_volume: Any, hub: FakeHub
) -> None:
    branch = "release-candidate-of-the-winter-2026-v01"
    assert len(branch) == 40
    commit = hub.repos["acme/tiny"].branches[branch] = hub.repos["acme/tiny"].branches["main"]
    made = make_volume({"huggingface": {"repo": "acme/tiny", "revision": branch}})
    ready = await settle(store, clock, manager, made.uid, ("Ready", "Failed"))
    assert ready.status["import"]["provenance"]["revision"] == commit


async def test_branch_that_looks_like_a_commit_is_not_taken_for_one(
    store: Store, clock: FakeClock, manager: Manager, make_volume: Any, hub: FakeHub
) -> None:
    commit = hub.repos["acme/tiny"].branches["c" * 40] = hub.repos["acme/tiny"].branches["main"]
    made = make_volume({"huggingface": {"repo": "acme/tiny", "revision": "c" * 40}})
    failed = await settle(store, clock, manager, made.uid, ("Ready", "Failed"))
    assert (failed.status["reason"], failed.status["fix"]) == ("ModelRevisionNotFound", f"name that commit: {commit}")


async def test_revision_that_is_gone_fails_with_its_reason(
    store: Store, clock: FakeClock, manager: Manager, make_volume: Any, hub: FakeHub
) -> None:
    commit = hub.repos["acme/tiny"].branches["main"]
    hub.forget("acme/tiny", commit)
    made = make_volume({"huggingface": {"repo": "acme/tiny", "revision": commit}})
    failed = await settle(store, clock, manager, made.uid, ("Ready", "Failed"))
    assert failed.status["reason"] == "ModelRevisionNotFound"
    assert failed.status["fix"] == "name another commit"
    assert store.read_sync(volumes.latest, made.uid) is None


async def test_altered_file_is_never_committed_and_a_good_retry_is(
    store: Store, clock: FakeClock, manager: Manager, make_volume: Any, hub: FakeHub
) -> None:
    hub.faults.corrupt.add("model.safetensors")
    commit = hub.repos["acme/tiny"].branches["main"]
    made = make_volume({"huggingface": {"repo": "acme/tiny", "revision": commit}})

    async def noticed() -> bool:
        clock.advance(1)
        await manager.resync()
        await manager.drain()
        obj = store.read_sync(objects.find_by_uid, made.uid)
        return obj is not None and obj.status.get("reason") == "ModelCorrupt"

    await eventually_async(noticed, timeout_s=30)
    assert store.read_sync(volumes.latest, made.uid) is None
    hub.faults.corrupt.clear()
    ready = await settle(store, clock, manager, made.uid, ("Ready", "Failed"))
    assert ready.status["phase"] == "Ready" and "reason" not in ready.status
    assert hub.downloads["model.safetensors"] == 2 and hub.downloads["config.json"] == 1


async def test_import_that_can_never_be_kept_fails_and_frees_its_disk_space(
    store: Store, clock: FakeClock, manager: Manager, make_volume: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such call")

    monkeypatch.setattr(VolumeFiles, "take", broken)
    made = make_volume({"huggingface": {"repo": "acme/tiny"}})
    failed = await settle(store, clock, manager, made.uid, ("Ready", "Failed"))
    assert (failed.status["phase"], failed.status["reason"]) == ("Failed", "InternalError")
    assert "the server's step 'import' failed" in failed.status["message"]
    assert "RuntimeError: no such call" in failed.status["message"]
    assert not (tmp_path / "imports" / made.uid).exists()


async def test_file_that_is_cut_short_is_never_committed(
    store: Store, clock: FakeClock, manager: Manager, make_volume: Any, hub: FakeHub
) -> None:
    hub.faults.truncate["model.safetensors"] = 1000
    commit = hub.repos["acme/tiny"].branches["main"]
    made = make_volume({"huggingface": {"repo": "acme/tiny", "revision": commit}})

    async def noticed() -> bool:
        clock.advance(1)
        await manager.resync()
        await manager.drain()
        obj = store.read_sync(objects.find_by_uid, made.uid)
        return obj is not None and obj.status.get("reason") == "HubUnavailable"

    await eventually_async(noticed, timeout_s=50, every_s=0.1)
    assert store.read_sync(volumes.latest, made.uid) is None
    hub.faults.truncate.clear()
    assert (await settle(store, clock, manager, made.uid, ("Ready", "Failed"))).status["phase"] == "Ready"


async def test_gated_repository_needs_the_token_of_a_secret(
    store: Store, clock: FakeClock, manager: Manager, make_volume: Any, services: Services, hub: FakeHub
) -> None:
    commit = hub.add("acme/gated", {"config.json": b"{}"}, token="hf_right")
    refused = make_volume({"huggingface": {"repo": "acme/gated", "revision": commit}}, "refused")
    failed = await settle(store, clock, manager, refused.uid, ("Ready", "Failed"))
    assert failed.status["reason"] == "ModelAccessDenied" and "HF_TOKEN" in failed.status["fix"]

    secret = store.write_sync(objects.create, SECRET, "default", "hub", {"type": "Opaque"}, status={"phase": "Ready"})
    sealed = services.signer.encrypt(json.dumps({"HF_TOKEN": "hf_right"}).encode(), secret.uid)
    store.write_sync(secret_values.put, secret.uid, 1, sealed)
    source = {"huggingface": {"repo": "acme/gated", "revision": commit, "secret": "hub"}}
    made = make_volume(source, "granted")
    ready = await settle(store, clock, manager, made.uid, ("Ready", "Failed"))
    assert ready.status["phase"] == "Ready", ready.status
    assert "hf_right" not in json.dumps(ready.to_wire())


async def test_import_killed_in_the_middle_leaves_no_half_volume_and_goes_on(
    store: Store,
    clock: FakeClock,
    make_volume: Any,
    services: Services,
    files: VolumeFiles,
    hub: FakeHub,
    tmp_path: Path,
) -> None:
    commit = hub.repos["acme/tiny"].branches["main"]
    made = make_volume({"huggingface": {"repo": "acme/tiny", "revision": commit}})
    hub.faults.delay_s = 0.2
    first = ModelService(tmp_path, endpoint=hub.url)
    manager = Manager(store, [VolumeController(services, first, files)], owner="first", clock=clock)
    await manager.resync()
    await manager.drain()

    async def asked() -> bool:
        return bool(hub.requests)

    await eventually_async(asked, timeout_s=10)
    await first.close()  # kills the importer
    assert store.read_sync(volumes.latest, made.uid) is None
    hub.faults.delay_s = 0
    second = Manager(store, [VolumeController(services, services.models, files)], owner="first", clock=clock)
    ready = await settle(store, clock, second, made.uid, ("Ready", "Failed"))
    assert ready.status["phase"] == "Ready"


async def test_crash_between_commit_and_status_converges_on_the_one_revision(
    store: Store, clock: FakeClock, manager: Manager, make_volume: Any
) -> None:
    made = make_volume({"huggingface": {"repo": "acme/tiny"}})
    sha256 = store.blobs.put_bytes(b"{}")
    store.write_sync(volumes.commit, made.uid, [volumes.FileEntry("config.json", sha256, 2)])
    ready = await settle(store, clock, manager, made.uid, ("Ready", "Failed"))
    assert (ready.status["phase"], ready.status["revision"]) == ("Ready", 1)
    assert len(store.read_sync(volumes.list_, made.uid)) == 1


async def test_deleted_volume_takes_its_files_along(
    store: Store, clock: FakeClock, manager: Manager, make_volume: Any, files: VolumeFiles, hub: FakeHub
) -> None:
    made = make_volume({"huggingface": {"repo": "acme/tiny"}})
    ready = await settle(store, clock, manager, made.uid, ("Ready", "Failed"))
    directory = files.directory(made.uid, 1, store.read_sync(volumes.tree, made.uid, 1))
    store.write_sync(objects.delete, ready, "Background")
    manager.wake("Volume", made.uid)
    await manager.drain()
    assert not directory.exists()


async def test_concurrent_pins_and_a_create_after_its_dry_run_come_to_one_commit(
    models: ModelService, hub: FakeHub
) -> None:
    first = await models.pin(HubModel("acme/tiny"))
    hub.add("acme/tiny", {"config.json": b"{ }"})
    second, third = await asyncio.gather(models.pin(HubModel("acme/tiny")), models.pin(HubModel("acme/tiny")))
    assert first == second == third
    assert len(hub.requests) == 1


async def test_pin_refuses_what_is_not_there(models: ModelService, hub: FakeHub) -> None:
    with pytest.raises(NotFound, match="no such repository"):
        await models.pin(HubModel("acme/none"))
    with pytest.raises(NotFound) as refused:
        await models.pin(LibraryModel("smollm2-360m"))
    assert refused.value.fix == "Use library://smollm2-135m-instruct."
    hub.faults.status = 503
    with pytest.raises(Unavailable, match="could not be asked"):
        await models.pin(HubModel("acme/tiny"))


def test_default_model_follows_the_device_and_the_operator(tmp_path: Path) -> None:
    assert ModelService(tmp_path).default_model(has_gpu=False) == "hf://HuggingFaceTB/SmolLM2-135M-Instruct"
    assert ModelService(tmp_path).default_model(has_gpu=True) == "hf://Qwen/Qwen3-0.6B"
    assert ModelService(tmp_path, default="hf://acme/tiny").default_model(has_gpu=True) == "hf://acme/tiny"


async def test_only_so_many_imports_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Path] = []
    go_on = asyncio.Event()

    async def run(request: bytes, work: Path) -> dict[str, Any]:
        begun.append(work)
        await go_on.wait()
        return {"ok": True, "files": []}

    monkeypatch.setattr(models_module, "_run", run)
    service, count = ModelService(tmp_path), models_module.MAX_IMPORTS + 3
    for number in range(count):
        service.begin(f"volume-{number}", {"url": {"url": "https://example.com"}}, {}, 1)
    async with asyncio.timeout(20):
        while len(begun) < models_module.MAX_IMPORTS or len(list((tmp_path / "imports").iterdir())) < count:
            await asyncio.sleep(0)
        assert len(begun) == models_module.MAX_IMPORTS
        go_on.set()
        while any(service.state(f"volume-{number}").done is None for number in range(count)):
            await asyncio.sleep(0)
    assert len(begun) == count
    await service.close()
