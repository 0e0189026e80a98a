"""The examples from start to end, and training from Python, with a tiny random model on a real server process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nodus import errors
from nodus.client.config import config_path, save_context
from nodus.recipes import rl
from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.hub import FakeHub

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(400)]

TASKS = [(f"Say {number % 10}.", str(number % 10)) for number in range(10)]
TASKS += [(f"Say the digit {number % 10} for the {number}th time.", str(number % 10)) for number in range(30)]
DIGITS = "0123456789"


def reward(completion: str, answer: str) -> float | None:
    """Score the share of digits; only a reply of digits alone is right."""
    if not completion:
        return None
    return sum(char in DIGITS for char in completion) / len(completion) * (1.0 if answer in completion else 0.5)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A server whose default model is a tiny random one, from a hub of its own."""
    from nodus.testing.models import tiny_llama

    root = tmp_path_factory.mktemp("examples")
    model = tiny_llama(root / "tiny")
    with pytest.MonkeyPatch.context() as patch, FakeHub() as hub:
        hub.add("acme/tiny", {path.name: path.read_bytes() for path in model.iterdir()})
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HUB_OFFLINE", "0")
        patch.setenv("NODUS_SERVER_DEFAULT_MODEL", "hf://acme/tiny")
        yield up(UpOptions(data_dir=root / "data", port=0, detach=True, issue_key=True))
        down(DownOptions(data_dir=root / "data"))


@pytest.fixture(autouse=True)
def _configured(started: Started) -> None:
    """Let this test's home know the server."""
    assert started.api_key
    save_context(config_path(), name="nodus", url=started.url, org="nodus", api_key=started.api_key)


def run_module(module: str, *arguments: str, cwd: Path) -> str:
    """Run an example as a user does and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_quickstart_from_start_to_end(tmp_path: Path) -> None:
    out = run_module("nodus.examples.quickstart", "--steps", "2", cwd=tmp_path)
    assert "over nodus/arithmetic@2.0.0" in out
    assert "step       2/2   reward " in out
    assert "before training: " in out and "after training: " in out
    assert "cost:            $" in out
    assert f"adapter:         {tmp_path / 'outputs' / 'adapter'}" in out
    assert "held-out tasks, before and after" in out and "What is " in out
    assert "Stop it with nodus down" in out
    assert (tmp_path / "outputs" / "adapter" / "adapter_model.safetensors").stat().st_size > 0
    assert json.loads((tmp_path / "outputs" / "results.json").read_text())
    ElementTree.parse(tmp_path / "outputs" / "training.svg")
    # A random model learns nothing in two steps, and the example says so.
    assert "fell short of the 25" in out or "can't be compared" in out


def test_own_reward_example_from_start_to_end(tmp_path: Path) -> None:
    out = run_module("nodus.examples.rl", cwd=tmp_path)
    assert "step     30/30   reward " in out
    assert "still wrong: " in out
    assert (tmp_path / "outputs" / "adapter").is_dir()


def test_reward_function_trains_from_python(started: Started, tmp_path: Path) -> None:
    settings = {"steps": 2, "group_size": 4, "groups_per_step": 2, "max_tokens": 8, "learning_rate": 1e-3, "lora": 4}
    run = rl.train(TASKS, reward, max_cost=1, **settings)  # type: ignore[arg-type]
    run.watch(every=0.2)
    assert run.phase == "Succeeded"
    assert [item.step for item in run.metrics()] == [1, 2]
    assert run.summary.baseline.tasks == run.summary.evaluation.tasks == 16
    graded = run.tasks(phase="Evaluation")
    assert len(graded) == 16 and all(task.completion is not None for task in graded)
    assert {task.task_id for task in graded} == set(run.prompts("test"))
    assert len(run.prompts("train")) == len(TASKS) - 16
    assert {task.outcome for task in run.tasks(outcome="Failed")} <= {"Failed"}
    written = run.outputs.download(tmp_path)
    assert tmp_path / "manifest.json" in written
    again = rl.train(TASKS, reward, **settings)  # type: ignore[arg-type]
    assert again.spec.environment == run.spec.environment
    again.cancel()
    with pytest.raises(errors.JobFailed, match="cancelled"):
        again.wait(timeout=60)


async def test_evaluation_is_awaited(started: Started) -> None:
    run = await rl.evaluate.aio("nodus/arithmetic@2.0.0", tasks=16, max_tokens=8)
    status = await run.wait.aio(timeout=120)
    assert status.summary.evaluation.tasks == 16
