"""Forms of lists that clients render: discovery, Tables, the catalog's objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import KINDS
from nodus.server import catalog
from nodus.server.api import billing, reading
from nodus.server.services import Services
from nodus.server.store import Object, objects
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import BETA, JOBS, TABLE, TRAINING_JOBS, V1, VOLUMES

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


async def test_aggregated_discovery_names_every_kind(api: Api) -> None:
    accept = {"Accept": f"{AGGREGATED},application/json"}
    core = await api.call("GET", "/api?timeout=32s", headers=accept)
    assert (core.headers["Content-Type"], core.json()["items"]) == (AGGREGATED, [])
    groups = await api.call("GET", "/apis?timeout=32s", headers=accept)
    assert groups.headers["Content-Type"] == AGGREGATED
    (group,) = groups.json()["items"]
    found = {
        resource["responseKind"]["kind"]: (resource["resource"], resource["singularResource"], resource["scope"])
        for version in group["versions"]
        for resource in version["resources"]
    }
    assert found == {
        kind.name: (kind.plural, kind.singular, "Namespaced" if kind.namespaced else "Cluster")
        for kind in KINDS.values()
    }


async def test_legacy_discovery_names_the_same_kinds(api: Api) -> None:
    assert (await api.ok("GET", "/api"))["versions"] == []
    versions = (await api.ok("GET", "/apis"))["groups"][0]["versions"]
    assert [version["version"] for version in versions] == ["v1", "v1beta1"]
    found = [
        resource
        for version in ("v1", "v1beta1")
        for resource in (await api.ok("GET", f"/apis/nodus.dev/{version}"))["resources"]
    ]
    assert {resource["kind"] for resource in found if "/" not in resource["name"]} == set(KINDS)
    assert {"jobs/log", "trainingjobs/taskevents"} <= {resource["name"] for resource in found}


async def test_table_has_the_kinds_columns_and_metadata(api: Api, put: Callable[..., Object], clock: FakeClock) -> None:
    status = {
        "phase": "Running", "progress": {"stage": "Training"}, "cost": {"totalUSD": "0.12"},
        "summary": {"comparison": {"changePP": "12.5"}},
    }  # fmt: skip
    put("TrainingJob", "a", status=status, labels={"x": "y"})
    clock.advance(360)
    table = await api.ok("GET", TRAINING_JOBS, headers=TABLE)

    shown = [column["name"].upper() for column in table["columnDefinitions"] if column["priority"] == 0]
    assert shown == ["NAME", "RUNTIME", "PHASE", "STAGE", "CHANGE", "COST", "AGE"]
    assert table["rows"][0]["cells"][:7] == ["a", "nodus/grpo-lora", "Running", "Training", "12.5", "$0.12", "6m"]
    assert table["rows"][0]["object"]["metadata"]["labels"] == {"x": "y"}
    assert table["metadata"]["resourceVersion"]


async def test_table_of_one_object_and_of_none(api: Api, put: Callable[..., Object]) -> None:
    assert (await api.ok("GET", JOBS, headers=TABLE))["rows"] == []
    put("Job", "a")
    table = await api.ok("GET", f"{JOBS}/a", headers=TABLE)
    assert [row["cells"][0] for row in table["rows"]] == ["a"]


async def test_every_kind_renders_its_example_as_a_row(api: Api, put: Callable[..., Object]) -> None:
    for kind in KINDS.values():
        if kind.name in ("Event", "AuditEvent") or kind in billing.SERVED:
            continue
        put(kind.name, "example", dict(kind.example.get("spec", {})))
        base = V1 if kind.version == "v1" else BETA
        path = f"{base}/namespaces/default/{kind.plural}" if kind.namespaced else f"{base}/{kind.plural}"
        table = await api.ok("GET", f"{path}/example", headers=TABLE)
        assert all(isinstance(cell, str) for cell in table["rows"][0]["cells"])


async def test_catalog_environments_show_what_the_guide_shows(api: Api) -> None:
    table = await api.ok("GET", f"{V1}/namespaces/nodus/environments", headers=TABLE)
    assert [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0] == [
        "Name", "Version", "Category", "Modes", "Phase",
    ]  # fmt: skip
    rows = {row["cells"][0]: row["cells"] for row in table["rows"]}
    assert rows["arithmetic"][1:4] == ["2.0.0", "Math", "Train, Evaluate"]


async def test_catalog_is_written_again_only_where_it_changed(services: Services) -> None:
    documents = catalog.read_catalog()
    assert services.store.write_sync(catalog.load, services, documents) == []
    changed: list[dict[str, Any]] = [
        {**d, "spec": {**d["spec"], "summary": "new"}} if d["metadata"]["name"] == "arithmetic" else d
        for d in documents
    ]
    assert services.store.write_sync(catalog.load, services, changed) == ["environment/arithmetic"]


async def test_older_catalog_versions_stay_resolvable(services: Services) -> None:
    from nodus.server.training import lookups

    documents = [d for d in catalog.read_catalog() if d["metadata"]["name"] == "arithmetic"]
    newer = {**documents[0], "spec": {**documents[0]["spec"], "version": "2.1.0"}}
    services.store.write_sync(catalog.load, services, [newer])

    old = services.store.read_sync(lookups.environment, "default", "nodus/arithmetic@2.0.0")
    new = services.store.read_sync(lookups.environment, "default", "nodus/arithmetic-v2")
    assert (old.spec["version"], new.spec["version"]) == ("2.0.0", "2.1.0")


async def test_catalog_environment_is_read_by_its_alias_and_written_by_its_name_alone(api: Api) -> None:
    url = f"{V1}/namespaces/nodus/environments"
    found = await api.ok("GET", f"{url}/arithmetic-v2")
    assert found == await api.ok("GET", f"{url}/arithmetic")
    for name in ("arithmetic-v1", "arithmetic-v", "arithmetic-v2-v2", "no-such-v2"):
        await api.fails(404, "NotFound", "GET", f"{url}/{name}")
    await api.fails(404, "NotFound", "GET", f"{V1}/namespaces/default/environments/arithmetic-v2")
    await api.fails(404, "NotFound", "GET", f"{V1}/namespaces/nodus/trainingruntimes/grpo-lora-v1")


async def test_offerings_describe_this_machine_and_forget_what_is_gone(services: Services, api: Api) -> None:
    stale = {"cpu": 1, "memory": "1Gi", "count": 8, "priceUSDPerHour": "0.00"}

    def add(conn: Any) -> None:
        objects.create(conn, KINDS["Offering"], None, "local-h100-x8", stale, status={"phase": "Available"})

    services.store.write_sync(add)
    assert services.store.write_sync(catalog.load, services, []) == ["offering/local-h100-x8"]
    (cpu,) = (await api.ok("GET", f"{V1}/offerings?fieldSelector=spec.count=0"))["items"]
    assert cpu["spec"]["cpu"] >= 1
    assert cpu["spec"]["memory"].endswith("Gi")


async def test_health_and_configuration_need_no_key(anonymous: Api, services: Services) -> None:
    assert (await anonymous.call("GET", "/healthz")).text == "ok\n"
    services.checks["disk"] = lambda: "almost full"
    ready = await anonymous.call("GET", "/readyz")
    assert (ready.status_code, ready.text.splitlines()) == (200, ["ok", "degraded disk: almost full"])
    known = await anonymous.ok("GET", "/.well-known/nodus-configuration")
    assert known["defaultModel"]
    services.store.close()
    assert (await anonymous.call("GET", "/readyz")).status_code == 503


async def test_metrics_count_by_route_and_never_by_path(api: Api) -> None:
    await api.call("GET", f"{JOBS}/some-name")
    await api.call("GET", "/nowhere/else")
    text = (await api.call("GET", "/metrics")).text
    assert 'route="/apis/nodus.dev/{version}/namespaces/{project}/{plural}/{name}",status="404"' in text
    assert "some-name" not in text
    assert "nowhere" not in text


async def test_a_page_ends_where_it_gets_large_and_the_next_goes_on(
    api: Api, put: Callable[..., Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PAGE_BYTES", 10_000)
    for number in range(12):
        put("Job", f"j{number:02}", annotations={"a": "x" * 3000})
    found, token = [], ""
    for _ in range(12):
        page = await api.ok("GET", JOBS, params={"continue": token} if token else {})
        assert 1 <= len(page["items"]) <= 4
        found += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue")
        if not token:
            break
    assert found == [f"j{number:02}" for number in range(12)]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("a=1", "x"),
        ("a==1", "x"),
        ("a!=1", "y z"),
        ("a in (1,2)", "x y"),
        ("a in(1, 2)", "x y"),
        ("a notin (1)", "y z"),
        ("a", "x y"),
        ("!a", "z"),
        ("a,b=2", "y"),
        ("a!=1,b!=2", "z"),
        ("nodus.dev/long-name=v.1_2", "z"),
    ],
)
async def test_label_selectors(api: Api, put: Callable[..., Object], selector: str, names: str) -> None:
    put("Volume", "x", labels={"a": "1", "b": "1"})
    put("Volume", "y", labels={"a": "2", "b": "2"})
    put("Volume", "z", labels={"nodus.dev/long-name": "v.1_2"})
    shown = await api.ok("GET", VOLUMES, params={"labelSelector": selector})
    assert [item["metadata"]["name"] for item in shown["items"]] == names.split()


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name=x", "x"),
        ("metadata.name!=x", "y z"),
        ("status.phase=Ready", "x y"),
        ("status.phase==Ready,spec.size=1Gi", "x"),
        ("status.phase!=Ready", "z"),
        ("status.revision=3", "y"),
        ("spec.source.library=a", "z"),
        ("spec.source.git.repo=1", ""),
        ("spec.source.git.repo!=1", "x y z"),
        ("status.revision", "y"),
        ("!status.revision", "x z"),
    ],
)
async def test_field_selectors_take_any_dotted_path(
    api: Api, put: Callable[..., Object], selector: str, names: str
) -> None:
    put("Volume", "x", {"size": "1Gi"}, status={"phase": "Ready"})
    put("Volume", "y", {"size": "2Gi"}, status={"phase": "Ready", "revision": 3})
    put("Volume", "z", {"source": {"library": "a"}}, status={"phase": "Pending"})
    shown = await api.ok("GET", VOLUMES, params={"fieldSelector": selector})
    assert [item["metadata"]["name"] for item in shown["items"]] == names.split()


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ("status.phse=Ready", "'status.phse' (did you mean 'status.phase'?)"),
        ("status.phse!=Ready", "'status.phse'"),
        ("spec.access_mode=ReadWriteOnce", "did you mean 'spec.accessMode'?"),
        ("spec.no.such.field=1", "'spec.no.such.field'; there are spec.accessMode, spec.size, spec.source"),
        ("phase=Ready", "'phase'; there are apiVersion, kind, metadata, spec, status"),
        ("spec.size.of=1", "spec.size of Volume is no object"),
        ("status.conditions=Ready", "is a list"),
        ("status.conditions.0.type=Ready", "a list, which selectors can't look into"),
        ("metadata.labels.nodus.dev/x=y", "labelSelector"),
        ("status.phase=ready", "phase 'ready' (did you mean 'Ready'?); there are Pending, Ready, Failed"),
        ("status.phase in (Ready,Runing)", "'Runing'"),
        ("metadata.name=x,status.phase!=Runing", "'Runing'"),
    ],
)
@pytest.mark.parametrize("watch", ["", "true"])
async def test_field_selector_over_what_a_kind_does_not_have_is_refused(
    api: Api, put: Callable[..., Object], selector: str, said: str, watch: str
) -> None:
    put("Volume", "x", status={"phase": "Ready"})
    status = await api.fails(400, "BadRequest", "GET", VOLUMES, params={"fieldSelector": selector, "watch": watch})
    assert said in status["message"]
    assert status["fix"] == "`nodus explain volume` lists the fields."
    assert [cause["field"] in selector for cause in status["details"]["causes"]] == [True]


async def test_every_mistake_of_a_field_selector_is_named(api: Api) -> None:
    params = {"fieldSelector": "status.phse=Ready,spec.sise=1Gi,metadata.name=x"}
    status = await api.fails(400, "BadRequest", "GET", VOLUMES, params=params)
    assert [cause["field"] for cause in status["details"]["causes"]] == ["status.phse", "spec.sise"]


async def test_shorthands_are_selected_as_they_were_written(api: Api, put: Callable[..., Object]) -> None:
    put("Job", "a", {"command": ["true"], "resources": {"gpu": "H100:8"}})
    shown = await api.ok("GET", JOBS, params={"fieldSelector": "spec.resources.gpu=H100:8"})
    assert [item["metadata"]["name"] for item in shown["items"]] == ["a"]
