"""Tasks and gradings of a run: fixed tasks without answers, one verdict each, a stop when the grader is broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nodus.core.errors import Conflict, GraderFailed, Invalid
from nodus.core.kinds import ENVIRONMENT
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.grading import EnvironmentLibrary, GradingService, StoredManifests
from nodus.server.grading.episodes import Episode, StepReply
from nodus.server.grading.manifests import Manifest, Task
from nodus.server.grading.verdicts import Completion, Verdict
from nodus.server.store import Object, Store, objects, taskevents
from nodus.server.training.service import CHUNK, TrainingService, matches


class CountingGrading(GradingService):
    """Lists tasks and grades in this process, without sandboxes; counts what it is asked."""

    def __init__(self, store: Store, root: Path) -> None:
        super().__init__(EnvironmentLibrary(root, store.blobs.path), StoredManifests(store), LocalGraders())
        self.graded: list[tuple[str, int, str]] = []
        self.places: list[str | None] = []
        self.running = self.most_running = 0
        self.stepped: list[Episode] = []
        self.dies_after = 10**9
        self.fails = False

    async def list_tasks(self, environment: Any, split: str, seed: int, *, answers: bool | None = None) -> Manifest:
        tasks = tuple(
            Task(f"{split}{number:03}", f"{split} {number}", {"family": "even" if number % 2 == 0 else "odd"}, number)
            for number in range(200)
        )
        return Manifest(environment.digest, split, seed, tasks, True)

    async def grade(
        self,
        pool_key: str,
        environment: Any,
        items: Sequence[Completion],
        max_parallel: int | None = None,
        *,
        beside: str | None = None,
    ) -> list[Verdict]:
        self.places.append(beside)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if len(self.graded) >= self.dies_after:
            raise ConnectionError("the server died")
        self.graded += [(item.task_id, item.sample, item.first) for item in items]
        if self.fails:
            reason, evidence = "ZeroDivisionError: division by zero", {"exitCode": 1}
            return [Verdict(i.task_id, i.sample, "InfrastructureFailure", None, reason, evidence) for i in items]
        return [Verdict(i.task_id, i.sample, "Correct", 1.0, None, {"durationMs": 1}) for i in items]

    async def step(
        self,
        pool_key: str,
        environment: Any,
        episodes: Sequence[Episode],
        max_parallel: int | None = None,
        *,
        beside: str | None = None,
    ) -> list[StepReply]:
        self.places.append(beside)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        self.stepped += episodes
        said = [{"role": "user", "content": "on"}]
        return [
            StepReply(e.task_id, e.sample, None, "ValueError", {"durationMs": 3})
            if self.fails
            else StepReply(e.task_id, e.sample, None if e.turns[-1] == "end" else said, None, {"durationMs": 2})
            for e in episodes
        ]


@pytest.fixture
def grading(store: Store, tmp_path: Path) -> CountingGrading:
    return CountingGrading(store, tmp_path / "environments")


@pytest.fixture
def service(store: Store, grading: CountingGrading) -> TrainingService:
    return TrainingService(store, grading)


@pytest.fixture
async def run(
    store: Store, grading: CountingGrading, create: Callable[..., Any], manifest: Callable[..., Any]
) -> Object:
    environment = store.read_sync(objects.get, ENVIRONMENT, "nodus", "arithmetic")
    digest = (await grading.resolve("arithmetic", environment.spec)).digest
    store.write_sync(objects.update_status, environment.uid, {**environment.status, "digest": digest})
    made: Object = await create(
        manifest(environment={"name": "nodus/arithmetic@2.0.0", "trainTasks": 150, "heldOutTasks": 20})
    )
    return made


def completions(split: str, count: int, samples: int = 1, text: str = "5") -> list[dict[str, Any]]:
    return [
        {"taskId": f"{split}{number:03}", "sample": sample, "completion": text}
        for number in range(count)
        for sample in range(samples)
    ]


async def test_task_files_are_cut_to_the_run_and_hold_no_answer(service: TrainingService, run: Object) -> None:
    files = await service.task_files(run)
    rows = {name: [json.loads(line) for line in text.splitlines()] for name, text in files.items()}
    assert {name: len(lines) for name, lines in rows.items()} == {"train.jsonl": 150, "test.jsonl": 20}
    assert rows["test.jsonl"][0] == {"taskId": "test000", "prompt": "test 0", "metadata": {"family": "even"}}
    assert files == await service.task_files(run)


async def test_task_filter_keeps_matching_tasks_only(
    service: TrainingService, create: Any, manifest: Any, run: Object
) -> None:
    filtered = await create(manifest(parameters={"taskFilter": {"family": "odd"}}), "filtered")
    rows = [json.loads(line) for line in (await service.task_files(filtered))["test.jsonl"].splitlines()]
    assert {row["metadata"]["family"] for row in rows} == {"odd"}


async def test_gradings_are_recorded_before_they_are_told_and_given_again(
    service: TrainingService, grading: CountingGrading, store: Store, run: Object
) -> None:
    items = completions("train", 3, samples=2)
    first = await service.grade(run, "run-1", "Training", 1, items)
    assert first[1] == {"taskId": "train000", "sample": 1, "verdict": "Correct", "outcome": "Passed", "reward": 1.0}
    assert [(v["taskId"], v["sample"]) for v in first] == [(i["taskId"], i["sample"]) for i in items]
    again = await service.grade(run, "run-1", "Training", 1, [*items, *completions("train", 4)[3:]])
    assert again[:6] == first
    assert len(grading.graded) == 7
    events, _ = store.read_sync(taskevents.list_, run.uid, type_="Task")
    assert len(events) == 7 and events[0]["step"] == 1


async def test_resend_with_another_text_is_a_conflict_and_changes_nothing(
    service: TrainingService, grading: CountingGrading, run: Object
) -> None:
    await service.grade(run, "run-1", "Baseline", 0, completions("test", 2))
    with pytest.raises(Conflict, match="another completion"):
        await service.grade(run, "run-1", "Baseline", 0, completions("test", 3, text="6"))
    assert len(grading.graded) == 2
    await service.grade(run, "run-2", "Baseline", 0, completions("test", 2, text="6"))


async def test_one_batch_of_a_run_at_a_time_and_each_completion_once(
    service: TrainingService, grading: CountingGrading, run: Object
) -> None:
    items = completions("train", 10)
    answers = await asyncio.gather(*(service.grade(run, "run-1", "Training", 1, items) for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)
    assert (len(grading.graded), grading.most_running) == (10, 1)


async def test_episodes_are_graded_by_their_turns_each_once(
    service: TrainingService, grading: CountingGrading, store: Store, run: Object
) -> None:
    episode = {"taskId": "test000", "sample": 0, "turns": ["first", "x" * 9000]}
    first = await service.grade(run, "run-1", "Baseline", 0, [episode])
    assert await service.grade(run, "run-1", "Baseline", 0, [episode]) == first
    assert grading.graded == [("test000", 0, "first")]
    (event,), _ = store.read_sync(taskevents.list_, run.uid, type_="Task")
    assert (event["completion"], event["turns"]) == ("x" * 4000, ["first", "x" * 2000])
    for other in ({"turns": ["first"]}, {"completion": "first"}, {"completion": '["first"]'}):
        with pytest.raises(Conflict, match="another completion"):
            await service.grade(run, "run-1", "Baseline", 0, [{"taskId": "test000", "sample": 0, **other}])


async def test_steps_answer_in_order_and_are_nothing_to_keep(
    service: TrainingService, grading: CountingGrading, store: Store, run: Object
) -> None:
    asked = [{"taskId": f"train{n:03}", "sample": n % 2, "turns": ["a", "end" if n % 3 else "b"]} for n in range(150)]
    replies = await service.step(run, "run-1", "Training", 4, asked, beside="uid-1")
    assert replies == await service.step(run, "run-1", "Training", 4, asked, beside="uid-1")
    assert [(r["taskId"], r["sample"], r["messages"] is None) for r in replies] == [
        (e["taskId"], e["sample"], e["turns"][1] == "end") for e in asked
    ]
    assert set(grading.places) == {"uid-1"} and len(grading.stepped) == 300
    assert store.read_sync(taskevents.list_, run.uid, type_="Task")[0] == []


async def test_episode_that_the_environment_cannot_go_on_with_is_an_infrastructure_failure(
    service: TrainingService, grading: CountingGrading, store: Store, run: Object
) -> None:
    grading.fails = True
    asked = [{"taskId": "test000", "sample": 0, "turns": ["a", "b"]}]
    failure = {"taskId": "test000", "sample": 0, "error": "ValueError"}
    assert await service.step(run, "run-1", "Evaluation", 4, asked) == [failure]
    grading.fails = False  # what an attempt was told stays so, whatever the environment would say now
    assert await service.step(run, "run-1", "Evaluation", 4, asked) == [failure]
    (event,), _ = store.read_sync(taskevents.list_, run.uid, type_="Task")
    assert (event["verdict"], event["outcome"], event["reason"]) == ("InfrastructureFailure", "Error", "ValueError")
    assert event["turns"] == ["a", "b"]
    assert (await service.step(run, "run-2", "Evaluation", 4, asked))[0]["messages"]


async def test_environment_that_fails_again_and_again_stops_the_run(
    service: TrainingService, grading: CountingGrading, run: Object
) -> None:
    grading.fails = True
    asked = [{"taskId": f"train{n:03}", "turns": ["a"]} for n in range(40)]
    with pytest.raises(GraderFailed, match="32 of the last 32 completions could not be graded; the last"):
        await service.step(run, "run-1", "Training", 1, asked)


async def test_steps_and_gradings_of_a_run_come_one_after_the_other(
    service: TrainingService, grading: CountingGrading, run: Object
) -> None:
    episodes = [{"taskId": "train000", "sample": 0, "turns": ["a"]}]
    await asyncio.gather(
        *(service.grade(run, "run-1", "Training", step, completions("train", 3)) for step in range(3)),
        *(service.step(run, "run-1", "Training", step, episodes) for step in range(3)),
    )
    assert grading.most_running == 1


async def test_steps_of_other_tasks_and_doubled_ones_are_refused(service: TrainingService, run: Object) -> None:
    with pytest.raises(Invalid, match="not among the Training tasks") as refused:
        await service.step(run, "run-1", "Training", 1, [{"taskId": "test000", "turns": ["a"]}])
    assert refused.value.causes[0].field == "episodes"
    with pytest.raises(Invalid) as refused:
        await service.step(run, "run-1", "Training", 1, [{"taskId": "train000", "turns": ["a"]}] * 2)
    assert refused.value.causes[0].field == "episodes[1]"


async def test_completions_are_graded_beside_the_member_that_submits_them(
    service: TrainingService, grading: CountingGrading, run: Object
) -> None:
    for attempt in ("1", "2"):
        await service.grade(run, f"run-{attempt}", "Baseline", 0, completions("test", 1), beside=f"uid-{attempt}")
    assert grading.places == ["uid-1", "uid-2"]


async def test_server_killed_in_a_batch_grades_only_what_was_not_recorded(
    store: Store, service: TrainingService, grading: CountingGrading, run: Object
) -> None:
    items = completions("train", 150, samples=2)
    grading.dies_after = CHUNK
    with pytest.raises(ConnectionError):
        await service.grade(run, "run-1", "Training", 1, items)
    grading.dies_after = 10**9
    verdicts = await TrainingService(store, grading).grade(run, "run-1", "Training", 1, items)
    assert len(verdicts) == len(grading.graded) == len(set(grading.graded)) == 300


async def test_tasks_of_another_split_or_beyond_the_count_are_refused(service: TrainingService, run: Object) -> None:
    with pytest.raises(Invalid, match="not among the Training tasks"):
        await service.grade(run, "run-1", "Training", 1, completions("test", 1))
    with pytest.raises(Invalid, match="1 tasks are not among the Baseline tasks of this run: test020"):
        await service.grade(run, "run-1", "Baseline", 0, completions("test", 21))
    with pytest.raises(Invalid) as refused:
        await service.grade(run, "run-1", "Baseline", 0, [*completions("test", 1), *completions("test", 1)])
    assert refused.value.causes[0].field == "completions[1]"


async def test_broken_grader_stops_the_run_naming_its_evidence(
    service: TrainingService, grading: CountingGrading, run: Object
) -> None:
    grading.fails = True
    with pytest.raises(GraderFailed) as refused:
        await service.grade(run, "run-1", "Baseline", 0, completions("test", 20))
    assert "20 of the last 20" in refused.value.message and "ZeroDivisionError" in refused.value.message
    assert refused.value.details["evidence"]["exitCode"] == 1


async def test_few_failures_do_not_stop_a_run_and_an_attempt_starts_with_none(
    service: TrainingService, grading: CountingGrading, run: Object
) -> None:
    grading.fails = True
    await service.grade(run, "run-1", "Training", 1, completions("train", 7))
    grading.fails = False
    await service.grade(run, "run-1", "Training", 2, completions("train", 8))
    grading.fails = True
    await service.grade(run, "run-2", "Training", 1, completions("train", 7))


async def test_environment_that_is_not_the_pinned_one_is_refused(
    store: Store, service: TrainingService, run: Object
) -> None:
    status = {**run.status, "pinned": {**run.status["pinned"], "environment": {"digest": "sha256:" + "0" * 64}}}
    other = store.write_sync(objects.update_status, run.uid, status)
    with pytest.raises(Invalid, match="is not what TrainingJob 'run' was created with"):
        await service.task_files(other)


@pytest.mark.parametrize(
    ("metadata", "wanted", "kept"),
    [
        ({"family": "sums"}, {"family": "sums"}, True),
        ({"family": "sums"}, {"family": ["sums", "bases"]}, True),
        ({"family": "sums"}, {"family": "bases"}, False),
        ({}, {"family": "sums"}, False),
        ({"tags": ["a"]}, {"tags": ["a"]}, True),
        ({"level": 1, "family": "sums"}, {"level": 1, "family": "sums"}, True),
        ({"level": 2, "family": "sums"}, {"level": 1, "family": "sums"}, False),
    ],
)
def test_filter_matches(metadata: dict[str, Any], wanted: dict[str, Any], kept: bool) -> None:
    assert matches(metadata, wanted) is kept
