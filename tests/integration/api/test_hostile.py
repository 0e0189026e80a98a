"""Hostile input: whatever is sent, the answer is a typed 4xx in the shape of a Status, never a 500."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from nodus.core.kinds import KINDS
from nodus.server.store import Object
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import BETA, JOBS, SECRETS, TRAINING_JOBS, V1, VOLUMES, job

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
BODIES = {
    "empty": b"",
    "not JSON": b"{nonsense",
    "array": b"[]",
    "string": b'"x"',
    "null": b"null",
    "number": b"5",
    "deep objects": DEEP,
    "deep arrays": b"[" * 200_000,
    "depth just over the limit": b'{"spec":' * 70 + b"{}" + b"}" * 70,
    "bad UTF-8": b'{"metadata":{"name":"\xff\xfe"}}',
    "UTF-16": '{"metadata":{}}'.encode("utf-16"),
    "half a surrogate": b'{"metadata":{"name":"j"},"spec":{"command":["\\ud800"]}}',
    "NUL in a value": b'{"metadata":{"name":"j"},"spec":{"command":["a\\u0000b"]}}',
    "NUL in a name": b'{"metadata":{"name":"j\\u0000"},"spec":{"command":["a"]}}',
    "NUL in a key": b'{"metadata":{"name":"j"},"spec":{"a\\u0000":1}}',
    "NaN": b'{"metadata":{"name":"j"},"spec":{"x":NaN}}',
    "infinity": b'{"metadata":{"name":"j"},"spec":{"x":1e999}}',
    "thousands of digits": b'{"spec":' + b"9" * 10_000 + b"}",
    "number over 64 bits": b'{"metadata":{"name":"j"},"spec":{"completions":99999999999999999999}}',
    "duplicate keys": b'{"metadata":{"name":"j"},"spec":{"command":["a"],"command":["b"]}}',
    "metadata is a list": b'{"metadata":[],"spec":{}}',
    "spec is text": b'{"metadata":{"name":"j"},"spec":"x"}',
    "trailing garbage": b'{"metadata":{"name":"j"},"spec":{}} x',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("path", [JOBS, SECRETS, TRAINING_JOBS], ids=["jobs", "secrets", "trainingjobs"])
async def test_hostile_body_on_create(api: Api, path: str, body: bytes) -> None:
    answer = await api.call("POST", path, content=body, headers={"Content-Type": "application/json"})
    assert_status(answer)


async def test_hostile_page_tokens_are_bad_requests(api: Api, put: Callable[..., Object]) -> None:
    put("TrainingJob", "run")
    await api.fails(400, "BadRequest", "GET", f"{TRAINING_JOBS}/run/taskevents", params={"after": "9" * 40})
    await api.fails(400, "BadRequest", "GET", f"{TRAINING_JOBS}/run/taskevents", params={"after": "\u0663"})
    for value in ([1, "\ud800", "x"], [1, "a\0", "x"], [1, ["a"], "x"], ["1", "a", "b"], {}, 5):
        token = base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
        await api.fails(400, "BadRequest", "GET", JOBS, params={"continue": token})
    token = base64.urlsafe_b64encode(b"[" * 40_000).decode()
    await api.fails(400, "BadRequest", "GET", JOBS, params={"continue": token})


async def test_links_with_hostile_keys_are_refused(anonymous: Api) -> None:
    for key in ("9" * 5000, "\u0661", "1_0", " 1"):
        query = {"key": key, "signature": "x", "expires": "9"}
        await anonymous.fails(403, "Forbidden", "GET", "/blobs/v1/signed/blobs/" + "0" * 64, params=query)


async def test_mistakes_without_end_are_named_only_so_far(api: Api) -> None:
    flood = {f"k{number}": 1 for number in range(50_000)}
    for body in (
        {"metadata": {"name": "j", **flood}},
        {**flood},
        {"metadata": {"labels": {f"-{k}": "" for k in flood}}},
    ):
        status = await api.fails(422, "Invalid", "POST", JOBS, json=body)
        assert len(status["details"]["causes"]) <= 200


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_hostile_body_on_patch_and_put(api: Api, body: bytes) -> None:
    await api.ok("POST", JOBS, json=job())
    before = await api.ok("GET", f"{JOBS}/j1")
    for method, kind in (
        ("PATCH", "application/merge-patch+json"),
        ("PATCH", "application/json-patch+json"),
        ("PUT", "application/json"),
    ):
        answer = await api.call(method, f"{JOBS}/j1", content=body, headers={"Content-Type": kind})
        if not (body == b"[]" and "json-patch" in kind):
            assert_status(answer)
    assert await api.ok("GET", f"{JOBS}/j1") == before


async def test_body_over_a_mebibyte_is_refused_unread(api: Api) -> None:
    body = json.dumps(job(command=["x" * 1024 * 1024])).encode()
    await api.fails(413, "RequestEntityTooLarge", "POST", JOBS, content=body)

    async def chunks() -> Any:
        for _ in range(2000):
            yield b" " * 1024

    await api.fails(413, "RequestEntityTooLarge", "POST", JOBS, content=chunks())


async def test_many_patches_do_not_make_an_object_too_large_to_create(api: Api) -> None:
    path = f"{BETA}/namespaces/default/trainingruntimes"
    spec = {"image": "nodus/grpo-lora:2.0.0", "task": "GRPO", "parameters": {"type": "object"}}
    await api.ok("POST", path, json={"metadata": {"name": "r"}, "spec": spec})
    codes = []
    for number in range(8):
        change = {"spec": {"parameters": {f"description{number}": "x" * 200_000}}}
        codes.append((await api.patch(f"{path}/r", change)).status_code)
    assert 413 in codes
    assert len((await api.call("GET", f"{path}/r")).content) < 1_100_000


@pytest.mark.parametrize("name", ["a%00b", "%2e%2e", "A", "a" * 300, "%ff", "a%0ab", "a@b@c", "%F0%9F%98%80", "a%2Fb"])
async def test_hostile_names_in_paths(api: Api, name: str) -> None:
    for path in (
        f"{JOBS}/{name}",
        f"{V1}/namespaces/{name}/jobs",
        f"{V1}/namespaces/{name}/jobs/x",
        f"{V1}/projects/{name}",
        f"{JOBS}/{name}/log",
    ):
        for method in ("GET", "DELETE"):
            assert_status(await api.call(method, path), allowed=range(400, 500))
        assert_status(await api.patch(path, {}), allowed=range(400, 500))


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=x",
        "limit=99999999999999999999",
        "continue=nonsense",
        "continue=%00",
        "continue=W10=",
        "labelSelector=%00",
        "labelSelector=((",
        "fieldSelector=a=b=c",
        "watch=maybe",
        "watch=true&resourceVersion=x",
        "watch=true&resourceVersion=-1",
        "watch=true&timeoutSeconds=x",
    ],
)
async def test_hostile_queries(api: Api, query: str) -> None:
    assert_status(await api.call("GET", f"{JOBS}?{query}"))


async def test_hostile_headers(api: Api) -> None:
    await api.fails(400, "BadRequest", "POST", JOBS, json=job(), headers={"Idempotency-Key": "x" * 256})
    await api.fails(400, "BadRequest", "POST", JOBS, json=job(), headers={"Idempotency-Key": ""})
    answer = await api.call(
        "GET", JOBS, headers={"X-Request-Id": "a b\tc", "Accept": "\x7f;;;,,=", "Content-Length": "0"}
    )
    assert answer.status_code == 200
    assert answer.headers["X-Request-Id"].startswith("req_")


VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**63,
    "",
    "x",
    "\x00",
    "ä" * 300,
    [],
    [None],
    {},
    {"a": {"b": []}},
    "9" * 400,
]


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS.values() if "create" in kind.verbs], ids=lambda kind: kind.name
)
async def test_wrong_types_at_any_place_of_the_example(api: Api, kind: Any) -> None:
    base = V1 if kind.version == "v1" else BETA
    path = f"{base}/namespaces/default/{kind.plural}" if kind.namespaced else f"{base}/{kind.plural}"
    random.seed(kind.name)
    for place in _places(dict(kind.example)):
        for value in random.sample(VALUES, 5):
            answer = await api.call("POST", path, content=json.dumps(_with(dict(kind.example), place, value)))
            assert answer.status_code < 500, (place, value, answer.text)
            assert answer.json()["kind"] in ("Status", kind.name)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        found += _places(child, (*path, key))
    return found


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = _with(copied[path[0]], path[1:], new)
    return copied


async def test_hostile_volume_paths(api: Api) -> None:
    await api.ok("POST", VOLUMES, json={"metadata": {"name": "v"}})
    upload = await api.ok("POST", f"{VOLUMES}/v/uploads", json={"mode": "Write"})
    for path in ("", "..", "../x", "a/../../x", "a//b", "/", "a\x00b", "a\nb", "./a", "x" * 2000):
        answer = await api.call("PUT", f"{VOLUMES}/v/uploads/{upload['id']}/files", params={"path": path}, content=b"x")
        assert_status(answer)
    for upload_id in ("../../keys", "up_1", "up_" + "0" * 24):
        assert_status(await api.call("PUT", f"{VOLUMES}/v/uploads/{upload_id}", json={"commit": {}}))


def assert_status(answer: Any, allowed: Any = range(400, 500)) -> None:
    assert answer.status_code in allowed, (answer.status_code, answer.text[:300])
    body = answer.json()
    assert (body["kind"], body["apiVersion"], body["code"]) == ("Status", "v1", answer.status_code)
    assert body["reason"]
    assert body["message"]
    assert body["requestId"] == answer.headers["X-Request-Id"]
