"""One shape of errors over every route of the application, whatever goes wrong."""

from __future__ import annotations

from typing import Any

import pytest

from nodus.server.api import middleware
from nodus.server.api.app import describe_routes
from nodus.server.services import Services
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS

OAUTH = ("/auth/device/token",)
"""Answers in the words of RFC 8628, which its clients decode."""
ALL_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
FILLS = {
    "version": ["v1", "v1beta1", "v9"],
    "plural": ["jobs", "trainingjobs", "volumes", "projects", "nonsense"],
    "project": ["default", "nope"],
    "name": ["nope"],
    "sub:path": [
        "log",
        "outputs/a/b",
        "taskevents",
        "tasks",
        "gradings",
        "steps",
        "uploads/x/files",
        "files",
        "nonsense",
    ],
    "sha256": ["0" * 64, "x"],
}


def paths(template: str) -> list[str]:
    """The template with every combination of values."""
    found = [template]
    for name, values in FILLS.items():
        found = [path.replace("{" + name + "}", value) for path in found for value in values]
    return list(dict.fromkeys(found))


def assert_shape(answer: Any) -> None:
    body = answer.json()
    assert answer.headers["Content-Type"] == "application/json"
    assert {"kind", "apiVersion", "metadata", "status", "code", "reason", "message", "requestId"} <= body.keys()
    assert (body["kind"], body["apiVersion"], body["status"]) == ("Status", "v1", "Failure")
    assert body["code"] == answer.status_code
    assert body["requestId"] == answer.headers["X-Request-Id"]
    assert "error" not in body, "clients take it for another service's error"
    assert "\n" not in body["message"]


async def test_every_route_answers_errors_alike_and_never_500(app: Any, api: Api) -> None:
    seen = 0
    for template, _ in describe_routes(app):
        for path in paths(template):
            for method in ALL_METHODS:
                answer = await api.call(method, path, content=b"{}", headers={"Content-Type": "application/json"})
                assert "X-Request-Id" in answer.headers
                assert answer.status_code < 500, (method, path, answer.text)
                if answer.status_code >= 400 and path not in OAUTH:
                    seen += 1
                    assert_shape(answer)
    assert seen > 100


async def test_paths_that_are_not_there(api: Api) -> None:
    for path in ("/", "/nope", "/apis/", "/apis/other.dev/v1", "/api/v1", f"{JOBS}/", "//", "/apis/nodus.dev/v1//jobs"):
        for method in ALL_METHODS:
            answer = await api.call(method, path)
            assert answer.status_code in (404, 405), (method, path)
            assert_shape(answer)


async def test_fault_of_the_server_says_nothing_of_its_cause(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("secret internals")

    monkeypatch.setattr("nodus.server.api.reading._get", broken)
    answer = await api.call("GET", f"{JOBS}/x")

    assert answer.status_code == 500
    assert_shape(answer)
    assert answer.json()["reason"] == "InternalError"
    assert "secret internals" not in answer.text
    assert "secret internals" in caplog.text


async def test_store_that_is_away_is_unavailable_and_retryable(api: Api, services: Services) -> None:
    services.store.close()
    answer = await api.call("GET", JOBS)
    assert (answer.status_code, answer.json()["reason"]) == (503, "Unavailable")
    assert_shape(answer)


async def test_request_id_of_the_caller_is_kept_when_it_is_one(api: Api) -> None:
    assert (await api.call("GET", "/nope", headers={"X-Request-Id": "mine-1"})).json()["requestId"] == "mine-1"
    assert (await api.call("GET", "/nope", headers={"X-Request-Id": "x" * 200})).json()["requestId"] != "x" * 200


def test_unknown_exceptions_become_internal_errors() -> None:
    assert middleware.to_nodus_error(KeyError("x")).status == 500
