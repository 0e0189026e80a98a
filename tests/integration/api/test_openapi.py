"""OpenAPI: complete, true to the kinds, and in the form that clients look for."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from jsonschema import Draft202012Validator

from nodus.core.kinds import KINDS, Kind
from nodus.server.api.app import describe_routes
from nodus.server.api.routes import SUBRESOURCES
from tests.integration.api.conftest import Api

METHODS = {"get", "put", "post", "patch", "delete"}
VERB_OF = {"post": "create", "put": "update", "patch": "patch", "delete": "delete"}


@pytest.fixture
async def whole(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = await api.ok("GET", "/openapi.json")
    return found


def operations(document: dict[str, Any]) -> set[tuple[str, str]]:
    """Every path and method, with the names in braces left out."""
    return {
        (re.sub(r"{\w+}", "{}", path), method)
        for path, item in document["paths"].items()
        for method in item
        if method in METHODS
    }


def expanded(app: Any) -> set[tuple[str, str]]:
    """What the router takes, with its generic templates written out for every kind."""
    found = set()
    for template, methods in describe_routes(app):
        for kind in KINDS.values() if "{plural}" in template else (None,):
            path = template
            if kind is not None:
                if "{project}" in template and not kind.namespaced:
                    continue
                path = template.replace("{version}", kind.version).replace("{plural}", kind.plural)
            found |= {
                (re.sub(r"{\w+(:path)?}", "{}", where), method)
                for where, method in _below(path, {m.lower() for m in methods} & METHODS, kind, template)
            }
    return found


def _below(path: str, methods: set[str], kind: Kind | None, template: str) -> set[tuple[str, str]]:
    if kind is None:
        return {(path, method) for method in methods}
    everywhere = kind.namespaced and "{project}" not in template
    if "{sub:path}" in template:
        subs = {(path.replace("{sub:path}", sub.path), sub.method.lower()) for sub in SUBRESOURCES if kind in sub.kinds}
        return set() if everywhere else subs
    if "{name}" in template:
        taken = {"get", *(m for m, verb in VERB_OF.items() if verb in kind.verbs and m != "post")}
        return set() if everywhere else {(path, method) for method in taken}
    taken = {"get", *({"post"} if "create" in kind.verbs and not everywhere else set())}
    return {(path, method) for method in taken}


async def test_every_route_of_the_server_is_described_and_nothing_else(app: Any, whole: dict[str, Any]) -> None:
    assert operations(whole) == expanded(app)


async def test_every_operation_says_what_it_does_and_has_an_id_of_its_own(whole: dict[str, Any]) -> None:
    found = [item[method] for item in whole["paths"].values() for method in item if method in METHODS]
    assert all(operation["summary"] and operation["summary"][-1:].isalnum() is False for operation in found)
    ids = [operation["operationId"] for operation in found]
    assert len(ids) == len(set(ids))


async def test_index_leads_to_a_document_for_each_group_version(api: Api, whole: dict[str, Any]) -> None:
    paths = (await api.ok("GET", "/openapi/v3"))["paths"]
    assert {"apis/nodus.dev/v1", "apis/nodus.dev/v1beta1"} < paths.keys()
    parts = [await api.ok("GET", entry["serverRelativeURL"]) for entry in paths.values()]
    assert {part["openapi"] for part in parts} == {"3.1.0"}
    assert set.union(*map(operations, parts)) == operations(whole)


async def test_document_is_kept_by_clients_until_it_changes(api: Api) -> None:
    url = (await api.ok("GET", "/openapi/v3"))["paths"]["apis/nodus.dev/v1"]["serverRelativeURL"]
    first = await api.call("GET", url)
    assert "immutable" in first.headers["Cache-Control"]
    again = await api.call("GET", urlsplit(url).path, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    await api.fails(404, "NotFound", "GET", "/openapi/v3/apis/nodus.dev/v9")
    await api.fails(404, "NotFound", "GET", "/openapi/v3/openapi.json")


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
async def test_example_of_a_kind_fits_its_schema(kind: Kind, whole: dict[str, Any]) -> None:
    problems = list(validator(whole, kind.name).iter_errors(dict(kind.example)))
    assert not problems


async def test_shorthands_fit_the_schema_and_nonsense_does_not(whole: dict[str, Any]) -> None:
    check = validator(whole, "Job")

    def fits(**spec: Any) -> bool:
        return check.is_valid({"metadata": {"name": "j"}, "spec": {"command": ["true"], **spec}})

    assert fits(resources={"gpu": "H100:8", "cpu": "500m"}, secrets=["hf", {"name": "x"}])
    assert fits(resources={"gpu": {"type": ["H100"], "count": 2}, "cpu": 2})
    assert not fits(resources={"gpu": {"typ": ["H100"]}})
    assert not fits(resources={"gpu": 5})
    assert not fits(comand=["x"])


async def test_what_the_server_answers_fits_the_schema(api: Api, whole: dict[str, Any]) -> None:
    created = await api.ok("POST", "/apis/nodus.dev/v1/namespaces/default/jobs", json=dict(KINDS["Job"].example))
    assert not list(validator(whole, "Job").iter_errors(created))
    missing = (await api.call("GET", "/apis/nodus.dev/v1/namespaces/default/jobs/nope")).json()
    assert not list(validator(whole, "Status").iter_errors(missing))
    listed = await api.ok("GET", "/apis/nodus.dev/v1/namespaces/default/jobs")
    assert not list(validator(whole, "JobList").iter_errors(listed))


async def test_parameters_of_the_catalogs_runtimes_are_named(whole: dict[str, Any]) -> None:
    parameters = whole["components"]["schemas"]["TrainingJobSpec"]["properties"]["parameters"]
    assert "(grpo-lora)" in parameters["properties"]["numGenerations"]["description"]


async def test_every_field_is_described(whole: dict[str, Any]) -> None:
    bare = [
        f"{name}.{field}"
        for name, schema in whole["components"]["schemas"].items()
        for field, inner in schema.get("properties", {}).items()
        if not inner.get("description")
    ]
    assert not bare


def validator(document: dict[str, Any], name: str) -> Draft202012Validator:
    """Checks values against one schema of the document."""
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": document["components"]})
