"""Volumes that are imported from a source, from the object to its first revision."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import JOB, PROJECT, SECRET, VOLUME
from nodus.server.controllers.runtime import Manager
from nodus.server.controllers.volume import VolumeController
from nodus.server.metrics import Metrics
from nodus.server.services import Services
from nodus.server.settings import Settings
from nodus.server.signing import Signer
from nodus.server.store import Object, Store, objects, partials, secret_values, volumes
from nodus.server.training.models import ModelService
from nodus.server.volumes import VolumeFiles
from nodus.testing.eventually import eventually_async
from tests.integration.sources.conftest import LOOPBACK, FileServer
from tests.integration.sources.test_url import tar


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    settings, clock, signer = Settings(data_dir=tmp_path, source_hosts=LOOPBACK), FakeClock(), Signer({1: b"k" * 32})
    store = Store.open(settings.store_url, clock, data_dir=tmp_path, sync=False)
    store.write_sync(objects.create, PROJECT, None, "default", {}, status={"phase": "Active"})
    yield Services(settings=settings, store=store, clock=clock, signer=signer, metrics=Metrics())
    store.close()


@pytest.fixture
async def manager(services: Services, tmp_path: Path) -> AsyncIterator[Manager]:
    models = ModelService(tmp_path, source_hosts=services.settings.source_hosts)
    files = VolumeFiles(tmp_path / "volumes", services.store.blobs)
    yield Manager(services.store, [VolumeController(services, models, files)], owner="test", clock=services.clock)
    await models.close()


def make(store: Store, source: dict[str, Any], size: str = "1Mi") -> Object:
    spec = {"accessMode": "ReadWriteOnce", "size": size, "source": source}
    status = {"phase": "Pending", "revision": 0}
    return store.write_sync(objects.create, VOLUME, "default", "v", spec, status=status)


async def settled(services: Services, manager: Manager, made: Object) -> dict[str, Any]:
    async def done() -> dict[str, Any] | None:
        services.clock.advance(60)
        await manager.resync()
        await manager.drain()
        status = services.store.read_sync(objects.get_by_uid, made.uid).status
        return status if status.get("phase") in ("Ready", "Failed") else None

    return await eventually_async(done, timeout_s=40)


async def test_archive_becomes_the_first_revision(services: Services, manager: Manager, server: FileServer) -> None:
    server.files["/a.tgz"] = tar(("d/a", b"1"), ("run.sh", b"22"))
    made = make(services.store, {"url": f"{server.url}/a.tgz"})
    status = await settled(services, manager, made)
    assert (status["phase"], status["revision"], status["used"]) == ("Ready", 1, "3")
    assert status["import"]["provenance"]["etag"] == '"1"'
    tree = services.store.read_sync(volumes.tree, made.uid, 1)
    assert [(entry.path, oct(entry.mode)) for entry in tree] == [("d/a", "0o644"), ("run.sh", "0o755")]


async def test_failure_has_a_reason_and_a_fix(services: Services, manager: Manager, server: FileServer) -> None:
    made = make(services.store, {"url": {"url": f"{server.url}/nope", "extract": "None"}})
    status = await settled(services, manager, made)
    assert (status["phase"], status["reason"], status["fix"]) == ("Failed", "SourceNotFound", "check the address")
    assert services.store.read_sync(volumes.latest, made.uid) is None


async def test_transient_failure_is_tried_again(services: Services, manager: Manager, server: FileServer) -> None:
    server.files["/a"], server.cut_after["/a"] = b"x" * 5000, 10
    status = await settled(services, manager, make(services.store, {"url": f"{server.url}/a"}))
    assert (status["phase"], status["import"]["tries"]) == ("Ready", 1)


async def test_secret_of_a_source_stays_secret(services: Services, manager: Manager, server: FileServer) -> None:
    store = services.store
    secret = store.write_sync(objects.create, SECRET, "default", "git", {"type": "Opaque"}, status={"phase": "Ready"})
    sealed = services.signer.encrypt(json.dumps({"token": "tok-private"}).encode(), secret.uid)
    store.write_sync(secret_values.put, secret.uid, 1, sealed)
    server.repositories, server.password = services.settings.data_dir, "never"
    made = make(store, {"git": {"repo": f"{server.url}/x.git", "secret": "git"}})
    status = await settled(services, manager, made)
    assert (status["phase"], status["reason"]) == ("Failed", "SourceAccessDenied")
    assert "Authorization" in server.asked[-1][1]
    files = [path for path in services.settings.data_dir.rglob("*") if path.is_file()]
    assert all(b"tok-private" not in path.read_bytes() for path in files)


async def test_deleted_volume_takes_its_unfinished_uploads_along(services: Services, manager: Manager) -> None:
    made = make(services.store, {})
    parts = partials.Partials(services.store.blobs)
    writer = parts.open(made.uid, "0" * 64, 0, 10)
    writer.write(b"12345")
    writer.close()
    assert parts.received(made.uid, "0" * 64) == 5
    services.store.write_sync(objects.delete, made, "Background")
    manager.wake("Volume", made.uid)
    await manager.drain()
    assert parts.received(made.uid, "0" * 64) == 0


async def test_holder_is_shown_for_as_long_as_its_job_runs(services: Services, manager: Manager) -> None:
    store = services.store
    job = store.write_sync(objects.create, JOB, "default", "j", {}, status={"phase": "Running"})
    made = make(store, {})
    holder = {"kind": "Job", "name": "j", "uid": job.uid, "attempt": "j-1", "epoch": 1}
    store.write_sync(objects.update_status, made.uid, {"phase": "Ready", "revision": 0, "holder": holder})
    assert (await settled(services, manager, made))["holder"] == holder
    store.write_sync(objects.update_status, job.uid, {"phase": "Failed"})
    await settled(services, manager, made)
    assert "holder" not in (await settled(services, manager, made))
