"""Whole runs, each attempt a process of its own: learning, resuming to the same bytes, and failing with a reason."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from nodus.testing.eventually import eventually
from nodus.trainer.files import sha256_of
from tests.integration.trainer.conftest import HELD_OUT, TRAIN, letters

pytestmark = pytest.mark.timeout(240)

EVALUATED = {"evaluation": {"baseline": True, "final": True, "minComparisonTasks": 4}}
DROPOUT = {"lora": {"r": 4, "dropout": 0.2}}
TORCHRUN = ("-m", "nodus.trainer.torchrun", "--standalone", "--nproc-per-node=1", "--max-restarts=0")
WAIT_S = 120


def adapter_digest(run):
    return sha256_of(run.directory / "outputs" / "adapter" / "adapter_model.safetensors")


def without_times(events):
    timed = ("stepSeconds", "klSeconds", "tokensPerSecond")
    return [{k: v for k, v in event.items() if k not in timed} for event in events]


def finish(run, attempt="att1"):
    code = run.start_warm(attempt).wait(WAIT_S)
    assert code == 0, run.log(attempt)


def kill_after_checkpoint(run, server, attempt, step):
    """Start an attempt and kill it, unasked, once it has graded the step after the checkpoint of ``step``."""
    process = run.start_warm(attempt)
    marker = run.directory / "state" / "checkpoints" / f"checkpoint-{step}" / "complete.json"
    eventually(
        lambda: process.poll() is not None or (marker.exists() and (step + 1) in steps_graded(server, attempt)),
        timeout_s=WAIT_S,
    )
    assert process.poll() is None, run.log(attempt)
    process.kill()
    assert process.wait(WAIT_S) == -signal.SIGKILL


def steps_graded(server, attempt):
    return {step for step, _, _ in server.phase("Training", attempt)}


def test_run_learns_and_leaves_everything_it_promises(runs):
    run = runs(parameters={"steps": 16, "learningRate": 0.03, "numGenerations": 8, "batchSize": 8}, **EVALUATED)
    with run.server(TRAIN, HELD_OUT, letters) as server:
        assert run.start().wait(WAIT_S) == 0, run.log()  # python -m nodus.trainer itself
    results = run.output("results.json")
    assert results["evaluation"]["meanReward"] > results["baseline"]["meanReward"] + 0.2
    metrics = server.events_of("Metrics")
    assert sum(m["reward"] for m in metrics[-4:]) / 4 > sum(m["reward"] for m in metrics[:4]) / 4 + 0.2
    assert [m["step"] for m in metrics] == list(range(1, 17))
    wanted = (
        "reward rewardStd loss kl learningRate entropy completionLength tokensPerSecond noContrastShare stepSeconds"
    )
    assert all(isinstance(m[name], float) for m in metrics for name in wanted.split())
    assert [e["stage"] for e in server.events_of("Stage")] == ["Baseline", "Training", "Evaluating"]
    assert server.events_of("Diagnostics") == [{"id": "diagnostics", "type": "Diagnostics", "weightsChanged": True}]
    assert len(server.phase("Baseline")) == len(server.phase("Evaluation")) == len(HELD_OUT)
    assert len(server.phase("Training")) == 16 * 16

    outputs = run.directory / "outputs"
    names = {p.relative_to(outputs).as_posix() for p in outputs.rglob("*") if p.is_file()}
    required = {"adapter/adapter_config.json", "adapter/adapter_model.safetensors", "adapter/tokenizer.json"}
    assert names >= {*required, "results.json", "provenance.json", "manifest.json"}
    manifest = run.output("manifest.json")["files"]
    assert manifest.keys() == names - {"manifest.json"}
    assert all(entry["sha256"] == sha256_of(outputs / name) for name, entry in manifest.items())
    assert (
        json.loads((outputs / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == "test/tiny"
    )
    assert results["samples"][0].keys() == {"taskId", "prompt", "before", "after"}
    assert run.output("provenance.json")["effective"]["precision"] == "fp32"


def test_same_seed_gives_the_same_adapter_and_another_seed_does_not(runs):
    digests = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run = runs(name, {"seed": seed, **DROPOUT})
        with run.server(TRAIN, HELD_OUT, letters):
            finish(run)
        digests.append(adapter_digest(run))
    assert digests[0] == digests[1] != digests[2]


def test_run_under_torchrun_is_the_run_of_a_single_process(runs):
    digests = []
    for name, launcher in (("plain", ()), ("launched", TORCHRUN)):
        run = runs(name, DROPOUT)
        with run.server(TRAIN, HELD_OUT, letters):
            # A process group, even of one, would look for this interface and fail.
            assert run.start(launcher=launcher, GLOO_SOCKET_IFNAME="nowhere0").wait(WAIT_S) == 0, run.log()
        digests.append(adapter_digest(run))
    assert digests[0] == digests[1]


def test_trainer_that_fails_under_torchrun_has_the_last_word(runs):
    run = runs(parameters={"batchSize": 0})
    assert run.start(launcher=TORCHRUN).wait(WAIT_S) == 2
    assert run.message()["reason"] == "Invalid"
    assert all(line.startswith(("nodus.trainer: ", "spec.")) for line in run.log().splitlines()), run.log()


@pytest.mark.parametrize(
    ("parameters", "kill_after"),
    [
        # Within an epoch (16 tasks, 2 a step: 8 steps), at its end, and within the second.
        ({"steps": 10, "saveSteps": 3}, 6),
        ({"steps": 10, "saveSteps": 4}, 8),
        ({"steps": 11, "saveSteps": 9}, 9),
        # A generation batch of two updates: saved at its end, not within.
        ({"steps": 8, "saveSteps": 3, "generationBatchSize": 16}, 4),
    ],
)
def test_killed_run_resumes_to_the_adapter_of_an_unbroken_one(runs, parameters, kill_after):
    given = {**parameters, **DROPOUT}
    unbroken = runs("unbroken", given, **EVALUATED)
    with unbroken.server(TRAIN, HELD_OUT, letters) as server:
        finish(unbroken)
    expected = without_times(server.events_of("Metrics"))

    broken = runs("broken", given, **EVALUATED)
    with broken.server(TRAIN, HELD_OUT, letters) as server:
        kill_after_checkpoint(broken, server, "att1", kill_after)
        finish(broken, "att2")
    assert adapter_digest(broken) == adapter_digest(unbroken)
    assert without_times(server.events_of("Metrics", "att2")) == expected[kill_after:]
    assert server.phase("Baseline", "att2") == {}
    assert broken.output("results.json")["baseline"] == {
        **unbroken.output("results.json")["baseline"],
        "seconds": broken.output("results.json")["baseline"]["seconds"],
    }
    assert broken.output("results.json")["training"]["resumedFromStep"] == kill_after


def test_run_killed_while_it_evaluates_trains_no_further(runs):
    run = runs(**EVALUATED)
    with run.server(TRAIN, HELD_OUT, letters) as server:
        process = run.start_warm("att1")
        eventually(lambda: process.poll() is not None or server.phase("Evaluation", "att1"), timeout_s=WAIT_S)
        process.kill()
        process.wait(WAIT_S)
        finish(run, "att2")
    assert steps_graded(server, "att2") == set()
    assert len(server.phase("Evaluation", "att2")) == len(HELD_OUT)
    assert run.output("results.json")["training"]["weightsChanged"] is True


def test_damaged_checkpoint_falls_back_to_the_one_before(runs):
    run = runs(parameters={"steps": 8, "saveSteps": 2, "saveTotalLimit": 3, **DROPOUT})
    with run.server(TRAIN, HELD_OUT, letters) as server:
        finish(run)
        expected = adapter_digest(run)
        checkpoints = run.directory / "state" / "checkpoints"
        shutil.rmtree(checkpoints / "checkpoint-8")
        weights = checkpoints / "checkpoint-6" / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-7])
        finish(run, "att2")
    assert "checkpoint-6 is not whole" in run.log("att2")
    assert steps_graded(server, "att2") == {5, 6, 7, 8}
    assert adapter_digest(run) == expected


def test_epochs_decide_the_steps_when_steps_is_minus_one(runs):
    run = runs(parameters={"steps": -1, "epochs": 1.5})
    with run.server(TRAIN, HELD_OUT, letters) as server:
        finish(run)
    metrics = server.events_of("Metrics")
    assert [m["step"] for m in metrics] == list(range(1, 13))
    assert {m["totalSteps"] for m in metrics} == {12}
    first_epoch = {task for step, task, _ in server.phase("Training") if step <= 8}
    assert first_epoch == {row["taskId"] for row in TRAIN}


def test_state_of_another_configuration_is_refused_naming_both(runs):
    run = runs()
    with run.server(TRAIN, HELD_OUT, letters):
        finish(run)
        run.params["configurationDigest"] = "sha256:changed"
        assert run.start_warm("att2").wait(WAIT_S) == 2
    message = run.message("att2")
    assert message["reason"] == "StateMismatch"
    assert "this run has sha256:changed" in message["message"]
    assert "the state has sha256:" in message["message"]


def test_grader_that_keeps_failing_stops_the_run_with_its_reason(runs):
    def broken(task_id, completion):
        raise RuntimeError("no grader")

    run = runs(parameters={"batchSize": 8, "numGenerations": 8})
    with run.server(TRAIN, HELD_OUT, broken):
        assert run.start_warm().wait(WAIT_S) == 2
    assert run.message()["reason"] == "GraderFailed"
    assert "could not be graded" in run.message()["message"]


def test_servers_error_becomes_the_message_of_the_run(runs):
    run = runs()
    status = {
        "kind": "Status",
        "code": 422,
        "reason": "EnvironmentTasksFailed",
        "message": "tasks('train') raised KeyError: 'x'",
        "fix": "correct tasks() and publish a new version",
    }
    with run.server(TRAIN, HELD_OUT, letters) as server:
        server.intercept = lambda verb, body, number: (422, status)
        assert run.start_warm().wait(WAIT_S) == 2
    assert run.message() == {**{k: status[k] for k in ("reason", "message", "fix")}, "retryable": False}


def test_full_fine_tuning_writes_a_model(runs):
    run = runs(parameters={"steps": 2, "method": "Full", "learningRate": 0.001})
    with run.server(TRAIN, HELD_OUT, letters) as server:
        finish(run)
    names = {p.name for p in (run.directory / "outputs" / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert server.events_of("Diagnostics")[0]["weightsChanged"] is True


def test_evaluate_mode_grades_once_and_trains_nothing(runs):
    run = runs(
        parameters={},
        task="Evaluate",
        mode="Evaluate",
        runtime={"name": "nodus/evaluate", "digest": "sha256:runtime"},
    )
    run.params["parameters"] = {"evaluationBatchSize": 3, "maxCompletionLength": 8}
    with run.server([], HELD_OUT, letters) as server:
        finish(run)
    assert len(server.phase("Evaluation")) == len(HELD_OUT)
    assert [len(b) for b in _batches(server)] == [3, 3, 2]
    assert [e["stage"] for e in server.events_of("Stage")] == ["Evaluating"]
    assert run.output("results.json")["evaluation"]["tasks"] == len(HELD_OUT)
    assert not (run.directory / "outputs" / "adapter").exists()


def test_validation_passes_come_every_eval_steps_and_not_after_the_last(runs):
    run = runs(parameters={"steps": 4, "evalSteps": 2}, evaluation={"baseline": False, "final": True})
    with run.server(TRAIN, HELD_OUT, letters) as server:
        finish(run)
    assert {step for step, _, _ in server.phase("Evaluation")} == {2, 4}
    assert [m["step"] for m in server.events_of("Metrics") if "validationPassRate" in m] == [2]


def _batches(server):
    keys = [key for verb, key in server.requests if verb == "gradings"]
    rows = list(server.phase("Evaluation"))
    size = -(-len(rows) // len(keys))
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def test_outputs_of_a_killed_attempt_do_not_mix_with_the_next(runs):
    run = runs(parameters={"steps": 2})
    left = run.directory / "outputs" / "adapter" / "left-behind.bin"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"partial")
    with run.server(TRAIN, HELD_OUT, letters):
        finish(run)
    assert not Path(left).exists()
