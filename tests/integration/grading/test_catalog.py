"""The catalog's environments as they ship: the same tasks everywhere, and verdicts from real graders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodus.server.catalog import read_catalog
from nodus.server.grading import Completion, EnvironmentLibrary, GradingService, ResolvedEnvironment

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

CATALOG = {d["metadata"]["name"]: d["spec"] for d in read_catalog() if d["kind"] == "Environment"}
SEED = 42
_LIST = """
import json, sys
from nodus.grader.loading import load
from nodus.grader.tasks import ordered
for name, version, loader in json.loads(sys.argv[1]):
    environment = load(loader, [], name, version)
    for split in ("train", "test"):
        tasks = [[task.id, task.prompt] for task in ordered(environment.split(split), int(sys.argv[2]))]
        print(json.dumps([name, split, tasks]))
"""


def _listed(hash_seed: str) -> dict[tuple[str, str], Any]:
    """Every catalog environment's tasks in a process of its own."""
    library = EnvironmentLibrary(Path(), Path)
    wanted = [[name, spec["version"], library.resolve(name, spec).loader] for name, spec in CATALOG.items()]
    done = subprocess.run(
        [sys.executable, "-c", _LIST, json.dumps(wanted), str(SEED)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        check=True,
        timeout=100,
    )
    return {(name, split): tasks for name, split, tasks in map(json.loads, done.stdout.splitlines())}


async def test_same_name_version_and_seed_are_the_same_tasks_in_every_process(service: GradingService) -> None:
    first, second = _listed("1"), _listed("2")
    assert first == second
    for name, spec in CATALOG.items():
        if "requirements" not in spec:  # the others take seconds to start; their check lists them in sandboxes too
            environment = service.library.resolve(name, spec)
            sandboxed = (await service.tasks(environment, "test", SEED)).tasks
            assert [[task.task_id, task.prompt] for task in sandboxed] == first[name, "test"], name
        ids = [{task_id for task_id, _ in first[name, split]} for split in ("train", "test")]
        prompts = [{json.dumps(prompt) for _, prompt in first[name, split]} for split in ("train", "test")]
        assert not ids[0] & ids[1] and not prompts[0] & prompts[1], name
        assert spec["splits"] == {split: {"size": len(first[name, split])} for split in ("train", "test")}
        sample = str(spec["sampleTask"]).rpartition("user: ")[2]  # of chat messages, the last one
        listed = [prompt for split in ("train", "test") for _, prompt in first[name, split]]
        assert sample in [prompt if isinstance(prompt, str) else prompt[-1]["content"] for prompt in listed], name


def catalog_environment(service: GradingService, name: str, **changes: Any) -> ResolvedEnvironment:
    return service.library.resolve(name, {**CATALOG[name], **changes})


async def _verdicts(service: GradingService, environment: ResolvedEnvironment, replies: list[str]) -> list[str]:
    """The verdicts of replies to the first held-out task; ``{answer}`` in a reply is its answer."""
    task = (await service.list_tasks(environment, "test", SEED, answers=True)).tasks[0]
    items = [
        Completion(task.task_id, number, reply.replace("{answer}", str(task.answer)))
        for number, reply in enumerate(replies)
    ]
    return [verdict.verdict for verdict in await service.grade("job", environment, items)]


@pytest.mark.parametrize("graders", [None, []], ids=["inside the server", "in a sandbox"])
async def test_gsm8k_is_graded_by_the_last_number(service: GradingService, graders: list[Any] | None) -> None:
    changes = {} if graders is None else {"graders": graders}
    environment = catalog_environment(service, "gsm8k", **changes)
    replies = ["Let me see.\n#### ${answer}.00", "{answer}, then 0.5", "I can't tell.", "import os; os._exit(0)", ""]
    assert await _verdicts(service, environment, replies) == [
        "Correct", "Incorrect", "InvalidOutput", "Incorrect", "InvalidOutput",
    ]  # fmt: skip
    assert (service.graders == 0) == (graders is None)


async def test_legacy_letter_counting_scores_the_raw_reply_in_a_sandbox(service: GradingService) -> None:
    environment = catalog_environment(service, "letter-counting-legacy-rl")
    (task, *_) = (await service.tasks(environment, "test", SEED)).tasks
    assert isinstance(task.prompt, list) and [message["role"] for message in task.prompt] == ["system", "user"]
    letter, text = task.prompt[1]["content"].partition('letter "')[2].split('" appear in the text: ')
    count = str(text.lower().count(letter))
    replies = [count, f"{count}\n", f"The answer is {count}", "none", "", "import os; os._exit(0)"]
    items = [Completion(task.task_id, number, reply) for number, reply in enumerate(replies)]
    verdicts = await service.grade("job", environment, items)
    assert [v.verdict for v in verdicts] == ["Correct"] + ["Incorrect"] * 5
    assert [v.reward for v in verdicts] == [1.0, len(count) / (len(count) + 1), len(count) / len(replies[2]), 0, 0, 0]
