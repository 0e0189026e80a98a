"""A real SQLite store with the catalog's runtimes, an environment and a CPU offering; a hub that this test owns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import yaml

import nodus
from nodus.core.clock import FakeClock
from nodus.core.errors import Cause
from nodus.core.kinds import ENVIRONMENT, KINDS, OFFERING, PROJECT, TRAINING_JOB
from nodus.server.kinds.base import Draft
from nodus.server.kinds.trainingjob import TrainingJobAdmission
from nodus.server.metrics import Metrics
from nodus.server.services import Services
from nodus.server.settings import Settings
from nodus.server.signing import Signer
from nodus.server.store import Object, Store, objects, versions
from nodus.server.training.models import ModelService
from nodus.testing.hub import FakeHub

CATALOG = Path(nodus.__file__).parent / "catalog"
ENVIRONMENT_DIGEST = "sha256:" + "e" * 64
ENVIRONMENT_SPEC: dict[str, Any] = {
    "version": "2.0.0",
    "package": {"catalog": {"module": "arithmetic"}},
    "graders": [{"name": "last-integer", "kind": "ExactMatch"}],
    "modes": ["Train", "Evaluate"],
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    """A store with what a fresh server has."""
    store = Store.open(f"sqlite:///{tmp_path / 'nodus.db'}", clock, data_dir=tmp_path, sync=False)
    store.write_sync(_fill)
    yield store
    store.close()


def _fill(conn: Any) -> None:
    for project in ("default", "nodus"):
        objects.create(conn, PROJECT, None, project, {}, status={"phase": "Active"})
    for path in sorted((CATALOG / "runtimes").glob("*.yaml")):
        document = yaml.safe_load(path.read_text())
        status = {"phase": "Ready", "managed": True}
        objects.create(
            conn, KINDS[document["kind"]], "nodus", document["metadata"]["name"], document["spec"], status=status
        )
    status = {"phase": "Ready", "digest": ENVIRONMENT_DIGEST, "splits": {"train": 200, "test": 64}}
    made = objects.create(conn, ENVIRONMENT, "nodus", "arithmetic", ENVIRONMENT_SPEC, status=status)
    versions.put(conn, made.uid, "1.0.0", ENVIRONMENT_SPEC | {"version": "1.0.0"})
    objects.create(
        conn, ENVIRONMENT, "default", "pending", ENVIRONMENT_SPEC | {"version": "0.1.0"}, status={"phase": "Pending"}
    )
    cpu = {"cpu": 2, "memory": "16Gi", "count": 0, "priceUSDPerHour": "0.00"}
    objects.create(conn, OFFERING, None, "local-cpu", cpu, status={"phase": "Available"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A model hub of this test's own, with one tiny repository."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with FakeHub() as hub:
        hub.add("acme/tiny", {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 64, "README.md": b"tiny"})
        yield hub


@pytest.fixture
async def models(tmp_path: Path, hub: FakeHub) -> Any:
    service = ModelService(tmp_path, endpoint=hub.url)
    yield service
    await service.close()


@pytest.fixture
def services(store: Store, clock: FakeClock, models: ModelService, tmp_path: Path) -> Services:
    services = Services(
        settings=Settings(data_dir=tmp_path),
        store=store,
        clock=clock,
        signer=Signer({1: b"k" * 32}),
        metrics=Metrics(),
    )
    services.models = models
    return services


@pytest.fixture
def manifest() -> Callable[..., dict[str, Any]]:
    """A valid spec; keyword arguments replace its fields, None drops them."""

    def make(**changes: Any) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "runtime": "nodus/grpo-lora",
            "model": {"uri": "hf://acme/tiny"},
            "environment": {"name": "nodus/arithmetic@2.0.0", "trainTasks": 100, "heldOutTasks": 64},
            "parameters": {"steps": 4},
        }
        return {key: value for key, value in (spec | changes).items() if value is not None}

    return make


class Admitted:
    """What admission came to."""

    def __init__(self, draft: Draft, preview: dict[str, Any]) -> None:
        self.draft = draft
        self.causes: list[Cause] = draft.causes
        self.status = draft.status
        self.preview = preview
        self.paths = [cause.field for cause in draft.causes]


@pytest.fixture
def admit(services: Services) -> Callable[..., Any]:
    """Runs admission of a create as the API does, without storing."""

    async def run(spec: dict[str, Any], name: str | None = "run", generate_name: str | None = None) -> Admitted:
        admission = TrainingJobAdmission()
        draft = Draft(
            kind=TRAINING_JOB,
            project="default",
            name=name,
            generate_name=generate_name,
            labels={},
            annotations={},
            finalizers=[],
            spec=spec,
            model=None,
            user="tester",
        )
        model = admission.prepare(draft)
        preview: dict[str, Any] = {}
        if model is not None:
            await admission.resolve(services, draft, model)
            services.store.read_sync(admission.admit, services, draft, model)
            preview = services.store.read_sync(admission.preview, services, draft, model)
        return Admitted(draft, preview)

    return run


@pytest.fixture
def create(store: Store, admit: Callable[..., Any]) -> Callable[..., Any]:
    """Stores an admitted TrainingJob."""

    async def run(spec: dict[str, Any], name: str = "run") -> Object:
        admitted = await admit(spec, name)
        assert admitted.causes == []
        return store.write_sync(objects.create, TRAINING_JOB, "default", name, spec, status=admitted.status)

    return run
