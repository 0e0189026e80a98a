"""The handle of a run: starting, following, results."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest

import nodus
from nodus import errors
from nodus.client.dollars import usd
from nodus.client.following import PlainDisplay, comparison_lines, sparkline
from nodus.client.training import TrainingJob
from tests.unit.client.fake_server import Asked, FakeServer, Reply

RUNS = "/apis/nodus.dev/v1beta1/namespaces/default/trainingjobs"


def run_object(phase: str = "Running", **state: Any) -> dict[str, Any]:
    return {
        "apiVersion": "nodus.dev/v1beta1", "kind": "TrainingJob",
        "metadata": {"name": "run-1", "namespace": "default", "resourceVersion": "1"},
        "spec": {"runtime": "nodus/grpo-lora"}, "status": {"phase": phase, **state},
    }  # fmt: skip


SUMMARY = {
    "baseline": {"tasks": 64, "passed": 25, "failed": 39, "passRate": "0.390625"},
    "evaluation": {"tasks": 64, "passed": 53, "failed": 10, "errors": 1, "passRate": "0.8412698"},
    "comparison": {"comparable": True, "changePP": "45.1", "intervalPP": ["30.0", "60.2"], "reason": "Comparable"},
}


def metrics(step: int, attempt: str = "a-1") -> dict[str, Any]:
    return {
        "id": f"metrics-{step}", "attempt": attempt, "type": "Metrics", "step": step, "totalSteps": 2, "reward": 0.5,
        "loss": 0.01, "kl": 0.0002,
    }  # fmt: skip


class Story:
    """A run that goes on each time it is looked at."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = list(states)
        self.events: list[dict[str, Any]] = []

    def __call__(self, asked: Asked) -> Reply:
        if asked.path.endswith("/taskevents"):
            after = int(asked.query.get("after", 0))
            page = self.events[after : after + 1]
            more = len(self.events) > after + 1
            return Reply({"items": page, **({"continue": str(after + 1)} if more else {})})
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        self.events = state.pop("events", self.events)
        return Reply(state)


def story(server: FakeServer) -> TrainingJob:
    server.script = Story(
        run_object("Queued", message="waiting for a free CPU"),
        run_object(progress={"stage": "Baseline"}, job="run-1"),
        run_object(progress={"stage": "Training"}, job="run-1") | {"events": [metrics(1)]},
        run_object("Succeeded", progress={"stage": "Evaluating"}, job="run-1", summary=SUMMARY)
        | {"events": [metrics(1), metrics(2)]},
    )
    return TrainingJob(run_object("Queued"), server.client())


def test_updates_tell_stages_steps_scores_and_end(server: FakeServer) -> None:
    seen = [(update.type, update.stage, update.metrics.get("step")) for update in story(server).updates(every=0)]
    assert seen == [
        ("Stage", "Queued", None), ("Stage", "Baseline", None), ("Stage", "Training", None), ("Metrics", "Training", 1),
        ("Metrics", "Evaluating", 2), ("Scores", "Evaluating", None), ("End", "Succeeded", None),
    ]  # fmt: skip


async def test_updates_are_the_same_awaited(server: FakeServer) -> None:
    seen = [update.type async for update in story(server).updates.aio(every=0)]
    assert seen == ["Stage", "Stage", "Stage", "Metrics", "Metrics", "Scores", "End"]


