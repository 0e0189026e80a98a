"""The generic client: any kind by any of its names, one object or many, blocking or awaited."""

from __future__ import annotations

from typing import Any

import pytest

import nodus
from nodus import errors
from nodus.client.client import Client
from nodus.client.views import View
from tests.unit.client.fake_server import Asked, FakeServer, Reply, status

JOBS = "/apis/nodus.dev/v1/namespaces/default/jobs"


def job(name: str = "j", phase: str = "Running", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "nodus.dev/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "resourceVersion": "1"},
        "spec": {"command": ["true"]}, "status": {"phase": phase, **more},
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["Job", "job", "jobs", nodus.Job])
def test_kind_by_name_plural_or_class(server: FakeServer, kind: Any) -> None:
    server.replies = [Reply(job())]
    found = server.client().get(kind, "j")
    assert (type(found), found.name, found.phase) == (View, "j", "Running")
    assert server.asked[0].path == f"{JOBS}/j"


async def test_awaited(server: FakeServer) -> None:
    server.replies = [Reply(job()), Reply({"metadata": {}, "items": [job("a"), job("b")]})]
    async with server.client() as client:
        assert (await client.get.aio("job", "j")).name == "j"
        assert [item.name for item in await client.list.aio("jobs", labels={"a": "b"}, limit=1)] == ["a"]
    assert server.asked[1].query == {"limit": "1", "labelSelector": "a=b"}


def test_catalog_objects_by_their_full_name(server: FakeServer) -> None:
    server.replies = [Reply({"kind": "Environment", "metadata": {"name": "arithmetic"}})]
    server.client().get("environment", "nodus/arithmetic")
    assert server.asked[0].path.endswith("/namespaces/nodus/environments/arithmetic")


