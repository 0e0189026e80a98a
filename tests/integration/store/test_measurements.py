"""What finished runs took, and when their trainers said what, on both databases."""

from __future__ import annotations

from nodus.core.clock import FakeClock
from nodus.core.kinds import KINDS
from nodus.server.store import Store, measurements, objects, taskevents
from nodus.server.store.measurements import KEPT, Key, Measurement, Recent
from nodus.server.store.taskevents import Moment, Pass, SampleKey, VerdictRow

KEY = Key("nodus/grpo-lora", "acme/tiny", "CPU")


def test_newest_runs_of_a_key_are_kept_and_each_once(store: Store, clock: FakeClock) -> None:
    assert store.read_sync(measurements.recent, KEY) == Recent()
    for number in range(KEPT + 3):
        clock.advance(1)
        for _ in range(2):
            store.write_sync(measurements.put, f"run-{number}", KEY, Measurement(number, 4, None, 2, number))
    other = Measurement(None, 1, 7, 1, None)
    store.write_sync(measurements.put, "other", KEY._replace(accelerator="H100"), other)
    found = store.read_sync(measurements.recent, KEY)
    assert [run.step_us for run in found.runs] == list(range(KEPT + 2, 2, -1))
    assert found.time == clock.now()
    assert store.read_sync(measurements.recent, KEY._replace(accelerator="H100")).runs == (other,)
    for number, grade_us in enumerate((5, None, 7)):
        clock.advance(1)
        graded = Measurement(1, 1, None, 1, None, grade_us)
        store.write_sync(measurements.put, f"graded-{number}", KEY, graded, "sha256:e")
    assert store.read_sync(measurements.recent_grading, "sha256:e") == (7, 5)
    assert store.read_sync(measurements.recent_grading, "sha256:f") == ()


def test_stages_steps_and_evaluations_have_their_times(store: Store, clock: FakeClock) -> None:
    run = store.write_sync(objects.create, KINDS["TrainingJob"], "default", "run", {})
    start_us = int(clock.now().timestamp() * 1_000_000)
    reports = [
        {"id": "b", "type": "Stage", "stage": "Baseline"},
        {"id": "1", "type": "Metrics", "step": 1, "note": 'no "validationPassRate" of its own'},
        {"id": "2", "type": "Metrics", "step": 2, "validationPassRate": 0.5},
        {"id": "d", "type": "Diagnostics", "weightsChanged": True},
    ]
    for report in reports:
        clock.advance(1)
        store.write_sync(taskevents.append, run.uid, "run-1", [report])
    assert store.read_sync(taskevents.moments, run.uid) == [
        Moment("run-1", "Stage", "Baseline", False, start_us + 1_000_000),
        Moment("run-1", "Metrics", None, False, start_us + 2_000_000),
        Moment("run-1", "Metrics", None, True, start_us + 3_000_000),
    ]
    for phase, step in (("Baseline", 0), ("Training", 1), ("Evaluation", 2)):
        for sample in range(2):
            clock.advance(1)
            keys = [SampleKey(phase, step, task, sample) for task in ("a", "b", "c")]
            rows = [VerdictRow(key, "0" * 64, "Correct", "Passed", 1.0, None, {}) for key in keys]
            store.write_sync(taskevents.record_verdicts, run.uid, "run-1", rows)
    assert store.read_sync(taskevents.passes, run.uid) == [
        Pass("run-1", "Baseline", 0, 3, start_us + 6_000_000),
        Pass("run-1", "Evaluation", 2, 3, start_us + 10_000_000),
    ]
