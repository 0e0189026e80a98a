"""Owner references, finalizers and cascading deletion, as users of the API have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nodus.core.kinds import JOB
from nodus.server.services import Services
from nodus.server.store import Object, objects
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, TRAINING_JOBS, V1, VOLUMES, causes, job


def reference(owner: dict[str, Any], **changed: Any) -> dict[str, Any]:
    metadata = owner["metadata"]
    found = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**found, **changed}


def owned(name: str, *references: Any) -> dict[str, Any]:
    return {**job(name), "metadata": {"name": name, "ownerReferences": list(references)}}


async def family(api: Api) -> dict[str, Any]:
    """A parent with a child with a grandchild."""
    parent: dict[str, Any] = await api.ok("POST", JOBS, json=job("parent"))
    child = await api.ok("POST", JOBS, json=owned("child", reference(parent)))
    await api.ok("POST", JOBS, json=owned("grandchild", reference(child)))
    return parent


async def names(api: Api) -> list[str]:
    return [item["metadata"]["name"] for item in (await api.ok("GET", JOBS))["items"]]


async def test_background_deletes_what_is_below(api: Api) -> None:
    await family(api)
    await api.ok("DELETE", f"{JOBS}/parent", json={"propagationPolicy": "Background"})
    assert await names(api) == []


async def test_orphan_leaves_what_is_below_without_its_owner(api: Api) -> None:
    await family(api)
    await api.ok("DELETE", f"{JOBS}/parent", json={"propagationPolicy": "Orphan"})
    assert await names(api) == ["child", "grandchild"]
    assert "ownerReferences" not in (await api.ok("GET", f"{JOBS}/child"))["metadata"]


async def test_foreground_waits_until_what_is_below_is_gone(api: Api) -> None:
    await family(api)
    await api.patch(f"{JOBS}/grandchild", {"metadata": {"finalizers": ["example.com/hold"]}})
    await api.ok("DELETE", f"{JOBS}/parent", json={"propagationPolicy": "Foreground"})
    for name in ("parent", "child", "grandchild"):
        assert (await api.ok("GET", f"{JOBS}/{name}"))["metadata"]["deletionTimestamp"]
    await api.patch(f"{JOBS}/grandchild", {"metadata": {"finalizers": None}})
    assert await names(api) == []


async def test_finalizer_holds_an_object_and_none_is_added_later(api: Api) -> None:
    await api.ok("POST", JOBS, json={**job("a"), "metadata": {"name": "a", "finalizers": ["x/hold"]}})
    await api.ok("DELETE", f"{JOBS}/a")
    status = (await api.patch(f"{JOBS}/a", {"metadata": {"finalizers": ["x/hold", "x/more"]}})).json()
    assert list(causes(status)) == ["metadata.finalizers"]
    await api.fails(409, "AlreadyExists", "POST", JOBS, json=job("a"))
    assert (await api.patch(f"{JOBS}/a", {"metadata": {"finalizers": []}})).status_code == 200
    assert await names(api) == []


async def test_references_are_added_and_removed_by_patches(api: Api) -> None:
    parent = await api.ok("POST", JOBS, json=job("parent"))
    await api.ok("POST", JOBS, json=job("late"))
    change = {"metadata": {"ownerReferences": [reference(parent)]}}
    dry = await api.patch(f"{JOBS}/late", change, params={"dryRun": "All"})
    assert dry.json()["metadata"]["ownerReferences"] == [reference(parent)]
    assert (await api.patch(f"{JOBS}/late", change)).json()["metadata"]["ownerReferences"] == [reference(parent)]
    assert (await api.patch(f"{JOBS}/late", {"metadata": {"ownerReferences": None}})).status_code == 200
    await api.ok("DELETE", f"{JOBS}/parent")
    assert await names(api) == ["late"]


async def test_references_to_what_is_not_there_are_refused(api: Api, put: Callable[..., Object]) -> None:
    parent = await api.ok("POST", JOBS, json=job("parent"))
    put("Project", "other")
    volume = put("Volume", "v", project="other").to_wire()
    path = "metadata.ownerReferences[0]"
    for number, (wrong, field) in enumerate(
        (
            (reference(parent, uid="00000000-0000-4000-8000-000000000000"), path),
            (reference(parent, name="another"), path),
            (reference(parent, kind="Volume"), path),
            (reference(parent, apiVersion="nodus.dev/v9"), path),
            (reference(volume), path),
            (reference(parent, uid=5), f"{path}.uid"),
            (reference(parent, more=1), f"{path}.more"),
            (reference(parent, controller=True), f"{path}.controller"),
            (5, path),
        )
    ):
        status = await api.fails(422, "Invalid", "POST", JOBS, json=owned(f"j{number}", wrong))
        assert list(causes(status)) == [field], wrong
    for value in ({}, "x", [reference(parent)] * 17):
        status = await api.fails(
            422, "Invalid", "POST", JOBS, json={**job("x"), "metadata": {"name": "x", "ownerReferences": value}}
        )
        assert list(causes(status)) == ["metadata.ownerReferences"]


async def test_references_form_neither_rings_nor_endless_chains(api: Api) -> None:
    parent = await family(api)
    grandchild = await api.ok("GET", f"{JOBS}/grandchild")
    for target in (grandchild, parent):
        answer = await api.patch(f"{JOBS}/parent", {"metadata": {"ownerReferences": [reference(target)]}})
        assert "ring" in causes(answer.json())["metadata.ownerReferences[0]"]
    last = grandchild
    for number in range(30):
        answer = await api.call("POST", JOBS, json=owned(f"n{number}", reference(last)))
        if answer.status_code == 422:
            assert "generations" in causes(answer.json())["metadata.ownerReferences[0]"]
            break
        last = answer.json()
    assert 10 < number < 20


async def test_what_the_server_runs_an_object_by_is_not_the_users_to_write(
    api: Api, services: Services, put: Callable[..., Object]
) -> None:
    run = put("TrainingJob", "run", status={"phase": "Running", "job": "run"})
    put("Job", "run", owner=run)
    shown = await api.ok("GET", f"{JOBS}/run")
    kept = await api.call("PUT", f"{JOBS}/run", json={**shown, "metadata": {**shown["metadata"], "labels": {"a": "b"}}})
    assert kept.json()["metadata"]["ownerReferences"] == shown["metadata"]["ownerReferences"]
    gone = await api.patch(f"{JOBS}/run", {"metadata": {"ownerReferences": None}})
    assert list(causes(gone.json())) == ["metadata.ownerReferences"]
    # A Job that a user puts below a TrainingJob is not the one that trains for it.
    training = await api.ok("GET", f"{TRAINING_JOBS}/run")
    await api.ok("POST", JOBS, json=owned("mine", reference(training)))
    found = [services.store.read_sync(objects.get, JOB, "default", name).controllers for name in ("run", "mine")]
    assert found == [{run.uid}, set()]


async def test_deletion_checks_what_it_is_told(api: Api) -> None:
    made = await api.ok("POST", VOLUMES, json={"metadata": {"name": "v"}})
    path = f"{VOLUMES}/v"
    for body in (
        {"kind": "Job"},
        {"propagation": "Orphan"},
        {"propagationPolicy": "Sometimes"},
        {"propagationPolicy": ["Orphan"]},
        {"preconditions": "x"},
        {"preconditions": {"uid": 5}},
        {"preconditions": {"name": "v"}},
        {"dryRun": ["Some"]},
    ):
        await api.fails(400, "BadRequest", "DELETE", path, content=json.dumps(body))
    for preconditions in ({"uid": "other"}, {"resourceVersion": "1"}):
        await api.fails(409, "Conflict", "DELETE", path, content=json.dumps({"preconditions": preconditions}))
    await api.ok("DELETE", path, content=json.dumps({"dryRun": ["All"]}))
    await api.ok("DELETE", f"{path}?dryRun=All")
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    wanted = {**options, "preconditions": {"uid": made["metadata"]["uid"], "resourceVersion": None}}
    answer = await api.ok("DELETE", path, content=json.dumps(wanted))
    assert (answer["status"], answer["details"]["uid"]) == ("Success", made["metadata"]["uid"])


async def test_update_of_an_object_that_was_replaced_is_a_conflict(api: Api) -> None:
    first = await api.ok("POST", JOBS, json=job("a"))
    await api.ok("DELETE", f"{JOBS}/a")
    await api.ok("POST", JOBS, json=job("a"))
    stale = {**first, "metadata": {"name": "a", "uid": first["metadata"]["uid"], "labels": {"x": "y"}}}
    await api.fails(409, "Conflict", "PUT", f"{JOBS}/a", json=stale)
    assert (await api.patch(f"{JOBS}/a", {"metadata": {"uid": first["metadata"]["uid"]}})).status_code == 409


async def test_org_objects_are_owned_by_org_objects_only(api: Api) -> None:
    parent = await api.ok("POST", JOBS, json=job("parent"))
    body = {"metadata": {"name": "p", "ownerReferences": [reference(parent)]}}
    status = await api.fails(422, "Invalid", "POST", f"{V1}/projects", json=body)
    assert list(causes(status)) == ["metadata.ownerReferences[0]"]
