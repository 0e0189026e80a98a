"""Discovery and watch as any client of this kind of API meets them, over a plain HTTP connection to the real server."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from nodus.server.lifecycle import Started

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

JOBS = "/apis/nodus.dev/v1/namespaces/default/jobs"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
CAPPED = {"resources": {"cpu": "100000"}}  # more than there is: it stays Queued


class Raw:
    """One connection a request, nothing remembered."""

    def __init__(self, server: Started) -> None:
        self.address = urlsplit(server.url).netloc
        self.key = str(server.api_key)
        self.connections: list[http.client.HTTPConnection] = []

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.address, timeout=20)
        self.connections.append(connection)
        sent = {"Authorization": f"Bearer {self.key}"} | {k.replace("_", "-"): v for k, v in headers.items()}
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        return connection.getresponse()

    def json(self, method: str, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
        response = self.send(method, path, body, **headers)
        content = response.read()
        assert response.status == status, content
        return json.loads(content)

    @contextmanager
    def watching(self, path: str, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a watch, as they come."""
        response = self.send("GET", path, **headers)
        connection = self.connections[-1]
        assert response.status == 200
        assert response.getheader("Transfer-Encoding") == "chunked"
        try:
            yield (json.loads(line) for line in response)
        finally:
            response.close()
            connection.close()

    def make(self, name: str, **labels: str) -> Any:
        metadata = {"name": name, "labels": labels}
        document = {"apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": metadata,
                    "spec": {"command": ["true"], **CAPPED}}  # fmt: skip
        return self.json("POST", JOBS, document, status=201)

    def label(self, name: str, **labels: str | None) -> Any:
        patch = {"metadata": {"labels": labels}}
        return self.json("PATCH", f"{JOBS}/{name}", patch, Content_Type="application/merge-patch+json")


@pytest.fixture
def raw(server: Started) -> Iterator[Raw]:
    """A connection to the server; closed afterwards."""
    raw = Raw(server)
    yield raw
    for connection in raw.connections:
        connection.close()


def watched(events: Iterator[dict[str, Any]], count: int) -> list[tuple[str, str]]:
    return [(e["type"], e["object"]["metadata"]["name"]) for e, _ in zip(events, range(count), strict=False)]


# Discovery


def test_aggregated_discovery_takes_two_requests(raw: Raw) -> None:
    for path, groups in (("/api", []), ("/apis", ["nodus.dev"])):
        response = raw.send("GET", f"{path}?timeout=32s", Accept=f"{AGGREGATED},application/json")
        document = json.loads(response.read())
        assert response.getheader("Content-Type") == AGGREGATED
        assert document["kind"] == "APIGroupDiscoveryList"
        assert [item["metadata"]["name"] for item in document["items"]] == groups
    versions = {version["version"]: version for version in document["items"][0]["versions"]}
    assert list(versions) == ["v1", "v1beta1"]
    jobs = next(item for item in versions["v1"]["resources"] if item["resource"] == "jobs")
    assert jobs["responseKind"] == {"group": "nodus.dev", "version": "v1", "kind": "Job"}
    assert (jobs["scope"], jobs["singularResource"]) == ("Namespaced", "job")
    assert {"create", "delete", "get", "list", "patch", "update", "watch"} <= set(jobs["verbs"])


def test_legacy_discovery_says_the_same(raw: Raw) -> None:
    assert raw.json("GET", "/api")["kind"] == "APIVersions"
    (group,) = raw.json("GET", "/apis")["groups"]
    assert group["preferredVersion"] == {"groupVersion": "nodus.dev/v1", "version": "v1"}
    legacy: dict[tuple[str, str], Any] = {}
    for version in ("v1", "v1beta1"):
        listed = raw.json("GET", f"/apis/nodus.dev/{version}")
        assert (listed["kind"], listed["groupVersion"]) == ("APIResourceList", f"nodus.dev/{version}")
        legacy |= {(version, item["name"]): item for item in listed["resources"]}
    assert f"nodus.dev/{group['versions'][0]['version']}" == "nodus.dev/v1"
    aggregated = raw.json("GET", "/apis", Accept=f"{AGGREGATED},application/json")["items"][0]["versions"]
    for version in aggregated:
        for item in version["resources"]:
            same = legacy[version["version"], item["resource"]]
            assert same["kind"] == item["responseKind"]["kind"]
            assert same["namespaced"] == (item["scope"] == "Namespaced")
            assert same["singularName"] == item["singularResource"]
            assert same.get("shortNames", []) == item.get("shortNames", [])
    assert ("v1", "jobs/log") in legacy and ("v1beta1", "trainingjobs/outputs") in legacy


