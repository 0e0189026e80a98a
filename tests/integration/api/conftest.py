"""The API in process over a real SQLite store; no controllers run, so objects stay as they are put."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import API_KEY, KINDS, MEMBER
from nodus.server import bootstrap
from nodus.server.api.app import create_app
from nodus.server.services import Services
from nodus.server.settings import Settings
from nodus.server.store import Object, keys, objects
from nodus.testing.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]


class Api:
    """A client of one application, with a key."""

    def __init__(self, app: Any, key: str | None) -> None:
        self.app = app
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.headers = headers
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://nodus.test",
            headers=headers,
        )

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.http.request(method, path, **options)

    async def ok(self, method: str, path: str, **options: Any) -> Any:
        """The JSON of a call that must succeed."""
        answer = await self.call(method, path, **options)
        assert answer.status_code < 400, answer.text
        return answer.json()

    async def fails(self, status: int, reason: str, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The Status of a call that must fail so."""
        answer = await self.call(method, path, **options)
        assert (answer.status_code, answer.json().get("reason")) == (status, reason), answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def patch(self, path: str, change: Any, kind: str = "merge", **options: Any) -> httpx.Response:
        headers = {"Content-Type": f"application/{kind}-patch+json"}
        return await self.call("PATCH", path, content=json.dumps(change), headers=headers, **options)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, **headers: str) -> AsyncIterator[Stream]:
        """A response read while it goes on, which httpx's own transport can't."""
        stream = Stream(self.app, path, {**self.headers, **headers})
        try:
            yield await stream.start()
        finally:
            await stream.close()


class Stream:
    """Drives the application as a server would, one message at a time."""

    def __init__(self, app: Any, target: str, headers: dict[str, str]) -> None:
        path, _, query = target.partition("?")
        self.scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
            "client": ("127.0.0.1", 1), "server": ("nodus.test", 80),
        }  # fmt: skip
        self.app = app
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.status = 0
        self.ended = False
        self._buffer = b""

    async def start(self) -> Stream:
        self.task = asyncio.create_task(self.app(self.scope, self._receive, self.messages.put))
        self.status = (await asyncio.wait_for(self.messages.get(), 5))["status"]
        return self

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def line(self, timeout_s: float = 5) -> bytes:
        """The next line; empty at the end of the response."""
        while b"\n" not in self._buffer and not self.ended:
            message = await asyncio.wait_for(self.messages.get(), timeout_s)
            self._buffer += message.get("body", b"")
            self.ended = not message.get("more_body")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    async def event(self, timeout_s: float = 5) -> tuple[str, dict[str, Any]]:
        """The next event of a watch."""
        found = json.loads(await self.line(timeout_s))
        return found["type"], found["object"]

    async def silent(self, for_s: float = 0.2) -> bool:
        """Whether nothing comes for a while."""
        try:
            message = await asyncio.wait_for(self.messages.get(), for_s)
        except TimeoutError:
            return not self._buffer
        self._buffer += message.get("body", b"")
        return not self._buffer and message.get("more_body", False)

    async def close(self) -> None:
        self.gone.set()
        await asyncio.wait_for(self.task, 5)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.heavy])])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    """Settings of a server over an empty database; all tests run on PostgreSQL too with ``scripts/test --all``."""
    if request.param == "sqlite":
        yield Settings(data_dir=tmp_path / "data", insecure_no_sync=True)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.database() as url:
        yield Settings(data_dir=tmp_path / "data", database_url=url)


@pytest.fixture
def opened(settings: Settings, clock: FakeClock) -> Iterator[tuple[Services, str]]:
    settings.data_dir.mkdir(mode=0o700)
    services, key = bootstrap.open_services(settings, clock, issue_key=True)
    assert key is not None
    services.base_url = "http://nodus.test"
    yield services, key
    services.store.close()


@pytest.fixture
def services(opened: tuple[Services, str]) -> Services:
    return opened[0]


@pytest.fixture
def app(services: Services) -> Any:
    return create_app(services)


@pytest.fixture
def api(app: Any, opened: tuple[Services, str]) -> Api:
    return Api(app, opened[1])


@pytest.fixture
def anonymous(app: Any) -> Api:
    return Api(app, None)


@pytest.fixture
def with_key(app: Any, services: Services) -> Callable[..., Api]:
    """A client whose key has just these scopes and projects: ``with_key("jobs:read", projects=["a"])``."""

    def make(*scopes: str, projects: list[str] | None = None, name: str = "limited", member: str = "admin") -> Api:
        spec = {"scopes": list(scopes), "projects": projects or [], "member": member}
        return Api(app, services.store.write_sync(_issue, services, name, spec))

    return make


def _issue(conn: Any, services: Services, name: str, spec: dict[str, Any]) -> str:
    hashed_key = "nodus_" + name
    owner = objects.get(conn, MEMBER, None, spec["member"])
    obj = objects.create(conn, API_KEY, None, name, spec, status={"phase": "Active"}, owner=owner)
    hashed = services.signer.hash_api_key(hashed_key)
    keys.add(conn, obj.uid, hashed.digest, hashed.key_version, owner.uid)
    return hashed_key


@pytest.fixture
def put(services: Services) -> Callable[..., Object]:
    """Stores an object past admission, as controllers do: ``put("Job", "a", status={...})``."""

    def make(
        kind: str, name: str, spec: dict[str, Any] | None = None, project: str | None = "default", **options: Any
    ) -> Object:
        record = KINDS[kind]
        return services.store.write_sync(
            objects.create,
            record,
            project if record.namespaced else None,
            name,
            spec or dict(record.example["spec"]),
            **options,
        )

    return make


@pytest.fixture
def attempt(app: Any, services: Services, put: Callable[..., Object]) -> Api:
    """The client of attempt ``run-1`` of TrainingJob ``run``."""
    training = put("TrainingJob", "run", status={"phase": "Running", "job": "run"})
    job = put("Job", "run", owner=training, status={"phase": "Running"})
    found = put(
        "Attempt",
        "run-1",
        {"job": "run", "epoch": 1},
        owner=job,
        labels={"nodus.dev/job": "run"},
        status={"phase": "Running"},
    )
    return Api(app, services.signer.attempt_token(found.uid))
