"""From a Job's spec to what runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodus.server.compute.base import InputFile, Mount, OutputRule, StartRefused
from nodus.server.controllers import memberspec
from nodus.server.controllers.memberspec import Request, Resolved
from nodus.server.store import Object

Make = Callable[..., Object]


@pytest.mark.parametrize(
    ("resources", "request_"),
    [
        (None, Request(1.0, 2 << 30)),
        ({"cpu": 2, "memory": "4Gi"}, Request(2.0, 4 << 30)),
        ({"cpu": "500m", "gpu": "H100:8"}, Request(0.5, 2 << 30, 8)),
        ({"gpu": {"type": ["H100"], "count": 2}}, Request(1.0, 2 << 30, 2)),
    ],
)
def test_request_has_defaults(resources: Any, request_: Request) -> None:
    assert memberspec.request_of({"resources": resources} if resources else {}) == request_


def test_environment_is_the_users_with_secrets_filled_in() -> None:
    spec = {
        "secrets": ["hf", {"name": "pinned", "version": 3}],
        "env": [
            {"name": "PLAIN", "value": "x"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "other", "key": "t", "version": 2}}},
            {"name": "A", "value": "own"},
        ],
    }
    other, newest, pinned = ("other", 2), ("hf", None), ("pinned", 3)
    assert memberspec.secret_keys(spec) == [other, newest, pinned]
    values = {newest: {"HF_TOKEN": "1", "A": "secret"}, pinned: {"P": "2"}, other: {"t": "3"}}
    assert memberspec.environment(spec, values) == {"HF_TOKEN": "1", "P": "2", "PLAIN": "x", "TOKEN": "3", "A": "own"}
    with pytest.raises(StartRefused, match="no key 't'"):
        memberspec.environment(spec, {**values, other: {"u": "3"}})


def test_mounted_secrets_are_files_and_no_variables() -> None:
    spec = {"secrets": ["hf", {"name": "hf", "version": 1, "mount": True}]}
    values = {("hf", None): {"HF_TOKEN": "new"}, ("hf", 1): {"HF_TOKEN": "old", "b.pem": "text"}}
    assert memberspec.environment(spec, values) == {"HF_TOKEN": "new"}
    assert memberspec.secret_files(spec, values) == {
        "/run/secrets/hf/HF_TOKEN": "old",
        "/run/secrets/hf/b.pem": "text",
    }


@pytest.mark.parametrize(
    ("outputs", "rules"),
    [
        (None, [OutputRule("", "/nodus/outputs")]),
        ([{"name": "outputs", "path": "/nodus/outputs/"}], [OutputRule("", "/nodus/outputs/")]),
        ([{"name": "a", "path": "/nodus/outputs/adapter"}], [OutputRule("a", "/nodus/outputs/adapter")]),
        ([{"name": "logs", "path": "/workspace/logs"}], [OutputRule("logs", "/workspace/logs")]),
    ],
)
def test_outputs_are_named_by_their_path_or_by_their_output(outputs: Any, rules: list[OutputRule]) -> None:
    assert memberspec.output_rules({"outputs": outputs}) == rules


def test_member_of_a_training_job(make_object: Make) -> None:
    spec = {
        "image": "nodus/grpo-lora:2.0.0",
        "command": ["python", "-m", "nodus.trainer"],
        "args": ["--x"],
        "resources": {"cpu": 2, "memory": "4Gi"},
        "inputs": [{"name": "params", "path": "/nodus/inputs/params/params.json", "blob": "sha256:" + "a" * 64}],
        "volumes": [
            {"volume": "model", "mountPath": "/nodus/inputs/model", "readOnly": True},
            {"volume": "d", "mountPath": "/d"},
        ],
        "source": {"blob": "sha256:" + "b" * 64},
    }
    job = make_object("Job", "run", spec=spec, labels={"nodus.dev/trainingjob": "run"})
    attempt = make_object("Attempt", "run-2", spec={"job": "run", "epoch": 2})
    made = memberspec.build(job, attempt, Resolved({}, ["/v/model", "/v/d"], "/jobs/1/state", "tok"), 60.0)
    assert (made.key, made.command, made.token, made.timeout_s) == (
        attempt.uid,
        ["python", "-m", "nodus.trainer", "--x"],
        "tok",
        60.0,
    )
    assert made.mounts == [Mount("/v/model", "/nodus/inputs/model", True), Mount("/v/d", "/d", False)]
    assert made.inputs == [InputFile("a" * 64, "/nodus/inputs/params/params.json")]
    assert (made.source, made.cpu, made.memory_bytes, made.state_dir) == ("b" * 64, 2.0, 4 << 30, "/jobs/1/state")
    assert {name: made.env[name] for name in ("NODUS_ATTEMPT", "NODUS_JOB", "NODUS_TRAINING_JOB", "NODUS_PROJECT")} == {
        "NODUS_ATTEMPT": "run-2",
        "NODUS_JOB": "run",
        "NODUS_TRAINING_JOB": "run",
        "NODUS_PROJECT": "default",
    }


@pytest.mark.parametrize(
    "more",
    [
        {"command": []},
        {"network": {"egress": {"policy": "Open"}}},
        {"sidecars": [{"command": ["x"]}]},
        {"distributed": {"nodes": 2}},
    ],
)
def test_what_is_not_built_is_refused_and_not_ignored(make_object: Make, more: dict[str, Any]) -> None:
    job = make_object("Job", spec={"command": ["x"], **more})
    with pytest.raises(StartRefused):
        memberspec.build(job, make_object("Attempt", "a", spec={"job": "job", "epoch": 1}), Resolved(), None)


@pytest.mark.parametrize(("spent_s", "left_s"), [(None, 60), (0, 60), (20, 40), (70, 0)])
def test_remaining_time_counts_from_the_first_start(make_object: Make, spent_s: float | None, left_s: float) -> None:
    start_s = None if spent_s is None else 1000.0 - spent_s
    assert memberspec.remaining_s(make_object("Job", spec={"timeout": "1m"}), 1000.0, start_s) == left_s
    assert memberspec.remaining_s(make_object("Job", spec={}), 1000.0, start_s) is None
