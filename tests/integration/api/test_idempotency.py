"""Idempotency-Key on creates, If-Match and ETag on dry runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nodus.core.clock import FakeClock
from nodus.server.services import Services
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, job

KEY = {"Idempotency-Key": "key-1"}


def generated(**spec: Any) -> dict[str, Any]:
    return job(None, **spec) | {"metadata": {"generateName": "run-"}}


async def names(api: Api) -> list[str]:
    return [item["metadata"]["name"] for item in (await api.ok("GET", JOBS))["items"]]


async def test_same_key_and_body_gives_the_same_answer(api: Api) -> None:
    first = await api.call("POST", JOBS, json=generated(), headers=KEY)
    again = await api.call("POST", JOBS, json=generated(), headers=KEY)

    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(await names(api)) == 1


async def test_answer_is_the_first_one_even_when_the_object_is_gone(api: Api) -> None:
    first = await api.ok("POST", JOBS, json=generated(), headers=KEY)
    await api.ok("DELETE", f"{JOBS}/{first['metadata']['name']}")
    assert await api.ok("POST", JOBS, json=generated(), headers=KEY) == first


async def test_key_order_of_the_body_does_not_matter(api: Api) -> None:
    first = await api.ok(
        "POST", JOBS, content='{"metadata":{"generateName":"run-"},"spec":{"command":["a"]}}', headers=KEY
    )
    again = await api.ok(
        "POST", JOBS, content='{"spec": {"command": ["a"]}, "metadata": {"generateName": "run-"}}', headers=KEY
    )
    assert again == first


async def test_same_key_with_another_body_is_refused(api: Api) -> None:
    await api.ok("POST", JOBS, json=generated(), headers=KEY)
    await api.fails(409, "IdempotencyKeyReused", "POST", JOBS, json=generated(timeout="5m"), headers=KEY)


async def test_keys_of_different_callers_are_different(api: Api, with_key: Callable[..., Api]) -> None:
    await api.ok("POST", JOBS, json=generated(), headers=KEY)
    other = await with_key("*").call("POST", JOBS, json=generated(timeout="5m"), headers=KEY)
    assert other.status_code == 201


async def test_key_is_free_again_after_a_day(api: Api, clock: FakeClock) -> None:
    await api.ok("POST", JOBS, json=generated(), headers=KEY)
    clock.advance(24 * 3600 + 1)
    assert (await api.call("POST", JOBS, json=generated(timeout="5m"), headers=KEY)).status_code == 201


async def test_refused_request_leaves_the_key_free(api: Api) -> None:
    await api.fails(422, "Invalid", "POST", JOBS, json=generated(timeout=5), headers=KEY)
    assert (await api.call("POST", JOBS, json=generated(timeout="5m"), headers=KEY)).status_code == 201


async def test_dry_run_leaves_neither_object_nor_record(api: Api) -> None:
    answer = await api.call("POST", f"{JOBS}?dryRun=All", json=generated(), headers=KEY)
    assert answer.status_code == 201
    assert answer.json()["status"]["estimate"]["costUSD"]
    assert await names(api) == []
    assert (await api.call("POST", JOBS, json=generated(timeout="5m"), headers=KEY)).status_code == 201


async def test_concurrent_requests_with_one_key_create_once(api: Api) -> None:
    answers = await asyncio.gather(*(api.call("POST", JOBS, json=generated(), headers=KEY) for _ in range(20)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({answer.json()["metadata"]["name"] for answer in answers if answer.status_code == 201}) == 1
    assert len(await names(api)) == 1


async def test_concurrent_creates_of_one_name_store_one(api: Api) -> None:
    answers = await asyncio.gather(*(api.call("POST", JOBS, json=job()) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]


async def test_concurrent_patches_are_all_kept(api: Api) -> None:
    await api.ok("POST", JOBS, json=job())
    changes = [{"metadata": {"labels": {f"l{number}": "x"}}} for number in range(10)]
    answers = await asyncio.gather(*(api.patch(f"{JOBS}/j1", change) for change in changes))

    assert {answer.status_code for answer in answers} == {200}
    assert len((await api.ok("GET", f"{JOBS}/j1"))["metadata"]["labels"]) == 11


# Dry run and If-Match -----------------------------------------------------------------------------------------


async def etag(api: Api, **spec: Any) -> str:
    return (await api.call("POST", f"{JOBS}?dryRun=All", json=generated(**spec))).headers["ETag"]


async def test_plan_that_still_holds_is_created(api: Api) -> None:
    answer = await api.call("POST", JOBS, json=generated(), headers={"If-Match": await etag(api)})
    assert answer.status_code == 201


async def test_plan_that_changed_is_refused(api: Api) -> None:
    headers = {"If-Match": await etag(api, timeout="5m")}
    await api.fails(412, "PreconditionFailed", "POST", JOBS, json=generated(timeout="6m"), headers=headers)
    assert await names(api) == []


async def test_etag_does_not_depend_on_the_name(api: Api) -> None:
    assert await etag(api) == await etag(api)
    named = await api.call("POST", f"{JOBS}?dryRun=All", json=job("fixed"))
    assert named.headers["ETag"] == await etag(api)


async def test_dry_run_of_a_patch_shows_the_change_and_makes_none(api: Api) -> None:
    before = await api.ok("POST", JOBS, json=job())
    shown = (await api.patch(f"{JOBS}/j1?dryRun=All", {"spec": {"timeout": "9m"}})).json()
    assert shown["spec"]["timeout"] == "9m"
    assert await api.ok("GET", f"{JOBS}/j1") == before
    assert (await api.patch(f"{JOBS}/j1?dryRun=All", {"spec": {"command": ["x"]}})).status_code == 409


async def test_dry_run_of_a_deletion_makes_none(api: Api) -> None:
    await api.ok("POST", JOBS, json=job())
    await api.ok("DELETE", f"{JOBS}/j1?dryRun=All")
    assert await names(api) == ["j1"]


async def test_dry_run_of_another_kind_is_refused(api: Api, services: Services) -> None:
    await api.fails(400, "BadRequest", "POST", f"{JOBS}?dryRun=Some", json=job())
