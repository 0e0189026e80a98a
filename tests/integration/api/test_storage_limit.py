"""What is refused once a server stores as much as it may, and what never is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.errors import QuotaExceeded
from nodus.server import retention, storage
from nodus.server.services import Services
from nodus.server.settings import Settings, SettingsError
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, VOLUMES, job

KIB = b"x" * 1024


@pytest.fixture
def opened(settings: Settings, clock: FakeClock) -> Any:
    """A server that stores two KiB at most."""
    from nodus.server import bootstrap

    settings.data_dir.mkdir(mode=0o700)
    limited = settings.model_copy(update={"storage_limit": "2Ki"})
    services, key = bootstrap.open_services(limited, clock, issue_key=True)
    services.base_url = "http://nodus.test"
    yield services, key
    services.store.close()


async def send(api: Api, content: bytes) -> Any:
    body = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    return await api.call("POST", "/blobs/v1/namespaces/default/uploads", json=body)


async def put(api: Api, upload: str, content: bytes, path: str = "f") -> Any:
    return await api.call("PUT", f"{upload}/files", params={"path": path}, content=content)


async def begin(api: Api) -> str:
    await api.ok("POST", VOLUMES, json={"metadata": {"name": "v"}})
    return f"{VOLUMES}/v/uploads/" + (await api.ok("POST", f"{VOLUMES}/v/uploads", json={}))["id"]


async def test_uploads_beyond_the_limit_are_refused_with_both_numbers(api: Api, services: Services) -> None:
    upload = await begin(api)
    assert (await put(api, upload, KIB)).status_code == 201
    answers = [await put(api, upload, KIB + b"1", "g"), await send(api, KIB + b"2")]
    bundle = b'{"files":[{"path":"b","size":1025,"sha256":"%s"}]}\n' % hashlib.sha256(KIB + b"3").hexdigest().encode()
    answers.append(await api.call("POST", f"{upload}/bundle", content=bundle + KIB + b"3"))
    piece = {"path": "p", "sha256": hashlib.sha256(KIB + b"4").hexdigest(), "size": 1025, "offset": 0}
    answers.append(await api.call("PUT", f"{upload}/files", params=piece, content=KIB + b"4"))
    for answer in answers:
        assert (answer.status_code, answer.json()["reason"]) == (429, "QuotaExceeded"), answer.text
        wanted = {"quota": "storage", "limitBytes": 2048, "usedBytes": 1024, "bytes": 1025}
        assert answer.json()["details"] == wanted
        assert "nodus admin sweep" in answer.json()["fix"]
    assert (await put(api, upload, KIB[1:] + b"5", "h")).status_code == 201, "exactly to the limit"
    await api.fails(429, "QuotaExceeded", "POST", f"{VOLUMES}/v/uploads", json={})
    source = {"source": {"url": "https://example.com/a"}}
    await api.fails(429, "QuotaExceeded", "POST", VOLUMES, json={"metadata": {"name": "w"}, "spec": source})
    assert any(line.startswith("storage: 2Ki") for line in services.degraded())
    await api.ok("PUT", upload, json={"commit": {}})
    await api.ok("POST", JOBS, json=job())


async def test_what_was_freed_counts_at_once(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    monkeypatch.setattr(storage, "FRESH_S", 0.0)
    upload = await begin(api)
    await put(api, upload, KIB * 2)
    assert (await send(api, b"1")).status_code == 429
    await api.ok("DELETE", upload)
    clock.advance(60)
    assert retention.sweep(services.store, services.settings, keep_s=0.0).bytes == 2048
    assert (await send(api, b"1")).status_code == 200


async def test_what_runs_write_counts_and_is_never_in_the_way(api: Api, services: Services) -> None:
    checkpoint = services.settings.data_dir / "jobs" / "a" / "state" / "weights"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"x" * 10_000)
    await services.storage.measure()
    assert services.storage.used_bytes >= 10_000
    assert f"nodus_stored_bytes {float(services.storage.used_bytes)}".encode() in services.metrics.render()
    assert (await send(api, b"1")).status_code == 429
    digest = services.store.blobs.put_bytes(b"output")  # as the end of a run does it
    assert services.store.blobs.exists(digest)


async def test_a_disk_that_is_almost_full_refuses_too(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "RESERVE_BYTES", 2**62)
    answer = await send(api, b"1")
    assert answer.json()["details"]["quota"] == "disk"


def test_a_limit_that_is_none_stops_the_server(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="'much' is not a quantity"):
        Settings.load({"data_dir": tmp_path, "storage_limit": "much"}, {})


def test_what_comes_in_an_unknown_amount_is_called_so(services: Services) -> None:
    services.storage.used_bytes = 2048
    with pytest.raises(QuotaExceeded, match="anything more would be more than this server stores: it has 2048 bytes"):
        services.storage.check(0)