def test_watch_prints_a_line_for_each(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert story(server).watch(every=0).phase == "Succeeded"
    assert capsys.readouterr().out.splitlines() == [
        "run-1: Queued: waiting for a free CPU",
        "run-1: Baseline (scoring the held-out tasks before training)",
        "run-1: Training (sampling replies, grading them, updating the adapter)",
        "step       1/2   reward 0.500   loss 0.0100   KL 0.00020",
        "step       2/2   reward 0.500   loss 0.0100   KL 0.00020",
        "run-1: Succeeded",
        "before training: 39.1%  (25 of 64 tasks)",
        "after training:  84.1%  (53 of 64 tasks, 1 not graded)",
        "change:          +45.1 points (95% interval +30.0 to +60.2)",
    ]


def test_watch_raises_when_the_run_failed(server: FakeServer) -> None:
    server.script = Story(
        run_object("Failed", reason="GraderFailed", message="9 of 10 replies were not graded", fix="Look at it.")
    )
    with pytest.raises(errors.JobFailed, match="run-1 failed: GraderFailed: 9 of 10") as raised:
        TrainingJob(run_object(), server.client()).watch(every=0)
    assert raised.value.fix == "Look at it."
    assert raised.value.details == {"reason": "GraderFailed", "phase": "Failed"}


def test_metrics_of_a_repeated_step_are_the_newest_attempts(server: FakeServer) -> None:
    server.script = Story(run_object() | {"events": [metrics(1), metrics(2), metrics(2, "a-2") | {"reward": 0.9}]})
    run = TrainingJob(run_object(), server.client())
    run.refresh()
    assert [(item.step, item.reward) for item in run.metrics()] == [(1, 0.5), (2, 0.9)]


def test_tasks_are_filtered_by_phase_there_and_outcome_here(server: FakeServer) -> None:
    events = [
        {"id": str(n), "attempt": "a", "taskId": f"t{n}", "outcome": outcome}
        for n, outcome in enumerate(("Passed", "Failed"))
    ]
    server.script = Story(run_object() | {"events": events})
    run = TrainingJob(run_object(), server.client())
    run.refresh()
    assert [task.task_id for task in run.tasks(phase="Evaluation", outcome="Failed")] == ["t1"]
    assert server.asked[-1].query["phase"] == "Evaluation"


def test_cancel_asks_for_the_state(server: FakeServer) -> None:
    server.script = lambda asked: Reply(run_object())
    TrainingJob(run_object(), server.client()).cancel()
    assert (server.asked[0].method, server.asked[0].json) == ("PATCH", {"spec": {"state": "Cancelled"}})


# Outputs
def outputs_server(
    server: FakeServer, content: bytes = b"adapter", digest: str | None = None, names: Any = None
) -> None:
    digest = digest or hashlib.sha256(content).hexdigest()

    def script(asked: Asked) -> Reply:
        if asked.path.endswith("/outputs"):
            return Reply({"items": [{"name": name} for name in names or ["adapter/a.bin", "results.json"]]})
        if "/outputs/" in asked.path:
            return Reply(None, 302, {"Location": f"{server.url}/signed/x", "X-Nodus-SHA256": digest})
        return Reply(content)

    server.script = script


def test_outputs_are_downloaded_below_the_directory(server: FakeServer, tmp_path: Path) -> None:
    outputs_server(server)
    outputs = TrainingJob(run_object(), server.client()).outputs
    assert outputs.list() == ["adapter/a.bin", "results.json"]
    written = outputs.download(tmp_path / "out")
    assert [path.relative_to(tmp_path).as_posix() for path in written] == ["out/adapter/a.bin", "out/results.json"]
    assert written[0].read_bytes() == b"adapter"
    signed = [asked for asked in server.asked if asked.path == "/signed/x"]
    assert signed and all("authorization" not in asked.headers for asked in signed)


async def test_outputs_are_downloaded_awaited(server: FakeServer, tmp_path: Path) -> None:
    outputs_server(server)
    written = await TrainingJob(run_object(), server.client()).outputs.download.aio(tmp_path, prefix="adapter/")
    assert [path.name for path in written] == ["a.bin"]


def test_output_with_other_bytes_is_not_kept(server: FakeServer, tmp_path: Path) -> None:
    outputs_server(server, digest="0" * 64)
    (tmp_path / "results.json").write_text("old")
    with pytest.raises(errors.SHA256Mismatch):
        TrainingJob(run_object(), server.client()).outputs.download(tmp_path, prefix="results")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("results.json", "old")]


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil"])
def test_output_that_leads_outside_is_refused(server: FakeServer, tmp_path: Path, name: str) -> None:
    outputs_server(server, names=[name])
    with pytest.raises(errors.NodusError, match="leads outside"):
        TrainingJob(run_object(), server.client()).outputs.download(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_no_outputs_yet_is_said(server: FakeServer, tmp_path: Path) -> None:
    server.script = lambda asked: Reply({"items": []})
    with pytest.raises(errors.NotFound, match="no outputs yet"):
        TrainingJob(run_object(), server.client()).outputs.download(tmp_path)


# Starting
EXAMPLE = {"name": "ex1", "mode": "Train", "runtime": "nodus/grpo-lora", "model": {"uri": "hf://m"}, "tasks": 64,
           "parameters": {"steps": 5}}  # fmt: skip


def catalog_server(server: FakeServer, *examples: dict[str, Any]) -> None:
    environment = {
        "kind": "Environment", "metadata": {"name": "coloring", "namespace": "nodus"},
        "spec": {"version": "1.0.0", "examples": list(examples), "splits": {"train": {"size": 900}}}, "status": {},
    }  # fmt: skip

    def script(asked: Asked) -> Reply:
        if asked.method == "GET":
            return Reply(environment)
        return Reply(asked.json | {"status": {"phase": "Queued"}}, 201, {"ETag": '"plan"'})

    server.script = script


@pytest.mark.parametrize("reference", ["nodus/coloring:ex1", "nodus/coloring@1.0.0:ex1", "nodus/coloring@1.0.0"])
def test_example_becomes_a_run(server: FakeServer, reference: str) -> None:
    catalog_server(server, EXAMPLE)
    run = nodus.TrainingJob.from_example(reference, max_cost=5, client=server.client())
    assert run.spec.environment == {"name": "nodus/coloring@1.0.0", "trainTasks": 512, "heldOutTasks": 64, "seed": 42}
    assert run.spec.parameters == {"steps": 5}
    assert run.spec.max_cost_usd == "5.00"
    assert run.metadata.labels == {"example.nodus.dev/name": "coloring.ex1"}
    planned, created = server.asked[1:]
    assert (planned.query, created.query) == ({"dryRun": "All"}, {})
    assert created.headers["if-match"] == '"plan"'


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nodus/coloring:ex9", "has no example 'ex9'"),
        ("nodus/coloring@2.0.0:ex1", "has version 1.0.0, not 2.0.0"),
        ("nodus/coloring", "has several examples: ex1, ex2"),
        ("nodus/", "names no example"),
    ],
)
def test_example_that_is_not_there_is_named(server: FakeServer, reference: str, message: str) -> None:
    catalog_server(server, EXAMPLE, EXAMPLE | {"name": "ex2"})
    with pytest.raises(errors.NodusError, match=message):
        nodus.TrainingJob.from_example(reference, client=server.client())


