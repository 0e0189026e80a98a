"""What runs have besides their objects: logs, outputs, task events, gradings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from nodus.core.kinds import ATTEMPT, JOB
from nodus.server import outputlists
from nodus.server.compute.base import LogPiece
from nodus.server.compute.local import logstore
from nodus.server.services import Services
from nodus.server.store import Object, objects
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, TRAINING_JOBS, V1, causes


class Logs:
    """A backend that has nothing but logs; `over` says whether members ended."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.over = True

    def log_directory(self, key: str) -> Path:
        return self.root / key

    def write(self, key: str, data: bytes) -> None:
        writer = logstore.LogWriter(self.root / key)
        writer.write(data)
        writer.close()

    async def read_log(self, key: str, offset: int = 0, *, follow: bool = False) -> AsyncIterator[LogPiece]:
        for piece in logstore.read_pieces(self.root / key, offset):
            yield LogPiece(piece.offset, piece.data, piece.dropped)


@pytest.fixture
def logs(services: Services, tmp_path: Path) -> Logs:
    (tmp_path / "logs").mkdir()
    services.backend = Logs(tmp_path / "logs")
    return services.backend


@pytest.fixture
def run(put: Callable[..., Object]) -> Callable[..., list[Object]]:
    """Stores a Job with as many attempts as asked for."""

    def make(attempts: int = 1, phase: str = "Succeeded", **status: Any) -> list[Object]:
        owner = put("Job", "j", status={"phase": phase, **status})
        return [
            put(
                "Attempt", f"j-{epoch}", {"job": "j", "epoch": epoch}, owner=owner, labels={"nodus.dev/job": "j"},
                status={"phase": "Failed" if epoch < attempts else phase},
            )
            for epoch in range(1, attempts + 1)
        ]  # fmt: skip

    return make


