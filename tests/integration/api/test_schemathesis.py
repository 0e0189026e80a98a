"""Requests made from our own OpenAPI document, valid ones and others: none gets a 500, and answers are as described."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from nodus.core.kinds import KINDS
from nodus.server.services import Services
from nodus.server.store import objects

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.failures import FailureGroup
    from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

CHECKS = [not_a_server_error, content_type_conformance, status_code_conformance]
REPRESENTATIVES = ("jobs", "trainingjobs", "secrets", "events")
SEED = "seed"


def seed(services: Services) -> None:
    """Have an object of each kind that users create under the name that requests use."""

    def write(conn: Any) -> None:
        for kind in KINDS.values():
            project = "default" if kind.namespaced else None
            if "create" in kind.verbs and objects.find(conn, kind, project, SEED) is None:
                phase = "Running" if "Running" in kind.phases else next(iter(kind.phases), None)
                status = {"phase": phase} if phase else {}
                objects.create(conn, kind, project, SEED, dict(kind.example.get("spec", {})), status=status)

    services.store.write_sync(write)


def operations(app: Any, headers: dict[str, str], *, every: bool) -> Iterator[Any]:
    """The operations to try: all, or those of some kinds and of the server itself."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=headers)
    for found in schema.get_all_operations():
        operation = found.ok()
        parts = operation.path.split("/")
        if every or "apis" not in parts[:2] or any(part in REPRESENTATIVES for part in parts):
            yield operation


def ready(case: Any, headers: dict[str, str]) -> None:
    """Give a request our key, and an end to those that would go on."""
    case.headers = {**dict(case.headers or {}), **headers}
    if isinstance(case.query, dict):
        case.query.pop("follow", None)
        if "wait" in case.query:
            case.query["wait"] = "0s"
        if "watch" in case.query:
            case.query["timeoutSeconds"] = "0"


def problems(operation: Any, mode: Any, services: Services, headers: dict[str, str], examples: int) -> list[str]:
    """What was wrong with the answers to so many requests of one operation."""
    given_names = {"namespace": "default", "project": "default", "name": SEED, "version": "v1"}
    fixed = {name: value for name, value in given_names.items() if f"{{{name}}}" in operation.path}
    found: list[str] = []

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(mode, path_parameters=fixed or None))
    def try_one(case: Any) -> None:
        ready(case, headers)
        answer = case.call()
        checks = [not_a_server_error] if "watch" in (case.query or {}) else CHECKS
        try:
            case.validate_response(answer, checks=checks)
        except FailureGroup as error:
            found.append(f"{case.as_curl_command()[:1000]}\n{error}")

    seed(services)
    try:
        try_one()
    except Unsatisfiable:
        # A path without parameters and body can't be asked wrongly.
        pass
    return found


def try_all(app: Any, opened: tuple[Services, str], *, every: bool, examples: int) -> None:
    services, key = opened
    headers = {"Authorization": f"Bearer {key}"}
    found: list[str] = []
    for operation in operations(app, headers, every=every):
        for mode in GenerationMode:
            found += problems(operation, mode, services, headers, examples)
    assert not found, f"{len(found)} wrong answers, such as:\n" + "\n\n".join(found[:5])


@pytest.mark.timeout(120)
def test_requests_made_from_the_description_get_no_500(app: Any, opened: tuple[Services, str]) -> None:
    try_all(app, opened, every=False, examples=2)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_many_requests_to_every_route_get_no_500(app: Any, opened: tuple[Services, str]) -> None:
    try_all(app, opened, every=True, examples=60)
