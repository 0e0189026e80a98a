"""The generic client: what it sends for each verb, and how it follows changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodus import errors
from nodus.client.apply import LAST_APPLIED, prepare, three_way_patch
from nodus.client.blocking import run_blocking
from nodus.client.kinds import BUILT_IN, find_kind
from nodus.client.resources import Resources
from tests.unit.client.fake_server import Asked, FakeServer, Reply, status

JOBS = "/apis/nodus.dev/v1/namespaces/default/jobs"


def job(name: str = "j", version: int = 1, phase: str = "Queued", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "nodus.dev/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "resourceVersion": str(version), **metadata},
        "spec": {"command": ["true"]}, "status": {"phase": phase},
    }  # fmt: skip


def stream(*changes: tuple[str, dict[str, Any]]) -> Reply:
    return Reply(b"".join(json.dumps({"type": kind, "object": obj}).encode() + b"\n" for kind, obj in changes))


def resources(server: FakeServer) -> Resources:
    return server.client().resources


def test_table_of_kinds_is_what_core_declares() -> None:
    from nodus.core.kinds import KINDS

    ours = {
        info.kind: (info.plural, info.version, info.namespaced, info.short_names, info.singular) for info in BUILT_IN
    }
    theirs = {
        kind.name: (kind.plural, kind.version, kind.namespaced, kind.short_names, kind.singular)
        for kind in KINDS.values()
    }
    assert ours == theirs


@pytest.mark.parametrize("name", ["tj", "TrainingJob", "trainingjob", "trainingjobs", "TJ"])
def test_kind_is_found_by_any_of_its_names(name: str) -> None:
    found = find_kind(name)
    assert found is not None and found.kind == "TrainingJob"


def test_unknown_kind_is_looked_up_on_the_server(server: FakeServer) -> None:
    listed = {"resources": [{"name": "sandboxes", "kind": "Sandbox", "namespaced": True, "shortNames": ["sb"]},
                            {"name": "sandboxes/log", "kind": "Sandbox", "namespaced": True}]}  # fmt: skip
    server.replies = [Reply(listed), Reply({"resources": []}), Reply({"kind": "Sandbox"})]
    run_blocking(resources(server).get("sb", "x"))
    assert server.asked[-1].path == "/apis/nodus.dev/v1/namespaces/default/sandboxes/x"


def test_kind_nobody_knows_suggests_a_near_one(server: FakeServer) -> None:
    server.replies = [
        Reply({"resources": [{"name": "jobs", "kind": "Job", "namespaced": True}]}),
        Reply({"resources": []}),
    ]
    with pytest.raises(errors.NotFound, match="resource type 'jbos'") as raised:
        run_blocking(resources(server).get("jbos", "x"))
    assert "jobs" in str(raised.value.fix)


def test_list_follows_pages(server: FakeServer) -> None:
    bare = {"metadata": {"name": "a"}}
    server.replies = [
        Reply({"metadata": {"continue": "t1"}, "items": [bare]}),
        Reply({"metadata": {}, "items": [job("b")]}),
    ]
    found = run_blocking(resources(server).list("job", labels="a=b", fields="status.phase=Running"))
    assert [item["metadata"]["name"] for item in found] == ["a", "b"]
    assert found[0]["kind"] == "Job"
    first, second = (asked.query for asked in server.asked)
    assert first == {"limit": "500", "labelSelector": "a=b", "fieldSelector": "status.phase=Running"}
    assert second == first | {"continue": "t1"}


def test_list_over_all_projects_names_none(server: FakeServer) -> None:
    server.replies = [Reply({"metadata": {}, "items": []})]
    run_blocking(resources(server).list("job", all_projects=True))
    assert server.asked[0].path == "/apis/nodus.dev/v1/jobs"


def test_create_fills_in_the_project_and_sends_a_key(server: FakeServer) -> None:
    server.script = lambda asked: Reply(asked.json, 201)
    document = {"apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {}}
    created = run_blocking(resources(server).create(document, if_match='"etag"'))
    assert created["metadata"]["namespace"] == "default"
    assert server.asked[0].headers["if-match"] == '"etag"'
    assert server.asked[0].headers["idempotency-key"].startswith("sdk:create:")


def test_manifest_project_wins(server: FakeServer) -> None:
    server.script = lambda asked: Reply(asked.json, 201)
    document = {
        "apiVersion": "nodus.dev/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "other"},
        "spec": {},
    }
    run_blocking(resources(server).create(document, project="third"))
    assert "/namespaces/other/" in server.asked[0].path


def test_plan_stores_nothing_and_returns_the_etag(server: FakeServer) -> None:
    server.replies = [Reply(job(), headers={"ETag": '"abc"'})]
    planned = run_blocking(resources(server).plan(job()))
    assert planned.etag == '"abc"'
    assert server.asked[0].query == {"dryRun": "All"}


def test_patch_type_follows_its_form(server: FakeServer) -> None:
    server.script = lambda asked: Reply(job())
    run_blocking(resources(server).patch("job", "j", {"spec": {"state": "Cancelled"}}))
    run_blocking(resources(server).patch("job", "j", [{"op": "remove", "path": "/spec/x"}]))
    assert [asked.headers["content-type"] for asked in server.asked] == [
        "application/merge-patch+json", "application/json-patch+json",
    ]  # fmt: skip


def test_delete_of_what_is_gone(server: FakeServer) -> None:
    run_blocking(resources(server).delete("job", "j", propagation="Foreground", missing_ok=True))
    assert server.asked[0].json["propagationPolicy"] == "Foreground"
    with pytest.raises(errors.NotFound):
        run_blocking(resources(server).delete("job", "j"))


# Apply
MANIFEST = {
    "apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": {"name": "j"},
    "spec": {"command": ["true"], "resources": {"cpu": 1}},
}  # fmt: skip


def applied(document: dict[str, Any] = MANIFEST, **live: Any) -> dict[str, Any]:
    """An object as the server keeps it after an apply."""
    sent, _ = prepare(document, "default")
    return sent | live


def test_apply_creates_what_is_missing(server: FakeServer) -> None:
    server.replies = [status("NotFound", 404), Reply(applied(), 201)]
    assert run_blocking(resources(server).apply(MANIFEST)).outcome == "created"
    assert LAST_APPLIED in server.asked[1].json["metadata"]["annotations"]


def test_apply_of_the_same_sends_nothing(server: FakeServer) -> None:
    live = applied()
    live["status"] = {"phase": "Running"}
    live["spec"] = live["spec"] | {"timeout": "5m"}
    server.replies = [Reply(live)]
    assert run_blocking(resources(server).apply(MANIFEST)).outcome == "unchanged"
    assert len(server.asked) == 1


def test_apply_sends_what_changed_and_removes_what_is_gone(server: FakeServer) -> None:
    changed = MANIFEST | {"spec": {"command": ["false"]}}
    server.replies = [Reply(applied()), Reply(job())]
    assert run_blocking(resources(server).apply(changed)).outcome == "configured"
    patch = server.asked[1].json
    assert patch["spec"] == {"command": ["false"], "resources": None}
    assert json.loads(patch["metadata"]["annotations"][LAST_APPLIED])["spec"] == {"command": ["false"]}


def test_apply_leaves_what_only_the_server_has() -> None:
    sent, last = prepare(MANIFEST, "default")
    live = applied()
    live["spec"] = live["spec"] | {"resources": {"cpu": 1, "memory": "1Gi"}}
    assert three_way_patch(sent, last, live) is None


def test_apply_repairs_what_somebody_else_changed() -> None:
    sent, last = prepare(MANIFEST, "default")
    live = applied()
    live["spec"] = live["spec"] | {"resources": {"cpu": 9}}
    patch = three_way_patch(sent, last, live)
    assert patch is not None and patch["spec"] == {"resources": {"cpu": 1}}


def test_apply_of_an_object_made_otherwise() -> None:
    sent, last = prepare(MANIFEST, "default")
    live = MANIFEST | {"metadata": {"name": "j", "namespace": "default", "uid": "u"}}
    assert three_way_patch(sent, last, live) is None
    assert three_way_patch(*prepare(MANIFEST | {"spec": {"command": ["x"]}}, "default"), live) is not None


def test_prepared_document_has_no_status_and_keeps_annotations() -> None:
    sent, last = prepare(
        MANIFEST | {"status": {"phase": "x"}, "metadata": {"name": "j", "annotations": {"a": "b"}}}, None
    )
    assert "status" not in sent and "status" not in json.loads(last)
    assert sent["metadata"]["annotations"] == {"a": "b", LAST_APPLIED: last}
    assert "namespace" not in sent["metadata"]


SECRET = {
    "apiVersion": "nodus.dev/v1", "kind": "Secret", "metadata": {"name": "s"}, "spec": {"stringData": {"K": "hush"}},
}  # fmt: skip


def test_secret_values_stay_out_of_the_annotation() -> None:
    sent, last = prepare(SECRET, "default")
    assert "hush" not in last and sent["spec"] == SECRET["spec"]
    live = sent | {"spec": {"type": "Opaque"}}
    patch = three_way_patch(sent, last, live)
    assert patch is not None and patch["spec"] == {"stringData": {"K": "hush"}}


def test_apply_that_changed_nothing_says_so(server: FakeServer) -> None:
    sent, _ = prepare(SECRET, "default")
    live = sent | {"spec": {"type": "Opaque"}, "metadata": sent["metadata"] | {"resourceVersion": "4"}}
    server.replies = [Reply(live), Reply(live)]
    assert run_blocking(resources(server).apply(SECRET)).outcome == "unchanged"


# Wait
def test_wait_for_returns_the_object_that_holds(server: FakeServer) -> None:
    server.replies = [
        Reply(job(version=1)),
        stream(("MODIFIED", job(version=2))),
        stream(("MODIFIED", job(version=3, phase="Succeeded"))),
    ]
    found = run_blocking(
        resources(server).wait_for("job", "j", lambda obj: obj["status"]["phase"] == "Succeeded", timeout_s=5)
    )
    assert found["metadata"]["resourceVersion"] == "3"
    assert server.asked[1].query["fieldSelector"] == "metadata.name=j"


async def test_wait_for_is_the_same_awaited(server: FakeServer) -> None:
    server.replies = [Reply(job(version=1)), stream(("MODIFIED", job(version=3, phase="Succeeded")))]
    found = await resources(server).wait_for("job", "j", lambda obj: obj["status"]["phase"] == "Succeeded", timeout_s=5)
    assert found["metadata"]["resourceVersion"] == "3"


def test_wait_for_runs_out_of_time(server: FakeServer) -> None:
    def script(asked: Asked) -> Reply:
        return stream() if "watch" in asked.query else Reply(job())

    server.script = script
    with pytest.raises(errors.NodusTimeout, match=r"j: Ready did not come within 0\.5 s"):
        run_blocking(resources(server).wait_for("job", "j", lambda obj: False, timeout_s=0.5, what="Ready"))


def test_wait_for_ends_when_the_object_is_deleted(server: FakeServer) -> None:
    server.replies = [Reply(job()), stream(("DELETED", job()))]
    with pytest.raises(errors.NotFound, match="deleted meanwhile"):
        run_blocking(resources(server).wait_for("job", "j", lambda obj: False, timeout_s=5))