async def text(api: Api, path: str, **query: Any) -> str:
    answer = await api.call("GET", path, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("text/plain")
    return answer.text


async def test_log_is_the_newest_attempts(api: Api, logs: Logs, run: Callable[..., list[Object]]) -> None:
    first, second = run(2)
    logs.write(first.uid, b"one\n")
    logs.write(second.uid, b"two\n2\n")

    assert await text(api, f"{JOBS}/j/log") == "two\n2\n"
    assert await text(api, f"{JOBS}/j/log", attempt=1) == "one\n"
    assert await text(api, f"{V1}/namespaces/default/attempts/j-1/log") == "one\n"
    assert await text(api, f"{JOBS}/j/log", tailLines=1) == "2\n"
    assert await text(api, f"{JOBS}/j/log", tailLines=0) == ""
    assert await text(api, f"{JOBS}/j/log", follow="true") == "two\n2\n"


async def test_log_with_timestamps_has_one_before_each_line(
    api: Api, logs: Logs, run: Callable[..., list[Object]]
) -> None:
    logs.write(run()[0].uid, b"one\ntwo\n")
    lines = (await text(api, f"{JOBS}/j/log", timestamps="true")).splitlines()
    assert [line.split(" ")[1] for line in lines] == ["one", "two"]
    assert all(line.split(" ")[0].endswith("Z") for line in lines)


async def test_log_of_a_run_without_output_is_empty(api: Api, logs: Logs, run: Callable[..., list[Object]]) -> None:
    run()
    assert await text(api, f"{JOBS}/j/log") == ""


async def test_log_of_nothing_is_not_found(api: Api, logs: Logs, run: Callable[..., list[Object]]) -> None:
    await api.fails(404, "NotFound", "GET", f"{JOBS}/nope/log")
    run()
    await api.fails(404, "NotFound", "GET", f"{JOBS}/j/log?rank=1")
    await api.fails(400, "BadRequest", "GET", f"{JOBS}/j/log?tailLines=-1")


async def test_followed_log_waits_for_the_run_and_goes_on_to_the_next_attempt(
    api: Api, logs: Logs, services: Services, run: Callable[..., list[Object]]
) -> None:
    run(0, phase="Running")
    async with api.stream(f"{JOBS}/j/log?follow=true") as stream:
        assert await stream.silent()
        owner = services.store.read_sync(objects.get, JOB, "default", "j")
        for epoch, phase in ((1, "Failed"), (2, "Succeeded")):
            uid = f"0000000{epoch}-0000-0000-0000-000000000000"
            logs.write(uid, f"attempt {epoch}\n".encode())
            services.store.write_sync(
                objects.create, ATTEMPT, "default", f"j-{epoch}", {"job": "j", "epoch": epoch}, owner=owner, uid=uid,
                labels={"nodus.dev/job": "j"}, status={"phase": phase},
            )  # fmt: skip
            assert await stream.line() == f"attempt {epoch}".encode()
        services.store.write_sync(objects.update_status, owner.uid, {"phase": "Succeeded"})
        assert await stream.line() == b""
        assert stream.ended


@pytest.fixture
def sweep(put: Callable[..., Object]) -> Callable[..., dict[tuple[int, int], Object]]:
    """Stores a Job with completions and the attempts asked for: ``sweep((0, 1), (1, 1), (1, 2))``, index and epoch."""

    def make(*attempts: tuple[int, int], phase: str = "Succeeded") -> dict[tuple[int, int], Object]:
        owner = put("Job", "s", {"command": ["x"], "completions": 3}, status={"phase": phase})
        return {
            (index, epoch): put(
                "Attempt", f"s-{index}-{epoch}", {"job": "s", "epoch": epoch, "slot": index}, owner=owner,
                labels={"nodus.dev/job": "s"}, status={"phase": "Succeeded", "outputs": [{"name": "x", "path": "/x"}]},
            )
            for index, epoch in attempts
        }  # fmt: skip

    return make


async def test_log_of_indexes_is_told_apart_line_by_line(
    api: Api, logs: Logs, sweep: Callable[..., dict[tuple[int, int], Object]]
) -> None:
    made = sweep((0, 1), (1, 1), (1, 2), (2, 1))
    for (index, epoch), attempt in made.items():
        logs.write(attempt.uid, f"a{index}{epoch}\nb{index}{epoch}".encode())
    log = f"{JOBS}/s/log"
    assert await text(api, log) == "[0] a01\n[0] b01\n[1] a12\n[1] b12\n[2] a21\n[2] b21\n"
    assert await text(api, log, tailLines=1) == "[0] b01\n[1] b12\n[2] b21\n"
    assert await text(api, log, index=1) == "a12\nb12"
    assert await text(api, log, index=1, attempt=1) == "a11\nb11"
    assert await text(api, log, attempt="s-2-1") == "[2] a21\n[2] b21\n"
    follows = (await text(api, log, follow="true")).splitlines()
    assert sorted(follows) == ["[0] a01", "[0] b01", "[1] a12", "[1] b12", "[2] a21", "[2] b21"]
    status = await api.fails(404, "NotFound", "GET", f"{log}?index=3")
    assert status["fix"] == "It has 0 to 2."


async def test_followed_log_of_indexes_shows_those_that_come_later(
    api: Api, logs: Logs, services: Services, sweep: Callable[..., dict[tuple[int, int], Object]],
    put: Callable[..., Object],
) -> None:  # fmt: skip
    first = sweep((0, 1), phase="Running")[0, 1]
    logs.write(first.uid, b"one\n")
    owner = services.store.read_sync(objects.get, JOB, "default", "s")
    async with api.stream(f"{JOBS}/s/log?follow=true") as stream:
        assert await stream.line() == b"[0] one"
        uid = "00000002-0000-0000-0000-000000000000"
        logs.write(uid, b"two\n")
        put(
            "Attempt", "s-2-1", {"job": "s", "epoch": 1, "slot": 2}, owner=owner, uid=uid,
            labels={"nodus.dev/job": "s"}, status={"phase": "Succeeded"},
        )  # fmt: skip
        assert await stream.line() == b"[2] two"
        services.store.write_sync(objects.update_status, owner.uid, {"phase": "Succeeded"})
        assert await stream.line() == b""
        assert stream.ended


async def test_followed_log_lists_the_attempts_once_however_often_they_change(
    api: Api, logs: Logs, services: Services, put: Callable[..., Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = put("Job", "w", {"command": ["x"], "completions": 50}, status={"phase": "Running"})
    for index in range(50):
        put(
            "Attempt", f"w-{index}-1", {"job": "w", "epoch": 1, "slot": index}, owner=owner,
            labels={"nodus.dev/job": "w"}, status={"phase": "Running"},
        )  # fmt: skip
    other = put("Job", "other", {"command": ["x"]}, status={"phase": "Running"})
    listed: list[object] = []
    list_ = objects.list_

    def counted(*args: Any, **options: Any) -> objects.Page:
        listed.append(args[1])
        return list_(*args, **options)

    monkeypatch.setattr(objects, "list_", counted)
    async with api.stream(f"{JOBS}/w/log?follow=true") as stream:
        assert await stream.silent()
        for number in range(5):
            services.store.write_sync(objects.update_status, other.uid, {"phase": "Running", "n": number})
            services.store.write_sync(objects.update_status, owner.uid, {"phase": "Running", "n": number})
        uid = "00000003-0000-0000-0000-000000000000"
        logs.write(uid, b"again\n")
        put(
            "Attempt", "w-7-2", {"job": "w", "epoch": 2, "slot": 7}, owner=owner, uid=uid,
            labels={"nodus.dev/job": "w"}, status={"phase": "Succeeded"},
        )  # fmt: skip
        assert await stream.line() == b"[7] again"
        services.store.write_sync(objects.update_status, owner.uid, {"phase": "Succeeded"})
        assert await stream.line() == b""
    assert listed == [ATTEMPT]


async def test_log_of_an_attempt_begins_where_it_is_asked_to(
    api: Api, logs: Logs, run: Callable[..., list[Object]]
) -> None:
    logs.write(run()[0].uid, b"0123456789")
    assert await text(api, f"{V1}/namespaces/default/attempts/j-1/log", offsetBytes=7) == "789"
    assert await text(api, f"{V1}/namespaces/default/attempts/j-1/log", offsetBytes=99) == ""
    await api.fails(400, "BadRequest", "GET", f"{JOBS}/j/log?offsetBytes=7")
    await api.fails(404, "NotFound", "GET", f"{JOBS}/j/log?process=7")
    await api.fails(404, "NotFound", "GET", f"{JOBS}/j/log?index=1")


async def test_outputs_of_indexes_are_there_as_soon_as_each_has_ended(
    api: Api, sweep: Callable[..., dict[tuple[int, int], Object]]
) -> None:
    sweep((0, 1), (2, 1), phase="Running")
    items = (await api.ok("GET", f"{JOBS}/s/outputs"))["items"]
    assert [(item["name"], item["index"]) for item in items] == [("x", 0), ("x", 2)]
    status = await api.fails(400, "OutputIndexRequired", "GET", f"{JOBS}/s/outputs/x")
    assert status["fix"].endswith(": 0,2.")


async def test_log_without_a_backend_is_unavailable(
    api: Api, services: Services, run: Callable[..., list[Object]]
) -> None:
    services.backend = None
    run()
    await api.fails(503, "Unavailable", "GET", f"{JOBS}/j/log")


# Outputs ------------------------------------------------------------------------------------------------------


async def test_outputs_are_listed_and_fetched_by_signed_redirect(
    api: Api, anonymous: Api, services: Services, put: Callable[..., Object]
) -> None:
    digest = services.store.blobs.put_bytes(b"weights")
    kept = {
        "name": "adapter/model.safetensors",
        "path": "/nodus/outputs/adapter/model.safetensors",
        "sha256": digest,
        "size": 7,
    }
    put("Job", "run", status={"phase": "Succeeded", "outputs": [kept]})
    put(
        "TrainingJob",
        "run",
        status={"phase": "Succeeded", "job": "run", "outputs": [{"name": kept["name"], "sizeBytes": 7}]},
    )

    for path in (f"{JOBS}/run", f"{TRAINING_JOBS}/run"):
        items = (await api.ok("GET", f"{path}/outputs"))["items"]
        assert [item["name"] for item in items] == [kept["name"]]
        answer = await api.call("GET", f"{path}/outputs/adapter/model.safetensors")
        assert (answer.status_code, answer.headers["X-Nodus-SHA256"]) == (302, digest)
        assert answer.headers["Location"].startswith("http://nodus.test/")
        got = await anonymous.call("GET", answer.headers["Location"])
        assert (got.content, got.headers["X-Nodus-SHA256"]) == (b"weights", digest)
        status = await api.fails(404, "OutputNotFound", "GET", f"{path}/outputs/nope")
        assert "adapter/model.safetensors" in status["fix"]


async def test_output_of_several_indexes_needs_one(api: Api, services: Services, put: Callable[..., Object]) -> None:
    files = [
        {"name": "x", "sha256": services.store.blobs.put_bytes(bytes([index])), "index": index} for index in (0, 1)
    ]
    put("Job", "j", status={"phase": "Succeeded", "outputs": files})
    await api.fails(400, "OutputIndexRequired", "GET", f"{JOBS}/j/outputs/x")
    answer = await api.call("GET", f"{JOBS}/j/outputs/x?index=1")
    assert answer.headers["X-Nodus-SHA256"] == files[1]["sha256"]


async def test_long_lists_of_outputs_are_whole_and_come_in_pages(
    api: Api, services: Services, run: Callable[..., list[Object]], put: Callable[..., Object]
) -> None:
    digest = services.store.blobs.put_bytes(b"x")
    found = [{"name": f"f{n}", "path": f"/nodus/outputs/f{n}", "sha256": digest, "size": 1} for n in range(1200)]
    status, kept = outputlists.status_of(found, [])
    status["outputsTotal"]["digest"] = services.store.blobs.put_bytes(kept or b"")
    [attempt] = run(1)
    services.store.write_sync(objects.update_status, attempt.uid, {"phase": "Succeeded", **status})
    put("TrainingJob", "j", status={"phase": "Succeeded", "job": "j", "outputs": []})
    for base in (f"{JOBS}/j", f"{TRAINING_JOBS}/j"):
        whole = (await api.ok("GET", f"{base}/outputs"))["items"]
        assert [item["name"] for item in whole] == [item["name"] for item in found]
        names: list[str] = []
        page: dict[str, Any] = {"continue": "0"}
        while "continue" in page:
            page = await api.ok("GET", f"{base}/outputs?limit=500&after={page['continue']}")
            names += [item["name"] for item in page["items"]]
        assert names == [item["name"] for item in found]
        assert (await api.call("GET", f"{base}/outputs/f1199")).status_code == 302
    await api.fails(400, "BadRequest", "GET", f"{JOBS}/j/outputs?after=x")


async def test_output_whose_file_is_gone_is_not_found(api: Api, put: Callable[..., Object]) -> None:
    put("Job", "j", status={"phase": "Succeeded", "outputs": [{"name": "x", "sha256": "0" * 64}]})
    await api.fails(404, "OutputNotFound", "GET", f"{JOBS}/j/outputs/x")


# Task events and gradings -------------------------------------------------------------------------------------

EVENTS = f"{TRAINING_JOBS}/run/taskevents"


async def test_reported_events_are_kept_once_and_paged(api: Api, attempt: Api) -> None:
    events = [{"id": f"m{n}", "type": "Metrics", "step": n, "loss": 0.5} for n in range(5)]
    assert await attempt.ok("POST", EVENTS, json={"events": events}) == {"accepted": 5, "new": 5}
    assert await attempt.ok("POST", EVENTS, json={"events": events}) == {"accepted": 5, "new": 0}

    seen, token = [], ""
    while True:
        page = await api.ok("GET", EVENTS, params={"eventType": "Metrics", "limit": 2, "after": token})
        seen += [(item["id"], item["step"], item["attempt"]) for item in page["items"]]
        if "continue" not in page:
            break
        token = page["continue"]
    assert seen == [(f"m{n}", n, "run-1") for n in range(5)]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"events": {}},
        {"events": ["x"]},
        {"events": [{"id": "a"}]},
        {"events": [{"id": "", "type": "Metrics"}]},
        {"events": [{"id": "a", "type": "Task"}]},
    ],
)
async def test_bad_events_are_refused(attempt: Api, body: dict[str, Any]) -> None:
    await attempt.fails(422, "Invalid", "POST", EVENTS, json=body)


