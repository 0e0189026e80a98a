"""A store on disk, a backend without processes and a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import ATTEMPT, JOB, SANDBOX
from nodus.server.controllers import memberspec
from nodus.server.controllers.attempt import AttemptController
from nodus.server.controllers.job import JobController
from nodus.server.controllers.runtime import Controller, Manager
from nodus.server.store import Object, Store, objects
from nodus.testing.compute import FakeBackend

NODE = "node-1"


class NoLookups:
    """Jobs of these tests refer to nothing."""

    def check(self, conn: object, job: Object) -> None:
        return None

    def find(self, conn: object, job: Object) -> None:
        return None

    def prepare(self, job: Object, attempt: Object, found: None) -> memberspec.Resolved:
        return memberspec.Resolved(token=f"token-of-{attempt.uid}")

    def written(self, job: Object) -> list[Any]:
        return []


@dataclass
class World:
    """Everything a controller test touches."""

    store: Store
    backend: FakeBackend
    clock: FakeClock
    managers: list[Manager] = field(default_factory=list)

    def job_controller(self) -> JobController:
        return JobController(NODE, self.backend, self.clock, self.store, NoLookups())  # type: ignore[arg-type]

    def attempt_controller(self) -> AttemptController:
        return AttemptController(self.store, self.backend, NoLookups(), NODE, self.clock)  # type: ignore[arg-type]

    def manager(self, *controllers: Controller[Any], owner: str = NODE, lease_ttl_s: float = 30.0) -> Manager:
        chosen = controllers or (self.job_controller(), self.attempt_controller())
        made = Manager(self.store, chosen, owner=owner, clock=self.clock, lease_ttl_s=lease_ttl_s)
        self.managers.append(made)
        return made

    async def settle(self, manager: Manager, *, seconds: float = 0.0) -> None:
        """Run passes until nothing changes any more; time moves on by ``seconds`` before each round."""
        for _ in range(50):
            before = self.snapshot()
            self.clock.advance(seconds or 0.01)
            await manager.resync()
            await manager.drain()
            if self.snapshot() == before:
                return
        raise AssertionError("the controllers did not settle")

    def snapshot(self) -> list[tuple[str, int]]:
        return [(o.uid, o.resource_version) for kind in (JOB, ATTEMPT, SANDBOX) for o in self.list(kind)]

    def list(self, kind: Any) -> list[Object]:
        return self.store.read_sync(objects.list_, kind, None).items

    def add_job(self, name: str = "job", *, project: str = "default", **spec: Any) -> Object:
        spec = {"command": ["true"], "image": "nodus/base", **spec}
        return self.store.write_sync(objects.create, JOB, project, name, spec, status={"phase": "Queued"})

    def get(self, obj: Object) -> Object:
        return self.store.read_sync(objects.get_by_uid, obj.uid)

    def set_spec(self, obj: Object, **changes: Any) -> Object:
        now = self.get(obj)
        return self.store.write_sync(objects.update, now, spec={**now.spec, **changes})

    def attempts(self, job: Object) -> list[Object]:
        found = [attempt for attempt in self.list(ATTEMPT) if attempt.spec["job"] == job.name]
        return sorted(found, key=lambda attempt: attempt.spec["epoch"])

    def phase(self, job: Object) -> str:
        return str(self.get(job).status["phase"])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = FakeClock()
    store = Store.open(f"sqlite:///{tmp_path / 'nodus.db'}", clock, sync=False)
    yield World(store, FakeBackend(), clock)
    store.close()


@pytest.fixture
def make_object() -> Callable[..., Object]:
    """Makes objects for pure decisions: ``make_object("Job", spec={...}, status={...})``."""

    def make(kind: str, name: str = "job", **fields: Any) -> Object:
        defaults: dict[str, Any] = {
            "uid": f"uid-of-{name}",
            "project": "default",
            "generation": 1,
            "resource_version": 1,
            "created_at": FakeClock().now(),
        }
        return Object(kind=kind, name=name, **{**defaults, **fields})

    return make
