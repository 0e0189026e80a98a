"""A run's episodes from the first reply to the verdict, in real sandboxes: played, paid for, failed, and told again."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nodus.core.errors import Conflict
from nodus.core.kinds import ATTEMPT, ENVIRONMENT, TRAINING_JOB
from nodus.core.money import NANO
from nodus.server.billing.pricebook import PriceBook
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.compute.local.probe import probe
from nodus.server.grading import EnvironmentLibrary, GradingService, StoredManifests
from nodus.server.store import Object, Store, ledger, objects, taskevents
from nodus.server.training.service import TrainingService
from tests.integration.grading.conftest import bundle

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

PRICES = PriceBook("test", {"CPU": 0, "default": 0}, grading=3600 * NANO)
TOOL = {"type": "function", "function": {"name": "guess", "parameters": {"type": "object"}}}
SOURCE = f"""
def tasks(split):
    return [{{"prompt": f"{{split}} {{n}}", "answer": n, "tools": [{TOOL!r}]}} for n in range(4)]

def step(turns, answer):
    if turns[-1] == "raise":
        raise KeyError("state")
    said = [int(turn) for turn in turns if turn.isdigit()]
    if answer in said:
        return None, 1.0
    return [{{"role": "tool", "content": "higher" if not said or said[-1] < answer else "lower"}}], 0.0
"""


@pytest.fixture
async def service(store: Store, tmp_path: Path) -> AsyncIterator[TrainingService]:
    if not (found := probe()).ok:
        pytest.skip(f"this machine cannot isolate: {found.problems}")
    grading = GradingService(
        EnvironmentLibrary(tmp_path / "environments", store.blobs.path), StoredManifests(store), LocalGraders()
    )
    yield TrainingService(store, grading, PRICES)
    await grading.close()


@pytest.fixture
def run(store: Store) -> Object:
    name = f"env-{secrets.token_hex(6)}"
    blob = store.blobs.put_bytes(bundle({"nodus_task.py": SOURCE}))
    spec = {"version": "1.0.0", "package": {"source": {"blob": f"sha256:{blob}", "module": "nodus_task"}}}
    store.write_sync(objects.create, ENVIRONMENT, "default", name, spec, status={"phase": "Ready"})
    wanted = {"runtime": "nodus/grpo-lora", "environment": {"name": f"{name}@1.0.0", "trainTasks": 4}}
    status = {"phase": "Running", "pinned": {"seed": 0, "trainTasks": 4, "heldOutTasks": 4}}
    store.write_sync(
        objects.create, ATTEMPT, "default", "run-1", {"job": "run", "epoch": 1}, status={"phase": "Running"}
    )
    store.write_sync(ledger.grant, 10_000 * NANO, "start")
    made: Object = store.write_sync(objects.create, TRAINING_JOB, "default", "run", wanted, status=status)
    return made


async def test_episodes_are_played_to_their_end_and_graded_once(
    service: TrainingService, store: Store, run: Object
) -> None:
    rows = [json.loads(line) for line in (await service.task_files(run))["train.jsonl"].splitlines()]
    assert all(row["tools"] == [TOOL] for row in rows)
    played: dict[str, list[str]] = {row["taskId"]: [] for row in rows}
    going_on = list(played)
    for guess in range(4):  # each task's number is found at a turn of its own
        asked: list[dict[str, Any]] = [
            {"taskId": task, "sample": 0, "turns": [*played[task], str(guess)]} for task in going_on
        ]
        replies = await service.step(run, "run-1", "Training", 1, asked)
        played |= {episode["taskId"]: episode["turns"] for episode in asked}
        going_on = [reply["taskId"] for reply in replies if reply["messages"] is not None]
        higher = [{"role": "tool", "content": "higher"}]
        assert all(reply["messages"] in (None, higher) for reply in replies) and len(going_on) == 3 - guess
    given = [{"taskId": task, "sample": 0, "turns": turns} for task, turns in played.items()]
    verdicts = await service.grade(run, "run-1", "Training", 1, given)
    assert [verdict["reward"] for verdict in verdicts] == [1.0] * 4
    assert await service.grade(run, "run-1", "Training", 1, given) == verdicts
    cost = store.read_sync(ledger.cost_of, run.uid)
    assert cost.total > 0 and cost.held == 0


async def test_environment_that_fails_within_an_episode_is_no_reward(
    service: TrainingService, store: Store, run: Object
) -> None:
    task = json.loads((await service.task_files(run))["test.jsonl"].splitlines()[0])["taskId"]
    bad: dict[str, Any] = {"taskId": task, "sample": 0, "turns": ["7", "raise"]}
    (reply,) = await service.step(run, "run-1", "Baseline", 0, [bad])
    assert "step raised KeyError: 'state'" in reply["error"] and "messages" not in reply
    (verdict,) = await service.grade(run, "run-1", "Baseline", 0, [bad])
    assert (verdict["verdict"], verdict["outcome"], verdict["reward"]) == ("InfrastructureFailure", "Error", None)
    (event,), _ = store.read_sync(taskevents.list_, run.uid, type_="Task")
    assert "KeyError" in event["evidence"]["traceback"] and event["turns"] == ["7", "raise"]
    with pytest.raises(Conflict):
        await service.grade(run, "run-1", "Baseline", 0, [{**bad, "turns": ["7"]}])
    assert store.read_sync(ledger.cost_of, run.uid).total == 0  # what failed in an environment is not the run's
