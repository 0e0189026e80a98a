"""Two GRPO steps of a tiny model, with baseline and final evaluation, on environments of every ecosystem.

The trainer is a process of its own, as in a Job; the environments are in grading sandboxes with their real libraries.
What stands between them is a few lines here instead of the server.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodus.server.compute.graders import GraderRoot
from nodus.server.grading import Completion, GradingService, ResolvedEnvironment
from nodus.server.grading.episodes import Episode
from nodus.server.grading.verdicts import OUTCOMES
from nodus.testing.models import tiny_llama
from nodus.testing.trainer_run import TrainerRun
from tests.integration.grading.conftest import MakeEnvironment
from tests.integration.grading.images import on_env_base, unpacked
from tests.integration.grading.test_adapters import ECOSYSTEMS, made
from tests.integration.grading.test_verifiers import HUB, packages
from tests.interop._published import Unreachable

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300)]

PARAMETERS: dict[str, Any] = {
    "steps": 2,
    "batchSize": 8,
    "gradientAccumulation": 1,
    "numGenerations": 4,
    "learningRate": 0.01,
    "maxCompletionLength": 8,
    "sampling": {"temperature": 1.0},
    "gradientCheckpointing": False,
    "lora": {"r": 4, "dropout": 0.0},
}
Make = Callable[[MakeEnvironment, list[str]], ResolvedEnvironment]


def hub(module: str, version: str) -> Make:
    """Return what makes an environment of ``verifiers``."""

    def make(_: MakeEnvironment, names: list[str]) -> ResolvedEnvironment:
        names.append(f"trained-{module}-{version}")
        digest = f"sha256:{names[-1]}"
        return ResolvedEnvironment(names[-1], "1.0.0", digest, module, HUB, timeout_s=20.0, packages=packages(version))

    return make


def adapted(name: str) -> Make:
    """Return what makes an environment of another ecosystem."""
    return lambda make_environment, _: made(ECOSYSTEMS[name], make_environment)


IMAGE = """
def tasks(split):
    return [{"prompt": f"{split}: say {n}", "answer": str(n)} for n in range(12)]

def step(turns, answer):
    return ("Again." if len(turns) < 2 else None), float(answer in turns[-1])
