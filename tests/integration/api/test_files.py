"""Blobs: grants, uploads, downloads by redirect; Environments keep their versions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.server.services import Services
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import V1

UPLOADS = "/blobs/v1/namespaces/default/uploads"
DATA = b"some bytes\n" * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()


async def grant(api: Api, data: bytes = DATA, **changes: Any) -> dict[str, Any]:
    body = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "contentType": "application/gzip", **changes}
    found: dict[str, Any] = await api.ok("POST", UPLOADS, json=body)
    return found


async def upload(api: Api, anonymous: Api, data: bytes = DATA) -> str:
    granted = await grant(api, data)
    assert (await anonymous.call("PUT", granted["url"], content=data)).status_code < 300
    return hashlib.sha256(data).hexdigest()


async def test_blob_goes_in_and_comes_out_by_signed_urls(api: Api, anonymous: Api) -> None:
    granted = await grant(api)
    assert granted["exists"] is False
    assert granted["url"].startswith("http://nodus.test/")
    put = await anonymous.call("PUT", granted["url"], content=DATA, headers=granted["headers"])
    assert put.status_code < 300
    assert await grant(api) == {"exists": True}

    answer = await api.call("GET", f"/blobs/v1/namespaces/default/blobs/{SHA256}")
    assert (answer.status_code, answer.headers["X-Nodus-SHA256"]) == (302, SHA256)
    got = await anonymous.call("GET", answer.headers["Location"])
    assert got.content == DATA
    part = await anonymous.call("GET", answer.headers["Location"], headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, DATA[5:10])


async def test_other_bytes_than_granted_are_refused_and_nothing_is_stored(
    api: Api, anonymous: Api, services: Services
) -> None:
    url = (await grant(api))["url"]
    await anonymous.fails(400, "BadRequest", "PUT", url, content=DATA + b"x")
    await anonymous.fails(400, "BadRequest", "PUT", url, content=DATA[:-1])
    await anonymous.fails(412, "SHA256Mismatch", "PUT", url, content=b"x" * len(DATA))
    assert not services.store.blobs.exists(SHA256)
    assert not list(services.store.blobs.root.glob("incoming-*"))


async def test_links_can_not_be_changed_or_used_late(api: Api, anonymous: Api, clock: FakeClock) -> None:
    url = (await grant(api))["url"]
    path, _, query = url.partition("?")
    for forged in (
        path,
        f"{path}?{query.replace('size=', 'size=9')}",
        f"{path}?{query}0",
        f"{path.replace(SHA256, '0' * 64)}?{query}",
        f"{path}?{query.replace('expires=', 'expires=9')}",
        f"{path}?{query.replace('key=1', 'key=2')}",
        f"{path}?{query}&type=text",
    ):
        await anonymous.fails(403, "Forbidden", "PUT", forged, content=DATA)
    await anonymous.fails(403, "Forbidden", "GET", f"{path.replace('uploads', 'blobs')}?{query}")
    clock.advance(24 * 3600)
    await anonymous.fails(403, "Forbidden", "PUT", url, content=DATA)


async def test_links_lead_where_the_client_reaches_the_server(api: Api, services: Services) -> None:
    async def host(name: str) -> str:
        body = {"sha256": SHA256, "size": len(DATA)}
        url: str = (await api.ok("POST", UPLOADS, json=body, headers={"Host": name}))["url"]
        return url.partition("/blobs")[0]

    services.base_url = "http://fallback"
    assert await host("tunnel.example:9000") == "http://tunnel.example:9000"
    assert await host("[::1]:80") == "http://[::1]:80"
    for forged in ("evil/path", "a b", "user@host", ""):
        assert await host(forged) == "http://fallback"


async def test_blob_of_another_project_is_not_there(
    api: Api, anonymous: Api, with_key: Callable[..., Api], services: Services
) -> None:
    await api.ok("POST", f"{V1}/projects", json={"metadata": {"name": "other"}})
    await upload(api, anonymous)
    theirs = with_key("*", projects=["other"])
    body = {"sha256": SHA256, "size": len(DATA)}

    await theirs.fails(403, "Forbidden", "GET", f"/blobs/v1/namespaces/default/blobs/{SHA256}")
    await theirs.fails(404, "NotFound", "GET", f"/blobs/v1/namespaces/other/blobs/{SHA256}")
    for plural, spec in (
        ("environments", environment("1.0.0", SHA256)["spec"]),
        ("jobs", {"command": ["true"], "source": {"blob": f"sha256:{SHA256}"}}),
    ):
        path = f"{V1}/namespaces/other/{plural}"
        status = await theirs.fails(422, "Invalid", "POST", path, json={"metadata": {"name": "e"}, "spec": spec})
        assert [cause["field"].rpartition(".")[2] for cause in status["details"]["causes"]] == ["blob"]
    granted = await theirs.ok("POST", "/blobs/v1/namespaces/other/uploads", json=body)
    assert granted["exists"] is False, "whether another project has it is not to be learned"

    assert (await anonymous.call("PUT", granted["url"], content=DATA)).status_code == 201
    for client, project in ((api, "default"), (theirs, "other")):
        assert (await client.call("GET", f"/blobs/v1/namespaces/{project}/blobs/{SHA256}")).status_code == 302
        assert await client.ok("POST", f"/blobs/v1/namespaces/{project}/uploads", json=body) == {"exists": True}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"sha256": "x", "size": 1},
        {"sha256": SHA256},
        {"sha256": SHA256, "size": "1"},
        {"sha256": SHA256, "size": -1},
        {"sha256": SHA256, "size": True},
    ],
)
async def test_bad_grants_are_refused(api: Api, body: dict[str, Any]) -> None:
    await api.fails(400, "BadRequest", "POST", UPLOADS, json=body)


async def test_blob_that_is_not_there(api: Api) -> None:
    await api.fails(404, "NotFound", "GET", "/blobs/v1/namespaces/default/blobs/" + "0" * 64)
    await api.fails(413, "RequestEntityTooLarge", "POST", UPLOADS, json={"sha256": SHA256, "size": 10**15})


# Environments keep their versions -----------------------------------------------------------------------------

ENVIRONMENTS = f"{V1}/namespaces/default/environments"


def environment(version: str, blob: str, **spec: Any) -> dict[str, Any]:
    package = {"source": {"blob": f"sha256:{blob}", "module": "task"}}
    return {"metadata": {"name": "e"}, "spec": {"version": version, "package": package, **spec}}


async def test_version_of_an_environment_never_changes(api: Api, anonymous: Api) -> None:
    one, two = await upload(api, anonymous, b"one"), await upload(api, anonymous, b"two")
    await api.ok("POST", ENVIRONMENTS, json=environment("1.0.0", one))
    other = {"spec": environment("1.0.0", two)["spec"]}
    refused = await api.patch(f"{ENVIRONMENTS}/e", other)
    assert (refused.status_code, refused.json()["reason"]) == (409, "FieldImmutable")
    assert (await api.patch(f"{ENVIRONMENTS}/e", {"spec": {"summary": "better"}})).status_code == 200

    assert (await api.patch(f"{ENVIRONMENTS}/e", {"spec": environment("1.1.0", two)["spec"]})).status_code == 200
    back = await api.patch(f"{ENVIRONMENTS}/e", {"spec": environment("1.0.0", two)["spec"]})
    assert (back.status_code, back.json()["reason"]) == (409, "FieldImmutable"), "an older version is kept too"


async def test_environment_needs_one_packaging_and_its_blob(api: Api) -> None:
    status = await api.fails(422, "Invalid", "POST", ENVIRONMENTS, json=environment("1.0.0", "0" * 64))
    assert [cause["field"] for cause in status["details"]["causes"]] == ["spec.package.source.blob"]
    body = environment("1.0.0", "0" * 64)
    body["spec"]["package"] = {"catalog": {"module": "arithmetic"}}
    await api.fails(422, "Invalid", "POST", ENVIRONMENTS, json=body)
