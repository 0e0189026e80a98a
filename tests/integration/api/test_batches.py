"""Lists created in one request: all or none, in order, every mistake of every item named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodus.server.store import Object
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, SECRETS, V1, causes, job


def jobs(*items: Any) -> dict[str, Any]:
    return {"apiVersion": "nodus.dev/v1", "kind": "JobList", "items": list(items)}


async def names(api: Api) -> list[str]:
    return [item["metadata"]["name"] for item in (await api.ok("GET", JOBS))["items"]]


async def test_items_are_created_together_and_answered_in_their_order(api: Api) -> None:
    answer = await api.call(
        "POST", JOBS, json=jobs(job("c"), job("a"), {"metadata": {"generateName": "b-"}, "spec": {}})
    )
    assert answer.status_code == 422
    answer = await api.call(
        "POST", JOBS, json=jobs(job("c"), job("a"), {**job(None), "metadata": {"generateName": "b-"}})
    )
    assert answer.status_code == 201
    body = answer.json()
    assert (body["kind"], body["apiVersion"]) == ("JobList", "nodus.dev/v1")
    assert [item["metadata"]["name"][:2] for item in body["items"]] == ["c", "a", "b-"]
    assert all(item["kind"] == "Job" and item["metadata"]["uid"] for item in body["items"])
    assert body["metadata"]["resourceVersion"] == body["items"][-1]["metadata"]["resourceVersion"]


async def test_every_mistake_of_every_item_is_named_and_nothing_is_created(api: Api) -> None:
    status = await api.fails(
        422, "Invalid", "POST", JOBS, json=jobs(job("a"), job("b", backoffLimit=-1), job("c", comand=["x"]), job(None))
    )
    assert list(causes(status)) == ["items[1].spec.backoffLimit", "items[2].spec.comand", "items[3].metadata.name"]
    assert await names(api) == []


async def test_one_refused_item_refuses_all(api: Api) -> None:
    await api.ok("POST", JOBS, json=job("taken", command=["other"]))
    status = await api.fails(409, "AlreadyExists", "POST", JOBS, json=jobs(job("a"), job("taken")))
    assert status["message"].startswith("items[1]: ")
    assert await names(api) == ["taken"]


async def test_items_that_are_there_already_are_answered_as_they_are(api: Api) -> None:
    first = await api.ok("POST", JOBS, json=jobs(job("a"), job("b")))
    again = await api.ok("POST", JOBS, json=jobs(job("b"), job("a"), job("new")))
    assert again["items"][:2] == first["items"][::-1]
    assert await names(api) == ["a", "b", "new"]


async def test_more_than_a_hundred_are_refused_whole(api: Api) -> None:
    await api.fails(413, "RequestEntityTooLarge", "POST", JOBS, json=jobs(*(job(f"j{n}") for n in range(101))))
    assert await names(api) == []
    assert len((await api.ok("POST", JOBS, json=jobs(*(job(f"j{n}") for n in range(100)))))["items"]) == 100


async def test_list_of_another_kind_or_shape_is_refused(api: Api) -> None:
    await api.fails(400, "BadRequest", "POST", JOBS, json={**jobs(), "kind": "SecretList"})
    await api.fails(400, "BadRequest", "POST", JOBS, json={**jobs(), "apiVersion": "nodus.dev/v9"})
    await api.fails(400, "BadRequest", "POST", JOBS, json=jobs({**job("x"), "kind": "Volume"}))
    for body in ({"kind": "JobList"}, {"kind": "JobList", "items": {}}, jobs(5, None), {**jobs(), "extra": 1}):
        await api.fails(422, "Invalid", "POST", JOBS, json=body)
    await api.fails(404, "NotFound", "POST", f"{V1}/namespaces/nope/jobs", json=jobs(job("a")))


async def test_repeated_request_gets_the_first_answer(api: Api) -> None:
    generated = jobs({**job(None), "metadata": {"generateName": "x-"}})
    key = {"Idempotency-Key": "batch-1"}
    first = await api.ok("POST", JOBS, json=generated, headers=key)
    again = await api.call("POST", JOBS, json=generated, headers=key)
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (first, "true")
    await api.fails(409, "IdempotencyKeyReused", "POST", JOBS, json=jobs(job("y")), headers=key)
    assert len(await names(api)) == 1


async def test_dry_run_stores_nothing(api: Api) -> None:
    answer = await api.ok("POST", f"{JOBS}?dryRun=All", json=jobs(job("a"), job("b")))
    assert [item["metadata"]["name"] for item in answer["items"]] == ["a", "b"]
    assert await names(api) == []


async def test_values_of_secrets_are_in_no_answer(api: Api) -> None:
    secret = {"metadata": {"name": "s"}, "spec": {"stringData": {"K": "very secret"}}}
    answer = await api.call("POST", SECRETS, json={"kind": "SecretList", "items": [secret]})
    assert answer.status_code == 201
    assert "very secret" not in answer.text


async def test_a_list_in_a_project_out_of_reach_is_refused(
    with_key: Callable[..., Api], put: Callable[..., Object]
) -> None:
    put("Project", "b")
    await with_key("*", projects=["b"]).fails(403, "Forbidden", "POST", JOBS, json=jobs(job("a")))
