"""A thousand completions graded at once while graders are killed: one verdict for each, none of them a false 0."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nodus.core.kinds import ENVIRONMENT, TRAINING_JOB
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.compute.local.probe import probe
from nodus.server.grading import EnvironmentLibrary, GradingService, StoredManifests
from nodus.server.store import Object, Store, objects, taskevents
from nodus.server.training.service import TrainingService
from tests.integration.grading.conftest import bundle, processes_with

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]

RUNS = 10
TASKS = 100
KILLS = 20
"""Two in a hundred completions lose their grader, and with it up to three more that are asked again."""
SOURCE = f"""
import time

def tasks(split):
    return [(f"{{split}} {{n}}", str(n)) for n in range({TASKS})]

def reward(completion, answer):
    time.sleep(0.005)
    return float(completion == "right")
"""


def put_runs(store: Store, name: str) -> list[Object]:
    blob = store.blobs.put_bytes(bundle({"nodus_task.py": SOURCE}))
    spec = {"version": "1.0.0", "package": {"source": {"blob": f"sha256:{blob}", "module": "nodus_task"}}}
    store.write_sync(objects.create, ENVIRONMENT, "default", name, spec, status={"phase": "Ready"})
    run = {
        "runtime": "nodus/grpo-lora",
        "environment": {"name": f"{name}@1.0.0", "trainTasks": TASKS},
        "grading": {"maxParallel": 2},
    }
    status = {"phase": "Running", "pinned": {"seed": 0, "trainTasks": TASKS, "heldOutTasks": 0}}
    return [
        store.write_sync(objects.create, TRAINING_JOB, "default", f"run-{n}", run, status=status) for n in range(RUNS)
    ]


class Killer(threading.Thread):
    """Kills random graders (the process that waits for completions, or the sandbox around it), one after the other."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.killed = 0
        self._name = name
        self._random = random.Random(7)

    def run(self) -> None:
        while not self.over.wait(0.05) and self.killed < KILLS:
            graders = [pid for pid in processes_with(self._name) if not is_of_a_completion(pid)]
            if graders:
                try:
                    os.kill(self._random.choice(graders), signal.SIGKILL)
                    self.killed += 1
                except ProcessLookupError:
                    continue


def is_of_a_completion(pid: int) -> bool:
    """Whether it is the fork that scores one completion: its end is that completion's alone."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return True
    inside = status["NSpid"].split()
    return len(inside) > 1 and inside[-1] != "1"


@pytest.fixture
def _isolation() -> None:
    if not (found := probe()).ok:
        pytest.skip(f"this machine cannot isolate: {found.problems}")


@pytest.mark.usefixtures("_isolation")
async def test_killed_graders_cost_no_completion_its_reward(store: Store, tmp_path: Path) -> None:
    grading = GradingService(
        EnvironmentLibrary(tmp_path / "environments", store.blobs.path), StoredManifests(store), LocalGraders()
    )
    service, name = TrainingService(store, grading), f"env-{secrets.token_hex(6)}"
    runs = put_runs(store, name)
    killer = Killer(name)
    try:
        tasks = [row.task_id for row in (await grading.tasks(await resolve(grading, store, name), "train", 0)).tasks]
        given = [{"taskId": task, "sample": 0, "completion": "right"} for task in tasks]
        killer.start()
        answers = await asyncio.gather(*(service.grade(run, "a-1", "Training", 1, given) for run in runs))
    finally:
        killer.over.set()
        await grading.close()
    verdicts = [verdict for answer in answers for verdict in answer]
    assert killer.killed >= RUNS * TASKS // 100
    assert [verdict["taskId"] for answer in answers for verdict in answer] == tasks * RUNS
    # a completion whose grader died twice over it may be no more than a failure to grade
    rewards = Counter((verdict["verdict"], verdict["reward"]) for verdict in verdicts)
    assert rewards.keys() <= {("Correct", 1.0), ("InfrastructureFailure", None)} and rewards["Correct", 1.0] >= 990
    for run, answer in zip(runs, answers, strict=True):
        events, _ = store.read_sync(taskevents.list_, run.uid, type_="Task")
        assert Counter(event["taskId"] for event in events) == Counter(tasks)
        assert {(e["taskId"], e["reward"]) for e in events} == {(v["taskId"], v["reward"]) for v in answer}
    assert any(event["evidence"]["tries"] > 1 for event in all_events(store, runs))


def all_events(store: Store, runs: list[Object]) -> list[dict[str, Any]]:
    return [event for run in runs for event in store.read_sync(taskevents.list_, run.uid, type_="Task")[0]]


async def resolve(grading: GradingService, store: Store, name: str) -> Any:
    found = store.read_sync(objects.get, ENVIRONMENT, "default", name)
    return await grading.resolve(name, found.spec)