async def test_bad_event_queries_are_refused(api: Api, attempt: Api) -> None:
    for query in ("limit=0", "limit=x", "after=x", "phase=Lunch", "after=" + "9" * 100):
        await api.fails(400, "BadRequest", "GET", f"{EVENTS}?{query}")


async def test_bad_gradings_are_refused_with_every_path(attempt: Api) -> None:
    body = {
        "phase": "Lunch",
        "step": -1,
        "completions": [{"taskId": 5, "sample": -1, "completion": 5}, "x"],
        "answers": [],
    }
    assert set(causes(await attempt.fails(422, "Invalid", "POST", f"{TRAINING_JOBS}/run/gradings", json=body))) == {
        "phase",
        "step",
        "answers",
        "completions[0].taskId",
        "completions[0].sample",
        "completions[0].completion",
        "completions[1]",
    }
    too_many = {"phase": "Training", "step": 1, "completions": [{"taskId": "t", "completion": ""}] * 4097}
    await attempt.fails(422, "Invalid", "POST", f"{TRAINING_JOBS}/run/gradings", json=too_many)


async def test_gradings_and_tasks_go_to_the_training_service(attempt: Api, services: Services) -> None:
    calls: list[Any] = []

    class Training:
        async def task_files(self, obj: Object) -> dict[str, str]:
            return {"train.jsonl": "{}\n", "test.jsonl": ""}

        async def grade(
            self, obj: Object, attempt: str, phase: str, step: int, completions: list[Any], *, beside: str
        ) -> list[Any]:
            calls.append((obj.name, attempt, phase, step, completions, beside))
            return [{"taskId": "t", "sample": 0, "verdict": "Correct", "outcome": "Passed", "reward": 1.0}]

    services.training = Training()
    completions = [{"taskId": "t", "sample": 0, "completion": "4"}]
    body = {"phase": "Training", "step": 3, "completions": completions}
    assert (await attempt.ok("POST", f"{TRAINING_JOBS}/run/gradings", json=body))["verdicts"][0]["verdict"] == "Correct"
    (made,) = services.store.read_sync(objects.list_, ATTEMPT, None).items
    assert calls == [("run", "run-1", "Training", 3, completions, made.uid)]
    assert (await attempt.ok("POST", f"{TRAINING_JOBS}/run/tasks", json={}))["files"].keys() == {
        "train.jsonl",
        "test.jsonl",
    }