def test_every_verb_returns_views(server: FakeServer) -> None:
    server.script = lambda asked: Reply(job(), headers={"ETag": '"e"'})
    client = server.client()
    document = {"apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {}}
    plan = client.plan(document)
    assert (plan.object.name, plan.etag, plan.blocking) == ("j", '"e"', [])
    assert client.create(document, if_match=plan.etag, idempotency_key="k").name == "j"
    assert client.apply(document).outcome == "unchanged"
    assert client.patch("job", "j", {"spec": {}}).name == "j"
    assert client.replace(client.get("job", "j")).name == "j"
    client.delete("job", "j")
    created = server.asked[1]
    assert (created.headers["if-match"], created.headers["idempotency-key"]) == ('"e"', "k")
    assert [asked.method for asked in server.asked] == ["POST", "POST", "GET", "PATCH", "GET", "PUT", "DELETE"]


def test_many_are_created_in_batches_and_in_order(server: FakeServer) -> None:
    def script(asked: Asked) -> Reply:
        return Reply(
            {"kind": "JobList", "items": [{"metadata": item["metadata"]} for item in asked.json["items"]]}, 201
        )

    server.script = script
    documents = [
        {"apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": {"name": f"j{number}"}, "spec": {}}
        for number in range(205)
    ]
    made = server.client().create_many(documents)
    assert [view.name for view in made] == [f"j{number}" for number in range(205)]
    assert [len(asked.json["items"]) for asked in server.asked] == [100, 100, 5]
    assert (server.asked[0].json["kind"], made[0].kind) == ("JobList", "Job")
    assert len({asked.headers["idempotency-key"] for asked in server.asked}) == 3
    large = [document | {"spec": {"x": "y" * 400_000}} for document in documents[:3]]
    server.client().create_many(large)
    assert [len(asked.json["items"]) for asked in server.asked[3:]] == [2, 1]
    with pytest.raises(errors.NodusError, match="several kinds"):
        server.client().create_many([documents[0], documents[1] | {"kind": "Secret"}])


def test_plan_tells_what_is_in_the_way(server: FakeServer) -> None:
    state = {"estimate": {"blockingReasons": [{"code": "NoGPU", "message": "no H100 here"}]},
             "blockingReasons": ["queue closed"]}  # fmt: skip
    server.replies = [Reply(job(**state))]
    document = {"apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {}}
    assert server.client().plan(document).blocking == ["queue closed", "no H100 here"]


def test_events_of_an_object_come_in_order(server: FakeServer) -> None:
    late, early = (
        {"kind": "Event", "metadata": {"name": str(at)}, "lastTime": f"2026-01-01T00:00:0{at}Z"} for at in (2, 1)
    )
    server.replies = [Reply({"metadata": {}, "items": [late, early]})]
    assert [event.name for event in server.client().events("tj", "run")] == ["1", "2"]
    assert server.asked[0].query["fieldSelector"] == (
        "involvedObject.kind=TrainingJob,involvedObject.name=run,involvedObject.namespace=default"
    )


def test_events_of_one_second_are_in_order_and_those_of_a_namesake_are_not_an_objects_own(server: FakeServer) -> None:
    ended, began, old = (
        {"kind": "Event", "metadata": {"name": name, "resourceVersion": version}, "lastTime": "2026-01-01T00:00:01Z",
         "involvedObject": {"uid": uid}}
        for name, version, uid in (("ended", "10", "u"), ("began", "9", "u"), ("old", "3", "another"))
    )  # fmt: skip
    listed = Reply({"metadata": {}, "items": [ended, began, old]})
    server.replies = [Reply({"metadata": {"name": "j", "uid": "u"}}), listed]
    handle = nodus.Job.from_name("j", client=server.client())
    assert [event.name for event in handle.events()] == ["began", "ended"]


def test_logs_are_lines(server: FakeServer) -> None:
    server.replies = [Reply(b"one\ntwo", headers={"Content-Type": "text/plain"})]
    assert list(server.client().logs("attempt", "dev", tail=2, process=7)) == ["one\n", "two"]
    assert server.asked[-1].query == {"tailLines": "2", "process": "7"}


def test_followed_logs_go_on_over_attempts(server: FakeServer) -> None:
    attempt = {"metadata": {"name": "j-1"}, "spec": {"epoch": 1}, "status": {"phase": "Succeeded"}}

    def script(asked: Asked) -> Reply:
        if asked.path.endswith("/log"):
            return Reply(b"one\n", headers={"Content-Type": "text/plain"})
        if asked.path.endswith("/attempts"):
            return Reply({"metadata": {}, "items": [attempt]})
        return Reply(attempt if "/attempts/" in asked.path else job(phase="Succeeded"))

    server.script = script
    assert list(server.client().logs("job", "j", follow=True)) == ["one\n"]


def test_watch_yields_views_and_ends_with_its_time(server: FakeServer) -> None:
    server.script = lambda asked: Reply(b"" if "watch" in asked.query else {"metadata": {}, "items": [job()]})
    changes = list(server.client().watch("job", "j", timeout=0.3))
    assert [(change.type, change.object.name, change.object.phase) for change in changes] == [("ADDED", "j", "Running")]
    assert server.asked[0].query["fieldSelector"] == "metadata.name=j"


def test_wait_for_a_phase(server: FakeServer) -> None:
    server.replies = [Reply(job(phase="Succeeded"))]
    assert server.client().wait_for("job", "j", "Succeeded").phase == "Succeeded"


def test_wait_for_a_condition_of_ones_own(server: FakeServer) -> None:
    server.replies = [Reply(job(exitCode=3))]
    assert server.client().wait_for("job", "j", lambda found: found.status.exit_code == 3).name == "j"


def test_wait_for_a_phase_that_can_no_longer_come_does_not_hang(server: FakeServer) -> None:
    server.replies = [Reply(job(phase="Failed", reason="OOMKilled", message="3 GiB were not enough"))]
    with pytest.raises(errors.JobFailed, match="j failed: OOMKilled: 3 GiB were not enough") as raised:
        server.client().wait_for("job", "j", ["Running", "Succeeded"], timeout=5)
    assert raised.value.details == {"reason": "OOMKilled", "phase": "Failed"}
    assert "nodus logs job/j" in str(raised.value.fix)
    server.replies = [Reply(job(phase="Succeeded"))]
    with pytest.raises(errors.JobFailed, match="j succeeded without having been Running"):
        server.client().wait_for("job", "j", "Running", timeout=5)


def test_errors_have_everything_the_server_said(server: FakeServer) -> None:
    causes = [{"field": "spec.x", "reason": "FieldValueNotSupported", "message": "unknown field"}]
    server.replies = [
        status("Invalid", 422, 'Job "j" is invalid', fix="correct it", requestId="req_1",
               details={"causes": causes, "retryAfterSeconds": 2})
    ]  # fmt: skip
    with pytest.raises(errors.Invalid) as raised:
        server.client().get("job", "j")
    error = raised.value
    assert (error.message, error.fix, error.request_id) == ('Job "j" is invalid', "correct it", "req_1")
    assert (error.retry_after, error.causes[0].field) == (2.0, "spec.x")


def test_handles_share_the_clients_events_and_patch(server: FakeServer) -> None:
    def script(asked: Asked) -> Reply:
        return Reply({"metadata": {}, "items": []}) if asked.path.endswith("/events") else Reply(job())

    server.script = script
    handle = nodus.Job.from_name("j", client=server.client())
    assert handle.events() == []
    handle.patch({"spec": {"maxCostUSD": "40"}})
    assert server.asked[-1].json == {"spec": {"maxCostUSD": "40"}}


def test_text_of_a_client_has_no_key(server: FakeServer) -> None:
    assert "nodus_key" not in repr(server.client()) and server.url in repr(server.client())


def test_context_manager_closes_idle_connections(server: FakeServer) -> None:
    server.replies = [Reply(job())]
    with server.client() as client:
        client.get("job", "j")
    assert isinstance(client, Client)
