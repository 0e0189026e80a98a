"""The audit trail: every write that was done has a row, none holds a value, and each may read only their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import KINDS, MEMBER
from nodus.server.api import attempt_api
from nodus.server.api.routes import SUBRESOURCES
from nodus.server.services import Services
from nodus.server.store import Object, audit, housekeeping
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import BETA, JOBS, SECRETS, TABLE, V1, VOLUMES, job

AUDIT = f"{V1}/auditevents"


async def trail(api: Api, **fields: str) -> list[dict[str, Any]]:
    """Specs of AuditEvents, newest first."""
    selector = ",".join(f"{name}={value}" for name, value in fields.items())
    found = await api.ok("GET", AUDIT, params={"fieldSelector": selector.replace("object_", "spec.object.")})
    return [item["spec"] for item in found["items"]]


async def test_who_what_when_and_in_which_request(api: Api, clock: FakeClock) -> None:
    headers = {"X-Request-Id": "req-1"}
    await api.ok("POST", JOBS, json=job(), headers=headers)
    clock.advance(60)
    await api.patch(f"{JOBS}/j1", {"spec": {"timeout": "5m"}, "metadata": {"labels": {"a": "b"}}})
    await api.ok("DELETE", f"{JOBS}/j1")
    deleted, patched, created = await trail(api, object_kind="Job")
    target = {"kind": "Job", "name": "j1", "namespace": "default", "uid": created["object"]["uid"]}
    assert created == {
        "time": "2026-01-01T00:00:00Z", "user": "usr_admin", "credential": "admin", "verb": "create",
        "object": target, "requestId": "req-1",
    }  # fmt: skip
    assert (patched["verb"], patched["time"]) == ("patch", "2026-01-01T00:01:00Z")
    assert patched["fields"] == ["metadata.labels.a", "spec.timeout"]
    assert (deleted["verb"], deleted["object"]) == ("delete", target)
    assert [spec["verb"] for spec in await trail(api, **{"spec.requestId": "req-1"})] == ["create"]


async def test_every_kinds_writes_are_noted_once(api: Api, put: Callable[..., Object]) -> None:
    for kind in KINDS.values():
        if "patch" not in kind.verbs:
            continue
        base = V1 if kind.version == "v1" else BETA
        path = f"{base}/namespaces/default/{kind.plural}" if kind.namespaced else f"{base}/{kind.plural}"
        obj = put(kind.name, "audited", dict(kind.example["spec"]))
        before = len(await trail(api))
        answer = await api.patch(f"{path}/audited", {"metadata": {"annotations": {"note": "x"}}})
        assert answer.status_code == 200, (kind.name, answer.text)
        newest, *_ = found = await trail(api)
        assert len(found) == before + 1, kind.name
        assert newest["object"]["uid"] == obj.uid
        assert "metadata.annotations.note" in newest["fields"]


async def test_what_writes_nothing_leaves_nothing(api: Api) -> None:
    await api.ok("POST", JOBS, json=job(), headers={"Idempotency-Key": "k"})
    before = await trail(api)
    await api.ok("POST", JOBS, json=job(), headers={"Idempotency-Key": "k"})
    await api.ok("POST", JOBS, json=job())
    await api.ok("POST", f"{JOBS}?dryRun=All", json=job("j2"))
    await api.patch(f"{JOBS}/j1", {})
    await api.patch(f"{JOBS}/j1?dryRun=All", {"spec": {"timeout": "5m"}})
    await api.ok("DELETE", f"{JOBS}/j1?dryRun=All")
    await api.ok("DELETE", f"{JOBS}/j1", json={"dryRun": ["All"]})
    await api.call("DELETE", f"{JOBS}/nope")
    await api.call("POST", JOBS, json={})
    await api.ok("GET", JOBS)
    assert await trail(api) == before


async def test_writes_beside_the_generic_verbs_are_noted(api: Api) -> None:
    await api.ok("POST", VOLUMES, json={"metadata": {"name": "v"}})
    await api.ok("POST", f"{VOLUMES}/v/uploads", json={})
    await api.ok("POST", "/blobs/v1/namespaces/default/uploads", json={"sha256": "0" * 64, "size": 1})
    await api.ok("POST", "/auth/login-codes")
    code, blob, upload = (await trail(api))[:3]
    assert (upload["verb"], upload["object"]) == (
        "upload", {"kind": "Volume", "name": "v", "namespace": "default", "subresource": "uploads"},
    )  # fmt: skip
    path = "/blobs/v1/namespaces/default/uploads"
    assert blob["object"] == {"kind": "Request", "name": path, "namespace": "default"}
    assert (code["object"]["kind"], code["object"]["subresource"]) == ("Member", "login-codes")


async def test_every_route_that_writes_below_an_object_has_a_verb_of_its_own() -> None:
    writes = [sub for sub in SUBRESOURCES if sub.method != "GET" and sub.handler.__module__ != attempt_api.__name__]
    unnamed = {sub.path for sub in writes if not sub.verb}
    assert unnamed == {"tokens"}  # it is noted as the APIKey that it creates


async def test_paths_without_a_dry_run_refuse_it_and_hide_no_write(api: Api) -> None:
    await api.ok("POST", VOLUMES, json={"metadata": {"name": "v"}})
    await api.ok("POST", f"{V1}/namespaces/default/serviceaccounts", json={"metadata": {"name": "bot"}})
    before = len(await trail(api))
    for path in ("serviceaccounts/bot/tokens", "volumes/v/uploads"):
        for value in ("All", "x"):
            status = await api.fails(
                400, "BadRequest", "POST", f"{V1}/namespaces/default/{path}?dryRun={value}", json={}
            )
            assert "dry run" in status["message"]
    assert len(await trail(api)) == before
    await api.ok("POST", "/blobs/v1/namespaces/default/uploads?dryRun=All", json={"sha256": "0" * 64, "size": 1})
    assert len(await trail(api)) == before + 1


async def test_each_object_of_a_list_is_noted(api: Api) -> None:
    items = [job("a"), job("b")]
    await api.ok("POST", JOBS, json={"apiVersion": "nodus.dev/v1", "kind": "JobList", "items": items})
    assert [s["object"]["name"] for s in await trail(api, object_kind="Job")] == ["b", "a"]


async def test_no_value_stands_in_the_trail(api: Api) -> None:
    body = {"metadata": {"name": "s"}, "spec": {"stringData": {"K": "first-value"}}}
    await api.ok("POST", SECRETS, json=body)
    await api.patch(f"{SECRETS}/s", {"spec": {"stringData": {"K": "second-value"}}})
    key = await api.ok("POST", f"{V1}/apikeys", json={"metadata": {"name": "k"}, "spec": {"description": "words"}})
    await api.patch(f"{V1}/apikeys/k", {"spec": {"description": "other words"}})
    text = json.dumps(await trail(api))
    for value in ("first-value", "second-value", key["status"]["token"], "words"):
        assert value not in text
    assert "spec.description" in text


async def test_everybody_reads_their_own_and_managers_all_in_reach(
    api: Api, with_key: Callable[..., Api], put: Callable[..., Object]
) -> None:
    await api.ok("POST", f"{V1}/projects", json={"metadata": {"name": "other"}})
    put(MEMBER.name, "dev", {"role": "Developer"})
    dev = with_key("*", name="devs", member="dev")
    await dev.ok("POST", JOBS, json=job("devs"))
    await api.ok("POST", f"{V1}/namespaces/other/jobs", json=job("theirs"))
    assert [(s["user"], s["object"]["name"]) for s in await trail(dev)] == [("usr_dev", "devs")]
    limited = with_key("*", projects=["default"], name="limited")
    assert [s["object"]["name"] for s in await trail(limited)] == ["devs"]
    names = {s["object"]["name"] for s in await trail(api)}
    assert names >= {"devs", "theirs", "other", "admin"}
    theirs = next(i for i in (await api.ok("GET", AUDIT))["items"] if i["spec"]["object"]["name"] == "theirs")
    path = f"{AUDIT}/{theirs['metadata']['name']}"
    await api.ok("GET", path)
    for client in (dev, limited):
        await client.fails(404, "NotFound", "GET", path)
    await with_key("jobs:read", name="no-scope").fails(403, "Forbidden", "GET", AUDIT)


async def test_trail_is_paged_and_printed_like_any_kind(api: Api) -> None:
    for number in range(5):
        await api.ok("POST", JOBS, json=job(f"j{number}"))
    first = await api.ok("GET", AUDIT, params={"limit": 2})
    assert [i["spec"]["object"]["name"] for i in first["items"]] == ["j4", "j3"]
    rest = await api.ok("GET", AUDIT, params={"limit": 100, "continue": first["metadata"]["continue"]})
    assert [i["spec"]["object"]["name"] for i in rest["items"]][:3] == ["j2", "j1", "j0"]
    assert "continue" not in rest["metadata"]
    table = await api.ok("GET", AUDIT, headers=TABLE, params={"limit": 1})
    assert table["rows"][0]["cells"][:6] == ["2026-01-01T00:00:00Z", "usr_admin", "create", "Job", "default", "j4"]
    await api.fails(400, "BadRequest", "GET", AUDIT, params={"continue": "x"})
    await api.fails(404, "NotFound", "GET", f"{AUDIT}/audit-999")
    for method in ("POST", "DELETE", "PATCH", "PUT"):
        await api.fails(405, "MethodNotAllowed", method, AUDIT if method == "POST" else f"{AUDIT}/audit-1", json={})


async def test_oldest_rows_go(services: Services, api: Api, clock: FakeClock) -> None:
    await api.ok("POST", JOBS, json=job())
    clock.advance(audit.RETAIN_S + 1)
    await api.ok("POST", JOBS, json=job("j2"))
    await housekeeping.prune_once(services.store)
    assert [s["object"]["name"] for s in await trail(api)] == ["j2"]
    for number in range(5):
        await api.ok("POST", JOBS, json=job(f"n{number}"))
    services.store.write_sync(audit.prune, keep_rows=3)
    assert [s["object"]["name"] for s in await trail(api)] == ["n4", "n3", "n2"]


@pytest.mark.parametrize("verb", ["POST", "DELETE"])
async def test_refused_writes_leave_nothing(with_key: Callable[..., Api], api: Api, verb: str) -> None:
    before = await trail(api)
    client = with_key("jobs:read")
    await client.call(verb, JOBS if verb == "POST" else f"{JOBS}/x", json=job())
    assert await trail(api) == before
