"""Environments of the catalog that score in the grader's own process: the wall limit, blame, and a grader that dies."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from nodus.server.grading import Completion, GradingService, ResolvedEnvironment
from nodus.testing.eventually import eventually
from tests.integration.grading.conftest import processes_with

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

HANGS = '{"":' * 300_000
"""Many seconds of a decoder's work in C, where no other thread of Python runs."""


@pytest.fixture
async def coloring(service: GradingService, environment_names: list[str]) -> ResolvedEnvironment:
    spec = {
        "version": "1.0.0",
        "package": {"catalog": {"module": "graph_coloring"}},
        "sandbox": {"timeout": "1s"},
    }
    environment_names.append(f"coloring-{os.getpid()}")
    return await service.resolve(environment_names[-1], spec)


async def test_thousands_come_back_in_order_without_a_process_for_each(
    service: GradingService, coloring: ResolvedEnvironment
) -> None:
    tasks = (await service.tasks(coloring, "train", 0)).tasks
    replies = ["", '{"0": 1}', "{}", "no"]
    items = [Completion(tasks[n % 1000].task_id, n, replies[n % 4]) for n in range(12_000)]
    verdicts = await service.grade("job", coloring, items, 2)
    assert [(v.task_id, v.sample) for v in verdicts] == [(i.task_id, i.sample) for i in items]
    expected = ["InvalidOutput", "Incorrect", "Incorrect", "InvalidOutput"]
    assert [v.verdict for v in verdicts] == [expected[n % 4] for n in range(12_000)]
    assert verdicts[0].evidence["exitCode"] is None and "processMs" in verdicts[0].evidence
    assert len({v.evidence["outputSHA256"] for v in verdicts[:100]}) == 100


async def test_completion_that_takes_too_long_is_the_only_one_that_fails(
    service: GradingService, coloring: ResolvedEnvironment
) -> None:
    tasks = (await service.tasks(coloring, "train", 0)).tasks
    texts = ["{}"] * 40 + [HANGS] + ["{}"] * 80
    items = [Completion(tasks[n].task_id, n, text) for n, text in enumerate(texts)]
    verdicts = await service.grade("job", coloring, items, 1)
    for verdict, text in zip(verdicts, texts, strict=True):
        if text == "{}":
            assert (verdict.verdict, verdict.evidence["tries"]) == ("Incorrect", 1)
        else:
            assert (verdict.verdict, verdict.reward) == ("InfrastructureFailure", None)
            assert verdict.reason == "reward ran longer than 1 s and was killed"
            assert verdict.evidence["exitCode"] == signal.SIGALRM


async def test_grader_that_is_killed_costs_no_completion_its_verdict(
    service: GradingService, coloring: ResolvedEnvironment
) -> None:
    tasks = (await service.tasks(coloring, "train", 0)).tasks
    items = [Completion(tasks[n % 1000].task_id, n, "{}") for n in range(20_000)]
    grading = asyncio.create_task(service.grade("job", coloring, items, 2))
    for _ in range(3):
        await asyncio.to_thread(eventually, lambda: processes_with(coloring.name))
        for pid in processes_with(coloring.name)[:1]:
            os.kill(pid, signal.SIGKILL)
    verdicts = await grading
    assert [(v.task_id, v.sample) for v in verdicts] == [(i.task_id, i.sample) for i in items]
    assert sum(v.verdict != "Incorrect" for v in verdicts) <= 2  # one that lost two graders is a failure, never a 0
    assert all(v.reward is None for v in verdicts if v.verdict == "InfrastructureFailure")