async def test_episodes_are_graded_by_their_turns_and_go_on_with_steps(attempt: Api, services: Services) -> None:
    calls: list[Any] = []

    class Training:
        async def grade(self, *args: Any, beside: str) -> list[Any]:
            calls.append(args[1:])
            return []

        async def step(self, *args: Any, beside: str) -> list[Any]:
            calls.append(args[1:])
            return [{"taskId": "t", "sample": 1, "messages": None}]

    services.training = Training()
    episode = {"taskId": "t", "sample": 1, "turns": ["a", ""]}
    await attempt.ok(
        "POST", f"{TRAINING_JOBS}/run/gradings", json={"phase": "Training", "step": 3, "completions": [episode]}
    )
    body = {"phase": "Evaluation", "step": 0, "episodes": [episode]}
    answer = await attempt.ok("POST", f"{TRAINING_JOBS}/run/steps", json=body)
    assert answer == {"replies": [{"taskId": "t", "sample": 1, "messages": None}]}
    assert calls == [("run-1", "Training", 3, [episode]), ("run-1", "Evaluation", 0, [episode])]


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"taskId": "t", "turns": []}, ".turns"),
        ({"taskId": "t", "turns": ["x"] * 65}, ".turns"),
        ({"taskId": "t", "turns": "x"}, ".turns"),
        ({"taskId": "t", "turns": None}, ".turns"),
        ({"taskId": "t", "turns": ["x", 5]}, ".turns[1]"),
        ({"taskId": "", "turns": ["x"]}, ".taskId"),
        ({"taskId": "t", "sample": True, "turns": ["x"]}, ".sample"),
        ("x", ""),
    ],
)
async def test_bad_turns_are_refused_with_their_path(attempt: Api, item: Any, path: str) -> None:
    for name, sub in (("completions", "gradings"), ("episodes", "steps")):
        body = {"phase": "Training", "step": 1, name: [{"taskId": "t", "turns": ["x"]}, item]}
        refused = await attempt.fails(422, "Invalid", "POST", f"{TRAINING_JOBS}/run/{sub}", json=body)
        assert set(causes(refused)) == {f"{name}[1]{path}"}


