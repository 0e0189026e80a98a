"""Task events and verdicts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from nodus.core.errors import BadRequest, Conflict
from nodus.server.store import Object, Store, objects, taskevents
from nodus.server.store.taskevents import SampleKey, VerdictRow, completion_digest

MakeJob = Callable[..., Object]


@pytest.fixture
def job(make_job: MakeJob) -> Object:
    return make_job("tj")


def verdict(task: str = "t", sample: int = 0, step: int = 1, phase: str = "Training", text: str = "4") -> VerdictRow:
    key = SampleKey(phase, step, task, sample)
    return VerdictRow(key, completion_digest(text), "Correct", "Passed", 1.0, None, {"isolation": "full"})


def append(store: Store, job: Object, *ids: str, attempt: str = "a-0") -> int:
    events = [{"id": id_, "type": "Metrics", "step": number} for number, id_ in enumerate(ids)]
    return store.write_sync(taskevents.append, job.uid, attempt, events)


def record(store: Store, job: Object, *items: VerdictRow, attempt: str = "a-0") -> dict[SampleKey, VerdictRow]:
    return store.write_sync(taskevents.record_verdicts, job.uid, attempt, items)


def test_reports_are_idempotent_by_attempt_and_id(store: Store, job: Object) -> None:
    assert append(store, job, "m1", "m2") == 2
    assert append(store, job, "m2", "m3") == 1
    assert append(store, job, "m1", attempt="a-1") == 1
    items, more = store.read_sync(taskevents.list_, job.uid, type_="Metrics")
    assert [(item["attempt"], item["id"]) for item in items] == [
        ("a-0", "m1"),
        ("a-0", "m2"),
        ("a-0", "m3"),
        ("a-1", "m1"),
    ]
    assert more is None
    assert items[1] == {"id": "m2", "type": "Metrics", "step": 1, "attempt": "a-0", "time": "2026-01-01T00:00:00Z"}
    assert append(store, job) == 0


def test_pages_follow_the_order_of_recording_over_both_tables(store: Store, job: Object) -> None:
    for number in range(5):
        append(store, job, f"m{number}")
        record(store, job, verdict(f"t{number}"))
    seen: list[str] = []
    after: str | None = None
    while True:
        items, more = store.read_sync(taskevents.list_, job.uid, after=after, limit=3)
        seen += [item["id"] for item in items]
        if more is None:
            break
        after = more
    expected = [name for number in range(5) for name in (f"m{number}", f"Training-1-t{number}-0")]
    assert seen == expected
    append(store, job, "m5")
    items, more = store.read_sync(taskevents.list_, job.uid, after=after, limit=3)
    assert [item["id"] for item in items] == ["Training-1-t4-0", "m5"], "the last page is read again, and grew"


def test_lists_are_narrowed(store: Store, job: Object, make_job: MakeJob) -> None:
    append(store, job, "m1")
    record(store, job, verdict(phase="Baseline", step=0), verdict())
    record(store, job, verdict(), attempt="a-1")
    append(store, make_job("other"), "m1")

    def count(**options: str) -> int:
        return len(store.read_sync(taskevents.list_, job.uid, **options)[0])  # type: ignore[arg-type]

    assert count() == 4
    assert count(type_="Task") == 3
    assert count(type_="Metrics") == 1
    assert count(type_="Stage") == 0
    assert count(phase="Training") == 2
    assert count(type_="Task", attempt="a-1") == 1
    with pytest.raises(BadRequest):
        count(after="nonsense")


def test_a_verdict_as_a_task_event(store: Store, job: Object) -> None:
    record(store, job, verdict())
    (item,) = store.read_sync(taskevents.list_, job.uid)[0]
    assert item == {
        "id": "Training-1-t-0",
        "type": "Task",
        "attempt": "a-0",
        "time": "2026-01-01T00:00:00Z",
        "phase": "Training",
        "step": 1,
        "taskId": "t",
        "sample": 0,
        "outcome": "Passed",
        "verdict": "Correct",
        "reward": 1.0,
        "evidence": {"isolation": "full"},
    }


def test_the_first_verdict_of_a_key_stays(store: Store, job: Object) -> None:
    first = verdict()
    again = VerdictRow(first.key, first.completion_sha256, "InfrastructureFailure", "Error", None, "lost", {})
    record(store, job, first)
    recorded = record(store, job, again, verdict(sample=1))
    assert recorded[first.key].verdict == "Correct"
    assert store.read_sync(taskevents.count_verdicts, job.uid) == 2


def test_a_key_with_another_completion_is_a_conflict_and_keeps_nothing(store: Store, job: Object) -> None:
    record(store, job, verdict(text="4"))
    with pytest.raises(Conflict, match="task 't', sample 0 was graded with another completion"):
        record(store, job, verdict(sample=7), verdict(text="5"))
    assert store.read_sync(taskevents.count_verdicts, job.uid) == 1


def test_find_returns_what_is_recorded_of_many_keys(store: Store, job: Object) -> None:
    items = [verdict(f"t{number}", sample) for number in range(600) for sample in range(2)]
    record(store, job, *items)
    keys = [item.key for item in items] + [SampleKey("Training", 1, "t0", 9), SampleKey("Evaluation", 1, "t0", 0)]
    found = store.read_sync(taskevents.find_verdicts, job.uid, "a-0", keys)
    assert set(found) == {item.key for item in items}
    assert store.read_sync(taskevents.find_verdicts, job.uid, "a-1", keys) == {}
    assert store.read_sync(taskevents.find_verdicts, job.uid, "a-0", []) == {}


def test_summaries_take_the_newest_attempt_of_each(store: Store, job: Object) -> None:
    record(store, job, verdict("t0"), verdict("t1"))
    wrong = VerdictRow(verdict("t1").key, completion_digest("9"), "Incorrect", "Failed", 0.0, None, {})
    record(store, job, wrong, verdict("t2"), attempt="a-1")
    latest = store.read_sync(taskevents.latest_verdicts, job.uid, "Training")
    assert [(row.key.task_id, row.verdict) for row in latest] == [
        ("t0", "Correct"),
        ("t1", "Incorrect"),
        ("t2", "Correct"),
    ]
    recent = store.read_sync(taskevents.recent_verdicts, job.uid, 2)
    assert [row.key.task_id for row in recent] == ["t2", "t1"]


def test_what_graded_code_says_is_stored_whatever_it_is(store: Store, job: Object) -> None:
    nasty = "a\0b\ud800é"
    row = VerdictRow(verdict().key, completion_digest(nasty), "Incorrect", "Failed", None, nasty, {"stdout": nasty})
    recorded = record(store, job, row)[row.key]
    assert recorded.evidence == {"stdout": nasty}
    assert recorded.reason == "a\ufffdb?é"


def test_two_graders_of_one_batch_record_it_once(open_store: Callable[[], Store], job: Object) -> None:
    stores = [open_store(), open_store()]
    items = [verdict(f"t{number}") for number in range(50)]

    def grade(store: Store) -> list[dict[SampleKey, VerdictRow]]:
        return [record(store, job, *items[start : start + 10]) for start in range(0, 50, 5)]

    with ThreadPoolExecutor(2) as threads:
        ours, theirs = threads.map(grade, stores)
    assert ours == theirs
    assert stores[0].read_sync(taskevents.count_verdicts, job.uid) == 50


def test_events_and_verdicts_go_with_their_trainingjob(store: Store, job: Object) -> None:
    append(store, job, "m1")
    record(store, job, verdict())
    store.write_sync(objects.delete, job)
    assert store.read_sync(taskevents.list_, job.uid) == ([], None)


def test_newest_report_of_a_type(store: Store, job: Object) -> None:
    assert store.read_sync(taskevents.newest_report, job.uid, "Metrics") is None
    append(store, job, "m1", "m2")
    store.write_sync(taskevents.append, job.uid, "a-0", [{"id": "s", "type": "Stage", "stage": "Training"}])
    newest = store.read_sync(taskevents.newest_report, job.uid, "Metrics")
    assert newest is not None and newest["id"] == "m2"


def test_training_groups_are_counted_with_and_without_contrast(store: Store, job: Object) -> None:
    assert store.read_sync(taskevents.count_training_groups, job.uid) == (0, 0)
    unscored = replace(verdict("d", 0), verdict="InfrastructureFailure", outcome="Error", reward=None)
    record(
        store,
        job,
        verdict("a", 0),
        replace(verdict("a", 1), reward=0.0),  # contrast
        verdict("b", 0),
        verdict("b", 1),  # none
        verdict("c", 0),  # alone
        unscored,
        verdict("d", 1),  # one scored
        replace(verdict("a", 2, phase="Baseline"), reward=0.5),  # not training
    )
    # The same step again, all alike: a contrast between attempts is none.
    record(store, job, verdict("a", 0), verdict("a", 1), attempt="a-1")
    assert store.read_sync(taskevents.count_training_groups, job.uid) == (3, 1)


def test_recent_verdicts_of_one_attempt(store: Store, job: Object) -> None:
    record(store, job, *[verdict(f"t{number}") for number in range(4)])
    record(store, job, verdict("x"), attempt="a-1")
    recent = store.read_sync(taskevents.recent_verdicts, job.uid, 3)
    assert [row.key.task_id for row in recent] == ["x", "t3", "t2"]
    assert [row.key.task_id for row in store.read_sync(taskevents.recent_verdicts, job.uid, 3, "a-1")] == ["x"]