def test_every_kind_that_is_discovered_is_listed(raw: Raw) -> None:
    for version in ("v1", "v1beta1"):
        for item in raw.json("GET", f"/apis/nodus.dev/{version}")["resources"]:
            if "/" in item["name"] or "list" not in item["verbs"]:
                continue
            scope = "/namespaces/default" if item["namespaced"] else ""
            path = f"/apis/nodus.dev/{version}{scope}/{item['name']}"
            assert raw.json("GET", path)["kind"] == f"{item['kind']}List"
            assert raw.json("GET", path, Accept=TABLE)["kind"] == "Table"


def test_namespace_probe_and_openapi_index(raw: Raw) -> None:
    probed = raw.json("GET", "/api/v1/namespaces/default", Accept=TABLE)
    assert probed["kind"] in ("Namespace", "Table")
    assert raw.json("GET", "/api/v1/namespaces/nope", status=404)["reason"] == "NotFound"
    paths = raw.json("GET", "/openapi/v3")["paths"]
    document = raw.json("GET", paths["apis/nodus.dev/v1"]["serverRelativeURL"])
    assert document["openapi"].startswith("3.")


# Watch


def test_watch_without_a_version_replays_and_goes_on(raw: Raw) -> None:
    raw.make("replayed", w="1")
    with raw.watching(f"{JOBS}?watch=true&labelSelector=w%3D1") as events:
        assert watched(events, 1) == [("ADDED", "replayed")]
        raw.make("later", w="1")
        raw.label("replayed", w="2")  # it stops matching
        raw.label("later", x="y")
        assert watched(events, 3)[0] == ("ADDED", "later")
    raw.json("DELETE", f"{JOBS}/replayed")
    raw.json("DELETE", f"{JOBS}/later")


def test_watch_from_a_version_misses_and_repeats_nothing(raw: Raw) -> None:
    version = raw.json("GET", JOBS)["metadata"]["resourceVersion"]
    raw.make("between", v="1")
    raw.label("between", v="2")
    raw.json("DELETE", f"{JOBS}/between")
    selector = quote("metadata.name=between")
    seen = []
    for _ in range(2):  # and again from the same place
        with raw.watching(f"{JOBS}?watch=true&resourceVersion={version}&fieldSelector={selector}") as events:
            found = []
            for event in events:
                metadata = event["object"]["metadata"]
                found.append((event["type"], int(metadata["resourceVersion"])))
                if event["type"] == "DELETED":
                    break
            seen.append(found)
    assert seen[0] == seen[1]
    assert (seen[0][0][0], seen[0][-1][0]) == ("ADDED", "DELETED")
    versions = [number for _, number in seen[0]]
    assert versions == sorted(set(versions)) and versions[0] > int(version)


def test_watch_of_a_table_sends_rows(raw: Raw) -> None:
    raw.make("tabled")
    path = f"{JOBS}?watch=true&fieldSelector=metadata.name%3Dtabled"
    with raw.watching(path, Accept=TABLE) as events:
        event = next(events)
    assert (event["type"], event["object"]["kind"]) == ("ADDED", "Table")
    (row,) = event["object"]["rows"]
    assert row["cells"][0] == row["object"]["metadata"]["name"] == "tabled"
    raw.json("DELETE", f"{JOBS}/tabled")


def test_version_that_is_not_known_is_an_error_event_or_a_410(raw: Raw) -> None:
    with raw.watching(f"{JOBS}?watch=true&resourceVersion=999999999") as events:
        event = next(events)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert raw.json("GET", f"{JOBS}?watch=true&resourceVersion=x", status=400)["reason"] == "BadRequest"


def test_quiet_watch_sends_no_bookmark_unasked_and_ends_in_time(raw: Raw) -> None:
    version = raw.json("GET", JOBS)["metadata"]["resourceVersion"]
    selector = quote("metadata.name=nothing")
    begun = time.monotonic()
    with raw.watching(
        f"{JOBS}?watch=true&resourceVersion={version}&fieldSelector={selector}&timeoutSeconds=1"
    ) as events:
        assert list(events) == []
    assert 0.9 < time.monotonic() - begun < 10
