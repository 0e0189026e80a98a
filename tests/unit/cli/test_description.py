"""`nodus describe` says all that the documentation promises of environments and training jobs."""

from __future__ import annotations

from typing import Any

from nodus.cli.description import describe

ENVIRONMENT: dict[str, Any] = {
    "kind": "Environment",
    "metadata": {"name": "sums", "namespace": "nodus"},
    "spec": {
        "version": "2.0.0", "summary": "Adds numbers.", "category": "Math", "modes": ["Train", "Evaluate"],
        "licenses": {"code": "Apache-2.0", "data": "CC0"}, "sampleTask": "What is 1 + 1?\nOnly the number.",
        "graders": [{"name": "last", "kind": "ExactMatch", "description": "The last integer."}],
        "examples": [
            {"name": "ex1", "runtime": "nodus/grpo-lora", "model": {"uri": "hf://a/b"}, "baseline": {"passRate": "0.1"},
             "trained": {"passRate": "0.8"}, "changePP": "70"},
            {"name": "ex2", "mode": "Evaluate", "runtime": "nodus/evaluate", "model": {"uri": "hf://a/b"}},
        ],
        "heldOutMeasures": ["Other sums."],
    },
    "status": {"phase": "Ready", "splits": {"train": 233, "test": 128}, "digest": "sha256:abc"},
}  # fmt: skip
RUN: dict[str, Any] = {
    "kind": "TrainingJob",
    "metadata": {"name": "run", "namespace": "default", "uid": "u", "labels": {"team": "x"}},
    "spec": {"runtime": "nodus/grpo-lora", "model": {"uri": "hf://a/b"}, "environment": {"name": "nodus/sums@2.0.0"}},
    "status": {
        "phase": "Running", "progress": {"stage": "Training"},
        "metrics": {"step": 3, "totalSteps": 40, "loss": "0.12", "reward": "0.5", "kl": "0.01",
                    "tokensPerSecond": "812"},
        "checkpoint": {"seq": 2, "time": "2026-01-01T00:00:00Z", "size": 2048},
        "cost": {"totalUSD": "0.12", "limitUSD": "5.00"},
        "summary": {"baseline": {"tasks": 64, "passed": 16, "passRate": "0.25", "errors": 0}},
        "provenance": {"managed": True, "runtimeDigest": "sha256:r", "modelRevision": "c1"},
        "outputs": [{"name": "adapter/adapter_model.safetensors", "sizeBytes": 12}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "Ok", "message": "fine"}],
    },
}  # fmt: skip


def lines_of(obj: dict[str, Any], attempts: list[dict[str, Any]] | None = None) -> list[str]:
    return [" ".join(line.split()) for line in describe(obj, attempts or [], [])]


def test_environment() -> None:
    said = lines_of(ENVIRONMENT)
    for line in (
        "Reference: nodus/sums@2.0.0", "Summary: Adds numbers.", "Licenses: code: Apache-2.0, data: CC0",
        "Splits: train 233, test 128", "last ExactMatch The last integer.", "Sample task: What is 1 + 1?",
        "ex1 Train nodus/grpo-lora hf://a/b 0.1 0.8 70", "Held out: Other sums.",
        "ex2 Evaluate nodus/evaluate hf://a/b not measured",
    ):  # fmt: skip
        assert line in "\n".join(said), line


def test_environment_with_episodes_and_tools() -> None:
    status = {"ecosystem": "verifiers", "episodes": True, "maxTurns": 6, "tools": True}
    said = "\n".join(lines_of({**ENVIRONMENT, "status": {**ENVIRONMENT["status"], **status}}))
    for line in (
        "Made with: verifiers",
        "Episodes: yes, of at most 6 turns: set parameters.maxTurns of a TrainingJob",
        "Tools: the model may call tools: its chat template must offer them",
    ):
        assert line in said
    assert "Episodes" not in "\n".join(lines_of(ENVIRONMENT))


