"""The contract suite runs every test of this folder on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import KINDS
from nodus.server.store import Object, Store, objects
from nodus.testing.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]

OpenStore = Callable[[], Store]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'nodus.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.database() as url:
        yield url


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def open_store(store_url: str, clock: FakeClock, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens the database, as often as a test wants: each store is like a server of its own."""
    opened: list[Store] = []

    def open_() -> Store:
        opened.append(Store.open(store_url, clock, data_dir=tmp_path, sync=False))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()


@pytest.fixture
def make_job(store: Store) -> Callable[..., Object]:
    """Creates a Job: ``make_job("a", labels={...})``."""

    def make(name: str = "job", **options: object) -> Object:
        spec = options.pop("spec", {"command": ["true"]})
        project = options.pop("project", "default")
        return store.write_sync(objects.create, KINDS["Job"], project, name, spec, **options)  # type: ignore[arg-type]

    return make