async def test_completion_beside_turns_and_steps_without_turns_are_refused(attempt: Api) -> None:
    both = [{"taskId": "t", "turns": ["x"], "completion": "x"}, {"taskId": "t", "completion": ["x"]}]
    body: dict[str, Any] = {"phase": "Training", "step": 1, "completions": both}
    refused = await attempt.fails(422, "Invalid", "POST", f"{TRAINING_JOBS}/run/gradings", json=body)
    assert set(causes(refused)) == {"completions[0]", "completions[1].completion"}
    body = {"phase": "Training", "step": 1, "episodes": [{"taskId": "t", "completion": "x"}], "answers": 1}
    refused = await attempt.fails(422, "Invalid", "POST", f"{TRAINING_JOBS}/run/steps", json=body)
    assert set(causes(refused)) == {"episodes[0].turns", "answers"}


async def test_steps_are_the_attempts_own(api: Api, attempt: Api) -> None:
    body = {"phase": "Training", "step": 1, "episodes": [{"taskId": "t", "turns": ["x"]}]}
    await api.fails(403, "Forbidden", "POST", f"{TRAINING_JOBS}/run/steps", json=body)


async def test_gradings_may_be_larger_than_other_bodies(attempt: Api, services: Services) -> None:
    body = {
        "phase": "Training",
        "step": 1,
        "completions": [{"taskId": "t", "sample": 0, "completion": "x" * 2_000_000}],
    }
    answer = await attempt.call("POST", f"{TRAINING_JOBS}/run/gradings", json=body)
    assert answer.status_code == 422
    body["completions"] = [{"taskId": "t", "sample": 0, "completion": "x" * 9_000_000}]
    await attempt.fails(413, "RequestEntityTooLarge", "POST", f"{TRAINING_JOBS}/run/gradings", json=body)