def test_training_job() -> None:
    attempts = [
        {
            "metadata": {"name": "run-1"},
            "status": {
                "phase": "Running",
                "placement": {"offering": "local-cpu", "regionClass": "local", "rateUSDPerHour": "0.10"},
            },
        }
    ]
    said = lines_of(RUN, attempts)
    for line in (
        "Phase: Running", "Stage: Training", "Step: 3 of 40, reward 0.5, loss 0.12, kl 0.01, 812 tokens/s",
        "Checkpoint: 2 at 2026-01-01T00:00:00Z, 2Ki", "Placement: local-cpu, local, $0.10 an hour",
        "Cost: $0.12 so far of at most $5.00", "runtimeDigest: sha256:r", "modelRevision: c1",
        "adapter/adapter_model.safetensors 12", "Ready True Ok fine", "run-1 Running",
    ):  # fmt: skip
        assert line in "\n".join(said), line


def test_kinds_without_lines_of_their_own_show_their_spec() -> None:
    said = lines_of({"kind": "Budget", "metadata": {"name": "b"}, "spec": {"limitUSD": "5", "period": {"days": 30}}})
    assert said[-4:] == ["Spec:", "limitUSD: '5'", "period:", "days: 30"]


def test_sandbox() -> None:
    sandbox = {
        "kind": "Sandbox",
        "metadata": {"name": "dev", "namespace": "default"},
        "spec": {
            "image": "nodus/agent-tools", "resources": {"cpu": "1", "memory": "1Gi"}, "state": "Running",
            "lifecycle": {"idleTimeout": "10m", "maxLifetime": "2h"}, "secrets": ["hub", {"name": "s", "version": 2}],
            "env": [{"name": "LEVEL", "value": "high"}], "maxCostUSD": "5.00",
        },
        "status": {
            "phase": "Stopped", "reason": "Idle", "stopReason": "Idle", "activity": "Idle", "processCount": 3,
            "startTime": "2026-01-01T00:00:00Z", "stopTime": "2026-01-01T00:10:00Z", "recoveries": 0,
            "attempt": {"name": "sb-dev-ab12-1", "epoch": 1, "node": "n"}, "cost": {"totalUSD": "0.10"},
            "image": {"reference": "nodus/agent-tools", "digest": "sha256:d", "user": "10001"},
        },
    }  # fmt: skip
    said = lines_of(sandbox)
    for line in (
        "Phase: Stopped (Idle)", "Image: nodus/agent-tools sha256:d", "Resources: cpu 1, memory 1Gi",
        "When idle: Stop after 10m", "Lifetime: 2h", "Secrets: hub, s@2", "Environment: LEVEL", "Activity: Idle",
        "Started: 2026-01-01T00:00:00Z", "Stopped: 2026-01-01T00:10:00Z", "Stop reason: Idle",
        "Attempt: sb-dev-ab12-1, start 1", "Processes: 3 so far", "Cost: $0.10 so far",
    ):  # fmt: skip
        assert line in said, line
    assert not {"Spec:", "Status:"} & set(said)
    assert "high" not in "\n".join(said)


def test_process() -> None:
    process = {
        "kind": "Process",
        "metadata": {"name": "sb-dev-3", "namespace": "default"},
        "spec": {"command": ["sh", "-c", "exit 3"], "tty": True, "stdin": True, "sandbox": "dev", "number": 3},
        "status": {
            "phase": "Failed", "reason": "NonZeroExitCode", "exitCode": 3, "startTime": "2026-01-01T00:00:00Z",
            "completionTime": "2026-01-01T00:00:01Z",
        },
    }  # fmt: skip
    said = lines_of(process)
    for line in (
        "Phase: Failed (NonZeroExitCode)", "Sandbox: dev", "Number: 3", "Command: sh -c 'exit 3'",
        "With: a terminal and input", "Ended: 2026-01-01T00:00:01Z", "Exit code: 3",
    ):  # fmt: skip
        assert line in said, line
    assert not {"Spec:", "Status:"} & set(said)