def test_preview_tells_what_a_run_would_take_and_starts_none(server: FakeServer) -> None:
    estimate = {"costUSD": {"p50": "1.00", "p90": "1.50"}, "blockingReasons": [{"code": "NoGPU", "message": "no H100"}]}
    server.script = lambda asked: Reply(asked.json | {"status": {"estimate": estimate}}, headers={"ETag": '"plan"'})
    spec = {"runtime": "nodus/grpo-lora", "model": None}
    plan = nodus.TrainingJob.preview(spec, labels={"team": "a"}, client=server.client())
    assert (plan.object.status.estimate.cost_usd.p90, plan.blocking, plan.etag) == ("1.50", ["no H100"], '"plan"')
    (asked,) = server.asked
    assert asked.path.endswith("/trainingjobs") and asked.query == {"dryRun": "All"}
    assert asked.json["spec"] == {"runtime": "nodus/grpo-lora"}
    assert asked.json["metadata"] == {"generateName": "run-", "namespace": "default", "labels": {"team": "a"}}


def test_blocked_plan_is_not_started(server: FakeServer) -> None:
    blocked = {"estimate": {"blockingReasons": [{"code": "NoGPU", "message": "no H100 here"}]}}
    server.script = lambda asked: Reply(asked.json | {"status": blocked})
    with pytest.raises(errors.NodusError, match="could not start here: no H100 here"):
        nodus.TrainingJob.create({"runtime": "nodus/grpo-lora"}, client=server.client())
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (2, "2.00"),
        ("2.5", "2.50"),
        (0.125, "0.125"),
        (1e-6, "0.000001"),
        (None, None),
        ("0.0000019", "0.0000019"),
        (1e-9, "0.000000001"),
        (0.1 + 0.2, "0.30"),
        ("1e3", "1000.00"),
    ],
)
def test_dollars_on_the_wire(amount: Any, text: str | None) -> None:
    assert usd(amount) == text


@pytest.mark.parametrize("amount", [0, -1, "free", float("nan"), float("inf"), 1e-10, True, 1e22])
def test_dollars_that_are_none(amount: Any) -> None:
    with pytest.raises(errors.Invalid, match="max_cost"):
        usd(amount)


# Shown
def test_sparkline_is_as_wide_as_it_may_be() -> None:
    assert sparkline([]) == ""
    assert sparkline([1.0]) == "▁"
    assert sparkline([0, 0.5, 1]) == "▁▅█" or sparkline([0, 0.5, 1]) == "▁▄█"
    assert len(sparkline([float(n) for n in range(500)], width=60)) == 60


def test_comparison_that_says_nothing_gives_its_reason() -> None:
    comparison = {"comparable": False, "reason": "TooFewTasks", "note": "8 tasks are too few"}
    assert comparison_lines({"comparison": comparison}) == ["no comparison:   TooFewTasks: 8 tasks are too few"]
    assert comparison_lines({}) == []


def test_live_view_draws_bars_and_table(server: FakeServer) -> None:
    from rich.console import Console

    from nodus.client.following import LiveDisplay

    out = io.StringIO()
    run = story(server)
    with LiveDisplay(run, Console(file=out, force_terminal=True, width=100)) as view:
        for update in run.updates(every=0):
            view.show(update)
    text = out.getvalue()
    for expected in ("Reward", "Loss", "KL", "1/2", "0.500", "after training:", "+45.1"):
        assert expected in text


def test_plain_view_is_used_off_a_terminal() -> None:
    from nodus.client.following import display_for

    assert isinstance(display_for(None, io.StringIO()), PlainDisplay)  # type: ignore[arg-type]
