"""Who may do what: keys with scopes and projects, and the tokens of running attempts."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

import pytest

from nodus.core.kinds import ATTEMPT
from nodus.server.api.app import describe_routes
from nodus.server.services import Services
from nodus.server.store import Object, events, objects
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, SECRETS, TRAINING_JOBS, V1, VOLUMES, job

PUBLIC = (
    "/healthz", "/readyz", "/.well-known/", "/blobs/v1/signed/", "/cli-auth", "/device",
    "/auth/device/", "/auth/cli-keys/",
)  # fmt: skip


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer nodus_wrong", "Basic nodus_x", "Bearer \xff", "Bearer nodusat_1.x.y"]
)
async def test_bad_credentials_are_unauthorized(anonymous: Api, header: str) -> None:
    answer = await anonymous.call("GET", JOBS, headers={"Authorization": header.encode("latin-1")})
    assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthorized")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert answer.json()["fix"]


async def test_every_route_but_the_public_ones_needs_a_credential(app: Any, anonymous: Api) -> None:
    for path, methods in describe_routes(app):
        if path.startswith(PUBLIC):
            continue
        filled = re.sub(r":path\}", "}", path).format_map(_Fill())
        for method in methods - {"HEAD"}:
            answer = await anonymous.call(method, filled)
            assert answer.status_code == 401, (method, filled, answer.text)


class _Fill(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return {"version": "v1", "plural": "jobs", "project": "default", "sub": "log"}.get(key, "x")


async def test_scopes_decide_by_kind_and_access(with_key: Callable[..., Api]) -> None:
    reader = with_key("jobs:read")
    assert (await reader.call("GET", JOBS)).status_code == 200
    status = await reader.fails(403, "Forbidden", "POST", JOBS, json=job())
    assert status["details"]["missingScope"] == "jobs:write"
    status = await reader.fails(403, "Forbidden", "GET", SECRETS)
    assert status["details"]["missingScope"] == "secrets:read"
    for method in ("PUT", "DELETE"):
        await reader.fails(403, "Forbidden", method, f"{JOBS}/x", json=job("x"))
    assert (await reader.patch(f"{JOBS}/x", {})).status_code == 403


async def test_projects_bound_a_key(api: Api, with_key: Callable[..., Api], put: Callable[..., Object]) -> None:
    await api.ok("POST", f"{V1}/projects", json={"metadata": {"name": "other"}})
    put("Job", "a")
    put("Job", "b", project="other")
    client = with_key("*", projects=["default"])

    await client.fails(403, "Forbidden", "GET", f"{V1}/namespaces/other/jobs")
    await client.fails(404, "NotFound", "GET", "/api/v1/namespaces/other")
    await client.fails(404, "NotFound", "GET", f"{V1}/projects/other")
    everywhere = await client.ok("GET", f"{V1}/jobs")
    assert [item["metadata"]["name"] for item in everywhere["items"]] == ["a"]
    projects = await client.ok("GET", f"{V1}/projects")
    assert [item["metadata"]["name"] for item in projects["items"]] == ["default", "nodus"]
    assert (await client.call("GET", f"{V1}/namespaces/nodus/environments")).status_code == 200


async def test_key_of_a_project_sees_no_event_key_or_count_of_others(
    api: Api, with_key: Callable[..., Api], put: Callable[..., Object], services: Services
) -> None:
    await api.ok("POST", f"{V1}/projects", json={"metadata": {"name": "other"}})
    theirs = services.store.write_sync(events.record, put("Job", "b", project="other"), "Normal", "R", "secret plan")
    own = services.store.write_sync(events.record, put("Job", "a"), "Normal", "R", "m")
    with_key("*", projects=["other"], name="theirs")
    client = with_key("*", projects=["default"], name="own")

    await client.fails(404, "NotFound", "GET", f"{V1}/events/{theirs.name}")
    assert (await client.ok("GET", f"{V1}/events/{own.name}"))["message"] == "m"
    for name in ("admin", "theirs"):
        await client.fails(404, "NotFound", "GET", f"{V1}/apikeys/{name}")
        await client.fails(404, "NotFound", "DELETE", f"{V1}/apikeys/{name}")
        assert (await client.patch(f"{V1}/apikeys/{name}", {"spec": {"description": "x"}})).status_code == 404
    listed = await client.ok("GET", f"{V1}/apikeys")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["own"]
    await client.fails(403, "Forbidden", "GET", "/metrics")


async def test_pages_of_a_limited_key_are_full_and_name_nothing_of_others(
    api: Api, with_key: Callable[..., Api], put: Callable[..., Object]
) -> None:
    await api.ok("POST", f"{V1}/projects", json={"metadata": {"name": "aaa"}})
    for name in ("x", "y", "z"):
        put("Job", f"hidden-{name}", project="aaa")
        put("Job", name)
    client = with_key("*", projects=["default"])
    page = await client.ok("GET", f"{V1}/jobs", params={"limit": 2})
    assert [item["metadata"]["name"] for item in page["items"]] == ["x", "y"]
    assert b"hidden" not in base64.urlsafe_b64decode(page["metadata"]["continue"])
    rest = await client.ok("GET", f"{V1}/jobs", params={"limit": 2, "continue": page["metadata"]["continue"]})
    assert ([item["metadata"]["name"] for item in rest["items"]], "continue" in rest["metadata"]) == (["z"], False)


async def test_watch_over_all_projects_shows_only_the_keys_own(
    api: Api, with_key: Callable[..., Api], put: Callable[..., Object]
) -> None:
    await api.ok("POST", f"{V1}/projects", json={"metadata": {"name": "other"}})
    client = with_key("*", projects=["default"])
    async with client.stream(f"{V1}/jobs?watch=true") as stream:
        put("Job", "b", project="other")
        put("Job", "a")
        assert (await stream.event())[1]["metadata"]["name"] == "a"


async def test_whoami_has_the_shape_clients_decode(api: Api, with_key: Callable[..., Api]) -> None:
    assert {k: v for k, v in (await api.ok("GET", "/auth/whoami")).items() if k != "org"} == {
        "kind": "APIKey",
        "user": "usr_admin",
        "name": "admin",
        "member": "admin",
        "orgName": "nodus",
        "role": "Owner",
        "projects": ["default"],
        "scopes": ["*"],
        "availableUSD": "25.00",
    }
    limited = await with_key("jobs:read", projects=["default"]).ok("GET", "/auth/whoami")
    assert (limited["role"], limited["projects"], limited["scopes"]) == ("Owner", ["default"], ["jobs:read"])


# Attempts -----------------------------------------------------------------------------------------------------


async def test_attempt_reaches_its_own_run_and_nothing_else(attempt: Api, put: Callable[..., Object]) -> None:
    put("TrainingJob", "other", status={"phase": "Running"})
    assert (await attempt.ok("GET", "/self")) == {
        "kind": "TrainingJob",
        "name": "run",
        "project": "default",
        "attempt": "run-1",
        "epoch": 1,
        "index": 0,
        "job": "run",
        "trainingJob": "run",
    }
    for path in (
        f"{TRAINING_JOBS}/run",
        f"{JOBS}/run",
        f"{V1}/namespaces/default/attempts/run-1",
        f"{TRAINING_JOBS}/run/taskevents",
    ):
        assert (await attempt.call("GET", path)).status_code == 200, path
    for method, path in (
        ("GET", f"{TRAINING_JOBS}/other"),
        ("GET", TRAINING_JOBS),
        ("GET", f"{TRAINING_JOBS}/other/taskevents"),
        ("POST", f"{TRAINING_JOBS}/other/tasks"),
        ("POST", f"{TRAINING_JOBS}/other/taskevents"),
        ("POST", f"{TRAINING_JOBS}/other/gradings"),
        ("POST", f"{TRAINING_JOBS}/other/steps"),
        ("DELETE", f"{TRAINING_JOBS}/run"),
        ("GET", SECRETS),
        ("GET", f"{SECRETS}/s"),
        ("GET", VOLUMES),
        ("POST", JOBS),
        ("GET", f"{JOBS}/run/log"),
        ("GET", f"{JOBS}/run/outputs"),
        ("GET", f"{V1}/events"),
        ("GET", f"{V1}/apikeys"),
        ("POST", "/blobs/v1/namespaces/default/uploads"),
        ("GET", "/blobs/v1/namespaces/default/blobs/" + "0" * 64),
        ("GET", f"{V1}/namespaces/nodus/environments"),
    ):
        await attempt.fails(403, "Forbidden", method, path, json=job() if method == "POST" else None)


async def test_attempts_token_ends_with_the_attempt(attempt: Api, services: Services) -> None:
    def end(conn: Any) -> None:
        found = objects.get(conn, ATTEMPT, "default", "run-1")
        objects.update_status(conn, found.uid, {"phase": "Succeeded"})

    services.store.write_sync(end)
    await attempt.fails(401, "Unauthorized", "GET", "/self")


async def test_attempt_of_a_plain_job_is_its_own_self(app: Any, services: Services, put: Callable[..., Object]) -> None:
    owner = put("Job", "j", labels={"nodus.dev/trainingjob": "victim"}, status={"phase": "Running"})
    put("TrainingJob", "victim", status={"phase": "Running"})
    found = put("Attempt", "j-1", {"job": "j", "epoch": 2}, owner=owner, status={"phase": "Running"})
    client = Api(app, services.signer.attempt_token(found.uid))

    assert (await client.ok("GET", "/self"))["trainingJob"] is None
    await client.fails(403, "Forbidden", "POST", f"{TRAINING_JOBS}/victim/tasks", json={})


async def test_forged_attempt_tokens_are_refused(app: Any, services: Services, attempt: Api) -> None:
    token = attempt.headers["Authorization"].removeprefix("Bearer ")
    version, uid, mac = token.removeprefix("nodusat_").split(".")
    for forged in (
        token[:-1] + ("0" if token[-1] != "0" else "1"),
        f"nodusat_{version}.{uid[::-1]}.{mac}",
        f"nodusat_99.{uid}.{mac}",
        f"nodusat_x.{uid}.{mac}",
        f"nodusat_{'9' * 5000}.{uid}.{mac}",
        f"nodusat_{version}.{uid}.",
        f"nodusat_{version}.{mac}",
    ):
        await Api(app, forged).fails(401, "Unauthorized", "GET", "/self")


async def test_person_has_no_self_and_submits_nothing(api: Api, put: Callable[..., Object]) -> None:
    put("TrainingJob", "run", status={"phase": "Running"})
    await api.fails(404, "NotFound", "GET", "/self")
    await api.fails(403, "Forbidden", "POST", f"{TRAINING_JOBS}/run/taskevents", json={"events": []})
    await api.fails(403, "Forbidden", "POST", f"{TRAINING_JOBS}/run/gradings", json={})