"""


def imaged(make_environment: MakeEnvironment, names: list[str]) -> ResolvedEnvironment:
    """Return an environment of several turns in an image."""
    bundled = make_environment(IMAGE).directory
    assert bundled is not None
    place = bundled.with_name("image")
    place.mkdir()
    root = unpacked(place, on_env_base(IMAGE))
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "NODUS_ENVIRONMENT_LOADER": "task"}
    names.append("trained-image")
    where = GraderRoot(root, "/usr/local/bin/nodus-env", env)
    return ResolvedEnvironment(names[-1], "1.0.0", f"sha256:{names[-1]}", "", timeout_s=20.0, root=where)


CALLS = [
    f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
    for name, arguments in [
        *(("count_chairs", f'{{"room": "{room}"}}') for room in ("library", "kitchen", "attic", "nowhere")),
        *(("multiply", f'{{"a": {a}, "b": 3}}') for a in range(20)),
    ]
]
"""What the tiny model may say in one token."""
HEAVY = [pytest.mark.heavy]
CASES = [
    pytest.param(hub("tool_test", "0.3.1"), 3, id="verifiers 0.3.1, tools", marks=HEAVY),
    pytest.param(hub("word_guess", "0.3.1"), 3, id="verifiers 0.3.1, turns", marks=HEAVY),
    pytest.param(hub("tool_test", "0.1.14"), 3, id="verifiers 0.1.14, tools", marks=HEAVY),
    pytest.param(hub("word_guess", "0.1.3.post0"), 3, id="verifiers 0.1.3.post0, turns", marks=HEAVY),
    pytest.param(adapted("openenv 0.10.0"), 3, id="openenv 0.10.0"),
    pytest.param(imaged, 2, id="image, turns", marks=HEAVY),
    pytest.param(adapted("reasoning-gym 0.1.25"), 1, id="reasoning-gym 0.1.25", marks=HEAVY),
    pytest.param(adapted("verl"), 1, id="verl", marks=HEAVY),
    pytest.param(adapted("skyrl-gym 0.4.0"), 1, id="skyrl-gym 0.4.0", marks=HEAVY),
]


class Bridge:
    """Answers a trainer's requests from a grading service, whose event loop runs in another thread."""

    def __init__(self, service: GradingService, environment: ResolvedEnvironment) -> None:
        self.service, self.environment = service, environment
        self.loop = asyncio.get_running_loop()
        self.verdicts: list[tuple[str, str]] = []
        self.steps = 0

    def __call__(self, verb: str, body: dict[str, Any], number: int) -> tuple[int, Any] | None:
        work = {"gradings": self.grade, "steps": self.step}.get(verb)
        return None if work is None else (200, asyncio.run_coroutine_threadsafe(work(body), self.loop).result(200))

    async def grade(self, body: dict[str, Any]) -> dict[str, Any]:
        items = [
            Completion(
                row["taskId"], row["sample"], row.get("completion", ""), tuple(row["turns"]) if "turns" in row else None
            )
            for row in body["completions"]
        ]
        verdicts = await self.service.grade("job", self.environment, items, 1)
        self.verdicts += [(body["phase"], verdict.verdict) for verdict in verdicts]
        keys = ("task_id", "sample", "verdict", "reward")
        rows = [dict(zip(("taskId", *keys[1:]), (getattr(v, key) for key in keys), strict=True)) for v in verdicts]
        return {"verdicts": [{**row, "outcome": OUTCOMES[row["verdict"]]} for row in rows]}

    async def step(self, body: dict[str, Any]) -> dict[str, Any]:
        episodes = [Episode(row["taskId"], row["sample"], tuple(row["turns"])) for row in body["episodes"]]
        self.steps += len(episodes)
        replies = await self.service.step("job", self.environment, episodes, 1)
        return {"replies": [reply.to_wire() for reply in replies]}


@pytest.mark.parametrize(("make", "turns"), CASES)
async def test_environments_of_every_ecosystem_train(
    make: Make,
    turns: int,
    service: GradingService,
    make_environment: MakeEnvironment,
    environment_names: list[str],
    tmp_path: Path,
) -> None:
    try:
        environment = make(make_environment, environment_names)
    except Unreachable as error:
        pytest.skip(f"the library is not installed here, and the package index can't be reached: {error}")
    train, test = [(await service.tasks(environment, split, 0)).tasks[:8] for split in ("train", "test")]
    model = tiny_llama(tmp_path / "tiny", tools=True, vocabulary=string.printable, words=CALLS, positions=4096)
    parameters = {**PARAMETERS, "maxTurns": turns, "maxLength": 3000}
    evaluation = {"baseline": True, "final": True, "minComparisonTasks": 4}
    run = TrainerRun(tmp_path / "run", model, parameters, evaluation=evaluation)
    bridge = Bridge(service, environment)
    files = [[task.public() for task in tasks] for tasks in (train, test)]
    with run.server(*files, lambda *_: None) as server:
        server.intercept = bridge
        process = run.start_warm()
        assert await asyncio.to_thread(process.wait, 200) == 0, run.log()
    assert [event["step"] for event in server.events_of("Metrics")] == [1, 2]
    assert len(bridge.verdicts) == 2 * 8 + 2 * len(test)
    assert "InfrastructureFailure" not in {verdict for _, verdict in bridge.verdicts}
    assert (bridge.steps > 0) == (turns > 1)
    results = run.output("results.json")
    assert results["evaluation"]["errors"] == 0
    if turns > 1:
        assert max(event["turns"] for event in server.events_of("Metrics")) > 1
        assert max(event["environmentTokens"] for event in server.events_of("Metrics")) > 0
