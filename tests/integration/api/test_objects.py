"""Create, get, list, patch, replace and delete of objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodus.server.store import Object
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, V1, causes, job


async def test_create_returns_the_stored_object_with_server_metadata(api: Api) -> None:
    answer = await api.call("POST", JOBS, json=job(timeout="5m"))

    assert answer.status_code == 201
    created = answer.json()
    assert created["metadata"].keys() >= {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
    }
    assert created["metadata"]["labels"] == {"nodus.dev/created-by": "usr_admin"}
    assert created["spec"] == {"command": ["true"], "timeout": "5m"}
    assert (created["status"]["phase"], created["status"]["estimate"]["holdUSD"]) == ("Queued", "0.00")
    assert await api.ok("GET", f"{JOBS}/j1") == created


async def test_create_again_with_the_same_spec_returns_the_first(api: Api) -> None:
    first = await api.ok("POST", JOBS, json=job(resources={"cpu": 1}))
    again = await api.call("POST", JOBS, json=job(resources={"cpu": 1}))

    assert again.status_code == 200
    assert again.json()["metadata"]["uid"] == first["metadata"]["uid"]


async def test_create_again_spelled_otherwise_returns_the_first(api: Api) -> None:
    await api.ok("POST", JOBS, json=job(resources={"gpu": "H100:2"}))
    again = await api.call("POST", JOBS, json=job(resources={"gpu": {"type": ["H100"], "count": 2}}))

    assert again.status_code == 200
    assert again.json()["spec"]["resources"] == {"gpu": "H100:2"}, "what the user wrote first is kept"


async def test_create_again_with_another_spec_is_refused_with_the_difference(api: Api) -> None:
    await api.ok("POST", JOBS, json=job(command=["true"]))
    status = await api.fails(409, "AlreadyExists", "POST", JOBS, json=job(command=["false"]))

    assert status["details"]["diff"] == {"spec.command": {"old": ["true"], "new": ["false"]}}


async def test_generate_name_makes_a_new_object_each_time(api: Api) -> None:
    body = job(None) | {"metadata": {"generateName": "run-"}}
    names = {(await api.ok("POST", JOBS, json=body))["metadata"]["name"] for _ in range(3)}

    assert len(names) == 3
    assert all(name.startswith("run-") for name in names)


async def test_create_without_any_name_is_refused(api: Api) -> None:
    assert "metadata.name" in causes(await api.fails(422, "Invalid", "POST", JOBS, json=job(None)))


async def test_create_in_a_project_that_is_not_there_is_not_found(api: Api) -> None:
    await api.fails(404, "NotFound", "POST", f"{V1}/namespaces/nope/jobs", json=job())


async def test_create_of_another_kind_than_the_path_says_is_refused(api: Api) -> None:
    await api.fails(400, "BadRequest", "POST", JOBS, json=job() | {"kind": "Volume"})
    await api.fails(400, "BadRequest", "POST", JOBS, json=job() | {"apiVersion": "nodus.dev/v1beta1"})
    body = job() | {"metadata": {"name": "j1", "namespace": "other"}}
    await api.fails(400, "BadRequest", "POST", JOBS, json=body)


async def test_list_pages_without_repeats_or_gaps(api: Api, put: Callable[..., Object]) -> None:
    wanted = [put("Job", f"j{number}").name for number in range(7)]
    found, token = [], ""
    while True:
        page = await api.ok("GET", JOBS, params={"limit": 3, "continue": token})
        found += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break

    assert found == wanted
    assert page["kind"] == "JobList"


async def test_list_selects_by_label_and_by_any_field(api: Api, put: Callable[..., Object]) -> None:
    put("Job", "a", labels={"team": "x"}, status={"phase": "Running"})
    put("Job", "b", labels={"team": "y"}, status={"phase": "Queued"})

    async def names(**query: str) -> list[str]:
        return [item["metadata"]["name"] for item in (await api.ok("GET", JOBS, params=query))["items"]]

    assert await names(labelSelector="team=x") == ["a"]
    assert await names(labelSelector="team in (x,y),team!=x") == ["b"]
    assert await names(fieldSelector="status.phase=Queued") == ["b"]
    assert await names(fieldSelector="metadata.name=a,spec.timeout=5m") == ["a"]
    await api.fails(400, "BadRequest", "GET", JOBS, params={"labelSelector": "a==b==c"})


async def test_list_over_all_projects(api: Api, put: Callable[..., Object]) -> None:
    await api.ok("POST", f"{V1}/projects", json={"metadata": {"name": "other"}})
    put("Job", "a")
    put("Job", "b", project="other")

    found = await api.ok("GET", f"{V1}/jobs")

    assert [(i["metadata"]["namespace"], i["metadata"]["name"]) for i in found["items"]] == [
        ("default", "a"),
        ("other", "b"),
    ]


async def test_list_of_a_project_that_is_not_there_is_not_found(api: Api) -> None:
    status = await api.fails(404, "NotFound", "GET", f"{V1}/namespaces/typo/jobs")
    assert "typo" in status["message"]


async def test_namespace_probe_tells_whether_a_project_is_there(api: Api) -> None:
    assert await api.ok("GET", "/api/v1/namespaces/default") == {
        "kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default"},
    }  # fmt: skip
    await api.fails(404, "NotFound", "GET", "/api/v1/namespaces/typo")


async def test_merge_patch_changes_labels_without_a_new_generation(api: Api) -> None:
    await api.ok("POST", JOBS, json=job())
    changed = (await api.patch(f"{JOBS}/j1", {"metadata": {"labels": {"a": "b"}}})).json()
    assert changed["metadata"]["labels"] == {"a": "b", "nodus.dev/created-by": "usr_admin"}
    assert changed["metadata"]["generation"] == 1

    removed = (await api.patch(f"{JOBS}/j1", {"metadata": {"labels": {"a": None}}})).json()
    assert "a" not in removed["metadata"]["labels"]


async def test_state_patch_is_checked_by_the_kind(api: Api) -> None:
    await api.ok("POST", JOBS, json=job())
    assert (await api.patch(f"{JOBS}/j1", {"spec": {"state": "Cancelled"}})).json()["spec"]["state"] == "Cancelled"

    refused = await api.patch(f"{JOBS}/j1", {"spec": {"state": "Stopped"}})
    assert (refused.status_code, refused.json()["reason"]) == (422, "Invalid")
    await api.ok("POST", f"{V1}/namespaces/default/volumes", json={"metadata": {"name": "v"}})
    refused = await api.patch(f"{V1}/namespaces/default/volumes/v", {"spec": {"state": "Cancelled"}})
    assert (refused.status_code, causes(refused.json())) == (422, {"spec.state": "unknown field"})


async def test_patch_that_changes_nothing_leaves_the_version(api: Api) -> None:
    created = await api.ok("POST", JOBS, json=job(timeout="5m"))
    assert (await api.patch(f"{JOBS}/j1", {"spec": {"timeout": "5m"}})).json() == created


async def test_patch_of_an_immutable_field_to_another_spelling_is_no_change(api: Api) -> None:
    await api.ok("POST", JOBS, json=job(resources={"gpu": "H100:1"}))
    spelled = {"type": ["H100"], "count": 1}
    changed = await api.patch(f"{JOBS}/j1", {"spec": {"resources": {"gpu": spelled}}})

    assert (changed.status_code, changed.json()["spec"]["resources"]["gpu"]) == (200, spelled)


async def test_patch_of_an_immutable_field_names_it(api: Api) -> None:
    await api.ok("POST", JOBS, json=job())
    refused = await api.patch(f"{JOBS}/j1", {"spec": {"command": ["false"]}})

    assert (refused.status_code, refused.json()["reason"]) == (409, "FieldImmutable")
    assert refused.json()["details"]["diff"] == {"spec.command": {"old": ["true"], "new": ["false"]}}
    assert causes(refused.json()) == {"spec.command": 'can\'t change after creation (["true"] to ["false"])'}


async def test_cap_may_rise_and_not_fall(api: Api) -> None:
    await api.ok("POST", JOBS, json=job(maxCostUSD="5.00"))
    assert (await api.patch(f"{JOBS}/j1", {"spec": {"maxCostUSD": "6"}})).status_code == 200
    refused = await api.patch(f"{JOBS}/j1", {"spec": {"maxCostUSD": "1.00"}})
    assert (refused.status_code, refused.json()["reason"]) == (409, "FieldImmutable")
    assert refused.json()["details"]["diff"] == {"spec.maxCostUSD": {"old": "6", "new": "1.00"}}
    assert causes(refused.json()) == {"spec.maxCostUSD": "may only rise; it is 6 now"}


async def test_json_patch_applies_in_order(api: Api) -> None:
    await api.ok("POST", JOBS, json=job())
    operations = [
        {"op": "test", "path": "/metadata/name", "value": "j1"},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/annotations/note", "value": "x"},
    ]
    changed = await api.patch(f"{JOBS}/j1", operations, "json")
    assert changed.json()["metadata"]["annotations"] == {"note": "x"}

    refused = await api.patch(f"{JOBS}/j1", [{"op": "remove", "path": "/spec/nope"}], "json")
    assert (refused.status_code, refused.json()["reason"]) == (422, "Invalid")


async def test_patch_of_another_content_type_is_refused(api: Api) -> None:
    await api.ok("POST", JOBS, json=job())
    for content_type in ("application/json", "application/strategic-merge-patch+json", ""):
        headers = {"Content-Type": content_type}
        await api.fails(415, "UnsupportedMediaType", "PATCH", f"{JOBS}/j1", content="{}", headers=headers)
    headers = {"Content-Type": "application/merge-patch+json"}
    await api.fails(400, "BadRequest", "PATCH", f"{JOBS}/j1", content="{nonsense", headers=headers)


async def test_patch_can_not_rename_or_write_status(api: Api) -> None:
    await api.ok("POST", JOBS, json=job())
    assert (await api.patch(f"{JOBS}/j1", {"metadata": {"name": "j2"}})).status_code == 400
    changed = await api.patch(f"{JOBS}/j1", {"status": {"phase": "Succeeded"}})
    assert changed.json()["status"]["phase"] == "Queued"


async def test_replace_needs_the_current_version_when_it_names_one(api: Api) -> None:
    created = await api.ok("POST", JOBS, json=job())
    body = {**created, "spec": {**created["spec"], "timeout": "9m"}}
    replaced = await api.ok("PUT", f"{JOBS}/j1", json=body)
    assert replaced["spec"]["timeout"] == "9m"

    await api.fails(409, "Conflict", "PUT", f"{JOBS}/j1", json=body)
    body["metadata"] = {"name": "j1"}
    assert (await api.call("PUT", f"{JOBS}/j1", json=body)).status_code == 200


async def test_delete_answers_success_and_takes_dependents_along(api: Api, put: Callable[..., Object]) -> None:
    owner = put("Job", "j1")
    put("Attempt", "j1-1", {"job": "j1", "epoch": 1}, owner=owner)
    answer = await api.ok("DELETE", f"{JOBS}/j1", json={"propagationPolicy": "Background"})

    assert (answer["kind"], answer["apiVersion"], answer["status"]) == ("Status", "v1", "Success")
    await api.fails(404, "NotFound", "GET", f"{JOBS}/j1")
    await api.fails(404, "NotFound", "GET", f"{V1}/namespaces/default/attempts/j1-1")
    await api.fails(404, "NotFound", "DELETE", f"{JOBS}/j1")


async def test_delete_refuses_unknown_policies_and_foreign_preconditions(api: Api) -> None:
    await api.ok("POST", JOBS, json=job())
    await api.fails(400, "BadRequest", "DELETE", f"{JOBS}/j1", json={"propagationPolicy": "Sideways"})
    await api.fails(409, "Conflict", "DELETE", f"{JOBS}/j1", json={"preconditions": {"uid": "other"}})


async def test_read_only_kinds_can_not_be_written(api: Api, put: Callable[..., Object]) -> None:
    put("Attempt", "j1-1", {"job": "j1", "epoch": 1})
    path = f"{V1}/namespaces/default/attempts"
    await api.fails(405, "MethodNotAllowed", "POST", path, json={"metadata": {"name": "x"}, "spec": {}})
    await api.fails(405, "MethodNotAllowed", "DELETE", f"{path}/j1-1")


async def test_apply_round_trip_keeps_the_annotation_and_what_was_written(api: Api) -> None:
    manifest: dict[str, Any] = job(resources={"gpu": "H100:8"}, timeout="1h")
    manifest["metadata"]["annotations"] = {"nodus.dev/last-applied": '{"a":1}'}
    await api.ok("POST", JOBS, json=manifest)
    live = await api.ok("GET", f"{JOBS}/j1")

    assert live["metadata"]["annotations"] == {"nodus.dev/last-applied": '{"a":1}'}
    assert live["spec"] == manifest["spec"]


async def test_project_with_objects_is_not_deleted(api: Api, put: Callable[..., Object]) -> None:
    await api.ok("POST", f"{V1}/projects", json={"metadata": {"name": "p"}})
    put("Job", "a", project="p")
    status = await api.fails(409, "Conflict", "DELETE", f"{V1}/projects/p")
    assert "jobs" in status["message"]
    await api.ok("DELETE", f"{V1}/namespaces/p/jobs/a")
    await api.ok("DELETE", f"{V1}/projects/p")
    await api.fails(409, "Conflict", "DELETE", f"{V1}/projects/default")


async def test_catalog_project_can_be_read_and_not_written(api: Api) -> None:
    runtimes = await api.ok("GET", "/apis/nodus.dev/v1beta1/namespaces/nodus/trainingruntimes")
    assert "grpo-lora" in [item["metadata"]["name"] for item in runtimes["items"]]
    await api.fails(403, "Forbidden", "POST", f"{V1}/namespaces/nodus/jobs", json=job())


async def test_finished_job_stays_finished(api: Api, put: Callable[..., Object]) -> None:
    put("Job", "done", status={"phase": "Succeeded"})
    refused = await api.patch(f"{JOBS}/done", {"spec": {"state": "Suspended"}})
    assert (refused.status_code, list(causes(refused.json()))) == (422, ["spec.state"])
    assert (await api.patch(f"{JOBS}/done", {"spec": {"state": "Cancelled"}})).status_code == 200

    put("Job", "gone", {"command": ["a"], "state": "Cancelled"}, status={"phase": "Running"})
    refused = await api.patch(f"{JOBS}/gone", {"spec": {"state": "Running"}})
    assert "cancelled" in causes(refused.json())["spec.state"]


async def test_dry_run_says_what_keeps_a_job_from_starting(api: Api) -> None:
    async def estimate(**spec: Any) -> dict[str, Any]:
        found: dict[str, Any] = (await api.ok("POST", f"{JOBS}?dryRun=All", json=job(**spec)))["status"]["estimate"]
        return found

    free = await estimate()
    assert (free["blockingReasons"], free["placementPreview"]["offering"]) == ([], "local-cpu")
    blocked = await estimate(resources={"gpu": "H100:8", "cpu": 4000})
    (reason,) = blocked["blockingReasons"]
    assert "H100" in reason["message"]
    assert "4000 CPUs" in reason["message"]
    assert blocked["topology"] == {"nodes": 1, "gpusPerNode": 8}
    assert (await estimate(placement={"profile": "Cost"}))["warnings"][0]["code"] == "PlacementIgnored"


async def test_volume_that_a_job_uses_is_not_deleted(api: Api, put: Callable[..., Object]) -> None:
    volume = f"{V1}/namespaces/default/volumes/data"
    put("Volume", "data")
    spec = {"command": ["true"], "volumes": [{"volume": "data", "mountPath": "/data"}]}
    put("Job", "reader", spec, status={"phase": "Running"})
    status = await api.fails(409, "Conflict", "DELETE", volume)
    assert "nodus cancel job/reader" in status["fix"]
    await api.ok("DELETE", f"{JOBS}/reader")
    await api.ok("DELETE", volume)


@pytest.mark.parametrize(("kind", "actions"), [("Job", []), ("Sandbox", ["start"])])
async def test_an_action_that_a_kind_lacks_is_refused_with_those_it_has(
    api: Api, put: Callable[..., Object], kind: str, actions: list[str]
) -> None:
    put(kind, "a")
    path = JOBS if kind == "Job" else f"{V1}/namespaces/default/sandboxes"
    for dry in ("", "?dryRun=All"):
        change = {"metadata": {"annotations": {"nodus.dev/reimport-requested-at": "2026-01-31T12:00:00Z"}}}
        answer = await api.patch(f"{path}/a{dry}", change)
        assert (answer.status_code, answer.json()["reason"]) == (405, "MethodNotAllowed")
        assert answer.json()["details"]["actions"] == actions
        assert "have no action 'reimport'" in answer.json()["message"]
    for name in ("start-requested-at", "reimport"):  # starting says when spec.state was set; the other is a plain note
        answer = await api.patch(f"{path}/a", {"metadata": {"annotations": {f"nodus.dev/{name}": "x"}}})
        assert answer.status_code == 200, answer.text


async def test_a_request_that_stands_already_does_not_hinder_other_changes(
    api: Api, put: Callable[..., Object]
) -> None:
    put("Job", "a", annotations={"nodus.dev/drain-requested-at": "x"})
    assert (await api.patch(f"{JOBS}/a", {"metadata": {"labels": {"a": "b"}}})).status_code == 200
