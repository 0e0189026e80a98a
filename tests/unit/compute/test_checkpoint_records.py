"""Records of checkpoints: numbers that go on, sizes of whatever is there, and whose answer counts."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from nodus.server.compute.local import checkpoints
from nodus.server.compute.local.checkpoints import Checkpoints, Plan, measure
from nodus.server.compute.local.eventsocket import Ask
from nodus.server.compute.local.httpmessages import Refused, Request
from nodus.server.compute.local.reported import read_reported


def plan(**more: Any) -> Plan:
    given: dict[str, Any] = {"paths": ["/nodus/state"], "hosts": [], "seq": 0, "interval_s": None, **more}
    return Plan(**given)


def post(target: str, body: bytes = b"") -> Request:
    return Request("POST", target, [], body)


def test_size_is_of_plain_files_and_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * 1000)
    state = tmp_path / "state"
    (state / "deep").mkdir(parents=True)
    (state / "a").write_bytes(b"12345")
    (state / "deep" / "b").write_bytes(b"123")
    (state / "link").symlink_to(outside)
    (state / "loop").symlink_to(state)
    os.mkfifo(state / "pipe")
    assert measure([str(state), str(tmp_path / "missing")]) == 8


def test_size_that_takes_too_long_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MEASURED_FILES", 3)
    for number in range(5):
        (tmp_path / str(number)).touch()
    assert measure([str(tmp_path)]) is None
    assert "size" not in Checkpoints(tmp_path, plan(hosts=[str(tmp_path)])).record("Program")


def test_numbers_go_on_and_are_given_once(tmp_path: Path) -> None:
    records = Checkpoints(tmp_path, plan(seq=7))
    threads = [threading.Thread(target=records.record, args=("Program",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_reported(tmp_path).checkpoint
    assert (found["seq"], found["count"]) == (15, 8)


def test_checkpoint_that_is_not_written_is_no_checkpoint(tmp_path: Path) -> None:
    records = Checkpoints(tmp_path / "missing", plan())
    with pytest.raises(OSError, match="missing"):
        records.record("Program")
    with pytest.raises(Refused) as refused:
        records.serve(post("/_nodus/v1/checkpoints"))
    assert refused.value.status == 503
    (tmp_path / "missing").mkdir()
    assert records.record("Program")["seq"] == 1


@pytest.mark.parametrize(
    "target", ["/self", "/_nodus/v1/checkpointsx", "/_nodus/v1/checkpoints/other", "/_nodus/v1/volumes"]
)
def test_other_requests_are_the_servers(tmp_path: Path, target: str) -> None:
    assert Checkpoints(tmp_path, plan()).serve(post(target)) is None


def test_request_is_answered_by_saving_where_it_is_the_one_that_was_asked(tmp_path: Path) -> None:
    records = Checkpoints(tmp_path, plan(), answer=lambda request_id: request_id == "asked")
    answer = records.serve(post("/_nodus/v1/checkpoints?x=1", json.dumps({"requestId": "asked"}).encode()))
    assert answer is not None
    status, body = answer
    assert (status, body["seq"], body["trigger"], body["requestId"]) == (201, 1, "Requested", "asked")
    with pytest.raises(Refused, match="'other'"):
        records.serve(post("/_nodus/v1/checkpoints", b'{"requestId":"other"}'))
    with pytest.raises(Refused, match="takes POST"):
        records.serve(Request("GET", "/_nodus/v1/checkpoints", [], b""))


def test_kept_directories_are_found_among_the_mounts() -> None:
    spec = {
        "checkpoint": {"paths": ["/workspace/kept/", "/nodus/state"], "seq": 3, "intervalSeconds": 60},
        "mounts": [
            {"host": "/h/state", "path": "/nodus/state", "readonly": False},
            {"host": "/h/kept", "path": "/workspace/kept", "readonly": False},
            {"host": "/h/data", "path": "/workspace/kept-not", "readonly": False},
            {"host": "/usr", "path": "/usr", "readonly": True},
        ],
    }
    found = Plan.of(spec)
    assert (found.hosts, found.seq, found.interval_s) == (["/h/state", "/h/kept"], 3, 60.0)
    assert Plan.of({"mounts": spec["mounts"]}) == Plan([], [], 0, None)


@pytest.mark.parametrize(
    ("waiting", "answered", "state"),
    [({1}, False, "Waiting"), ({1}, True, "Waiting"), (set(), True, "Ready"), (set(), False, "Gone")],
)
def test_request_is_answered_when_all_who_are_left_have_answered(waiting: set[int], answered: bool, state: str) -> None:
    ask = Ask("a", {1, 2})
    ask.waiting, ask.answered = waiting, answered
    assert ask.state == state
