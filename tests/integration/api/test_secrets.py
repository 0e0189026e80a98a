"""Secrets and API keys: values go in and never come out."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import inspect, text

from nodus.core.clock import FakeClock, rfc3339
from nodus.core.errors import NodusError
from nodus.core.kinds import SECRET
from nodus.server import bootstrap
from nodus.server.kinds.storage import read_secret
from nodus.server.services import Services
from nodus.server.settings import Settings
from nodus.server.store import objects
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, SECRETS, TABLE, V1, causes, job

VALUE = "hunter2-is-the-value"
KEYS = f"{V1}/apikeys"


def secret(name: str = "s", **values: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"stringData": values or {"K": VALUE}}}


def values(services: Services, name: str = "s", version: int | None = None) -> dict[str, str]:
    def read(conn: Any) -> dict[str, str]:
        return read_secret(conn, services, objects.get(conn, SECRET, "default", name), version)[1]

    return services.store.read_sync(read)


async def test_values_are_kept_and_never_returned(api: Api, services: Services) -> None:
    answers = [
        await api.call("POST", SECRETS, json=secret(), headers={"Idempotency-Key": "k1"}),
        await api.call("POST", SECRETS, json=secret(), headers={"Idempotency-Key": "k1"}),
        await api.call("POST", f"{SECRETS}?dryRun=All", json=secret("t")),
        await api.call("GET", f"{SECRETS}/s"),
        await api.call("GET", SECRETS),
        await api.call("GET", SECRETS, headers=TABLE),
        await api.patch(f"{SECRETS}/s", {"spec": {"stringData": {"L": VALUE}}}),
        await api.call("POST", SECRETS, json=secret(K="another " + VALUE)),
    ]

    assert [answer.status_code for answer in answers] == [201, 201, 201, 200, 200, 200, 200, 409]
    assert all(VALUE not in answer.text for answer in answers)
    assert values(services) == {"K": VALUE, "L": VALUE}


async def test_values_are_encrypted_in_the_database_and_absent_from_watches(api: Api, services: Services) -> None:
    await api.ok("POST", SECRETS, json=secret(), headers={"Idempotency-Key": "k1"})
    async with api.stream(f"{SECRETS}?watch=true") as stream:
        assert VALUE not in json.dumps(await stream.event())

    def dump(conn: Any) -> str:
        tables = inspect(conn).get_table_names()
        return "".join(repr(conn.execute(text(f'SELECT * FROM "{table}"')).all()) for table in tables)

    assert VALUE not in services.store.read_sync(dump)
    services.store.close()
    assert all(
        VALUE.encode() not in path.read_bytes() for path in services.settings.data_dir.rglob("*") if path.is_file()
    )


async def test_status_names_keys_and_versions(api: Api, services: Services) -> None:
    await api.ok("POST", SECRETS, json=secret(A="1"))
    changed = (await api.patch(f"{SECRETS}/s", {"spec": {"stringData": {"B": "2"}}})).json()

    assert changed["spec"] == {"type": "Opaque"}
    assert changed["status"]["keys"] == ["A", "B"]
    assert changed["status"]["version"] == 2
    assert [entry["version"] for entry in changed["status"]["versions"]] == [1, 2]
    assert values(services, version=1) == {"A": "1"}


async def test_patches_grow_a_secret_no_further_than_a_new_one(api: Api) -> None:
    await api.ok("POST", SECRETS, json=secret(A="x" * 300_000))
    for query in ("?dryRun=All", ""):
        answer = await api.patch(f"{SECRETS}/s{query}", {"spec": {"stringData": {"B": "x" * 300_000}}})
        assert (answer.status_code, list(causes(answer.json()))) == (422, ["spec.stringData"]), query
    assert (await api.patch(f"{SECRETS}/s", {"spec": {"stringData": {"A": "x" * 400_000}}})).status_code == 200


async def test_same_values_again_are_the_same_secret(api: Api) -> None:
    first = await api.ok("POST", SECRETS, json=secret(A="1"))
    again = await api.call("POST", SECRETS, json=secret(A="1"))
    assert (again.status_code, again.json()) == (200, first)


async def test_label_change_makes_no_version(api: Api) -> None:
    await api.ok("POST", SECRETS, json=secret(A="1"))
    changed = (await api.patch(f"{SECRETS}/s", {"metadata": {"labels": {"a": "b"}}})).json()
    assert changed["status"]["version"] == 1


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"stringData": {}},
        {"stringData": {"bad key": "x"}},
        {"stringData": {"K": 5}},
        {"stringData": {"K": [VALUE]}},
        {"type": "Registry", "stringData": {"username": VALUE}},
    ],
)
async def test_bad_secrets_are_refused_without_quoting_a_value(api: Api, spec: dict[str, Any]) -> None:
    status = await api.fails(422, "Invalid", "POST", SECRETS, json={"metadata": {"name": "s"}, "spec": spec})
    assert all(path.startswith("spec.stringData") for path in causes(status))
    assert VALUE not in json.dumps(status)


async def test_types_are_known_ones(api: Api) -> None:
    spec = {"type": "Registry", "stringData": {"server": "ghcr.io", "username": "ada", "password": VALUE}}
    assert (await api.ok("POST", SECRETS, json={"metadata": {"name": "r"}, "spec": spec}))["spec"] == {
        "type": "Registry"
    }
    spec["type"] = "Magic"
    status = await api.fails(422, "Invalid", "POST", SECRETS, json={"metadata": {"name": "m"}, "spec": spec})
    assert causes(status) == {"spec.type": "'Magic' is not known; types are Opaque, Registry"}


async def test_secret_made_anew_has_nothing_of_the_old_one(api: Api, services: Services) -> None:
    await api.ok("POST", SECRETS, json=secret(A="1"))
    await api.ok("DELETE", f"{SECRETS}/s")
    await api.ok("POST", SECRETS, json=secret(B="2"))
    assert values(services) == {"B": "2"}


# API keys -----------------------------------------------------------------------------------------------------


async def make_key(api: Api, name: str = "ci", **spec: Any) -> str:
    created = await api.ok("POST", KEYS, json={"metadata": {"name": name}, "spec": spec})
    token: str = created["status"]["token"]
    return token


async def test_key_is_shown_once_and_works(api: Api, app: Any) -> None:
    token = await make_key(api, scopes=["jobs:read"], projects=["default"])
    shown = await api.ok("GET", f"{KEYS}/ci")

    assert token.startswith("nodus_")
    assert token not in json.dumps(shown)
    assert shown["status"]["prefix"] == token[:12]
    assert (await Api(app, token).call("GET", JOBS)).status_code == 200


async def test_replayed_creation_of_a_key_gives_it_again_from_a_sealed_record(api: Api, services: Services) -> None:
    body = {"metadata": {"name": "ci"}, "spec": {"scopes": ["jobs:read"]}}
    first = await api.ok("POST", KEYS, json=body, headers={"Idempotency-Key": "k"})
    replayed = await api.call("POST", KEYS, json=body, headers={"Idempotency-Key": "k"})

    assert replayed.headers["Idempotent-Replayed"] == "true"
    assert replayed.json()["status"]["token"] == first["status"]["token"]
    kept = services.store.read_sync(lambda conn: conn.execute(text("SELECT body, sealed FROM idempotency")).one())
    assert kept.sealed
    assert first["status"]["token"].encode() not in kept.body


async def test_deleted_key_is_refused_at_once(api: Api, app: Any) -> None:
    token = await make_key(api, scopes=["*"])
    client = Api(app, token)
    assert (await client.call("GET", JOBS)).status_code == 200
    await api.ok("DELETE", f"{KEYS}/ci")
    await client.fails(401, "Unauthorized", "GET", JOBS)


async def test_key_expires(api: Api, app: Any, clock: FakeClock) -> None:
    token = await make_key(api, scopes=["*"], expires=rfc3339(clock.now() + timedelta(hours=1)))
    client = Api(app, token)
    assert (await client.call("GET", JOBS)).status_code == 200
    clock.advance(3601)
    await client.fails(401, "Unauthorized", "GET", JOBS)


async def test_last_use_is_shown(api: Api, app: Any, clock: FakeClock) -> None:
    token = await make_key(api, scopes=["*"])
    assert "lastUsedTime" not in (await api.ok("GET", f"{KEYS}/ci"))["status"]
    await Api(app, token).ok("GET", JOBS)
    assert (await api.ok("GET", f"{KEYS}/ci"))["status"]["lastUsedTime"] == rfc3339(clock.now())


async def test_nobody_makes_a_key_that_may_do_more(with_key: Callable[..., Api]) -> None:
    client = with_key("apikeys:write", "jobs:read", projects=["default"])
    body = {"metadata": {"name": "more"}, "spec": {"scopes": ["*"], "projects": []}}
    assert set(causes(await client.fails(422, "Invalid", "POST", KEYS, json=body))) == {
        "spec.scopes[0]",
        "spec.projects",
    }
    body = {"metadata": {"name": "less"}, "spec": {"scopes": ["jobs:read"], "projects": ["default"]}}
    assert (await client.call("POST", KEYS, json=body)).status_code == 201


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"scopes": ["jobs:everything"]}, "spec.scopes[0]"),
        ({"projects": ["nope"]}, "spec.projects[0]"),
        ({"expires": "2020-01-01T00:00:00Z"}, "spec.expires"),
        ({"expires": "tomorrow"}, "spec.expires"),
    ],
)
async def test_bad_keys_are_refused(api: Api, spec: dict[str, Any], path: str) -> None:
    body = {"metadata": {"name": "bad"}, "spec": spec}
    assert list(causes(await api.fails(422, "Invalid", "POST", KEYS, json=body))) == [path]


async def test_job_may_use_a_secret_by_bare_name(api: Api) -> None:
    await api.ok("POST", SECRETS, json=secret())
    created = await api.ok("POST", JOBS, json=job(secrets=["s", {"name": "s", "version": 1}]))
    assert created["spec"]["secrets"] == ["s", {"name": "s", "version": 1}]


async def test_what_a_client_last_applied_is_kept_without_values(api: Api, services: Services) -> None:
    applied = {"nodus.dev/last-applied": json.dumps(secret()), "note": "kept"}
    manifest = secret()
    manifest["metadata"]["annotations"] = applied
    answers = [
        await api.call("POST", f"{SECRETS}?dryRun=All", json=manifest),
        await api.call("POST", SECRETS, json=manifest),
        await api.patch(f"{SECRETS}/s", {"metadata": {"annotations": applied}}),
        await api.call("GET", f"{SECRETS}/s"),
    ]

    assert [answer.status_code for answer in answers] == [201, 201, 200, 200]
    assert all(VALUE not in answer.text for answer in answers)
    assert answers[-1].json()["metadata"]["annotations"] == {"note": "kept"}


async def test_values_that_are_there_already_make_no_version(api: Api) -> None:
    await api.ok("POST", SECRETS, json=secret(A="1", B="2"))
    again = (await api.patch(f"{SECRETS}/s", {"spec": {"stringData": {"A": "1"}}})).json()
    assert again["status"]["version"] == 1


def test_a_lost_key_file_is_said_and_no_other_made(settings: Settings, clock: FakeClock) -> None:
    settings.data_dir.mkdir(mode=0o700)
    services, key = bootstrap.open_services(settings, clock)
    services.store.close()
    assert key is not None  # a database without keys gets one unasked
    path = settings.data_dir / bootstrap.KEY_FILE
    kept = path.read_bytes()
    path.unlink()
    for _ in range(2):
        with pytest.raises(NodusError, match=r"keys\.json is missing") as caught:
            bootstrap.open_services(settings, clock)
        assert caught.value.fix is not None and "backup" in caught.value.fix
        assert not path.exists()
    path.write_bytes(kept)
    services, key = bootstrap.open_services(settings, clock)
    services.store.close()
    assert key is None
