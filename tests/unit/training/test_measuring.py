"""What a finished run took, by the times of its task events."""

from __future__ import annotations

from nodus.server.store.taskevents import Moment, Pass
from nodus.server.training.measuring import SECOND_US, Took, measure, model_key, ran_us, runtime_key, work


def stage(name: str, at_s: float, attempt: str = "a-1") -> Moment:
    return Moment(attempt, "Stage", name, False, round(at_s * SECOND_US))


def step(at_s: float, attempt: str = "a-1", *, validated: bool = False) -> Moment:
    return Moment(attempt, "Metrics", None, validated, round(at_s * SECOND_US))


def graded(phase: str, number: int, tasks: int, ended_s: float, attempt: str = "a-1") -> Pass:
    return Pass(attempt, phase, number, tasks, round(ended_s * SECOND_US))


def took(step_s: float | None, task_s: float | None, startup_s: float | None = None) -> Took:
    return Took(*(None if value is None else round(value * SECOND_US) for value in (step_s, task_s, startup_s)))


RUN = [stage("Baseline", 10), stage("Training", 30), step(41), step(43), step(45), step(48), stage("Evaluating", 50)]
PASSES = [graded("Baseline", 0, 10, 30), graded("Evaluation", 4, 10, 60)]


def test_whole_run() -> None:
    # The first step warms up and counts for the start: 65 s in all less 4 steps and 20 tasks.
    assert measure(RUN, PASSES, 65 * SECOND_US) == took(7 / 3, 1.5, 65 - 4 * 7 / 3 - 30)._replace(
        step_us=2_333_333, startup_us=65_000_000 - 4 * 2_333_333 - 30_000_000
    )


def test_validations_are_tasks_and_no_steps() -> None:
    moments = [stage("Training", 0), step(10), step(12), step(32, validated=True), step(34), stage("Evaluating", 35)]
    passes = [graded("Evaluation", 3, 10, 31), graded("Evaluation", 4, 10, 45)]
    assert measure(moments, passes, None) == took(2, 1)
    assert measure(moments, passes, 60 * SECOND_US).startup_us == (60 - 4 * 2 - 20) * SECOND_US


def test_pause_within_a_run_counts_little() -> None:
    moments = [stage("Training", 0), *(step(10 + 2 * number) for number in range(20)), step(4000)]
    found = measure(moments, [], 4010 * SECOND_US)
    assert found.step_us is not None and 2 * SECOND_US < found.step_us < 3 * SECOND_US
    # 3,952 seconds lie between the last two steps, of which 20 count for one.
    assert found.startup_us == (4010 - 3952 + 20) * SECOND_US - 21 * found.step_us


def test_resumed_run_counts_each_attempt_for_itself() -> None:
    moments = [
        stage("Training", 0), step(10), step(12), stage("Training", 500, "a-2"), step(510, "a-2"), step(514, "a-2"),
    ]  # fmt: skip
    assert measure(moments, [], None) == took(3, None)


def test_single_step_is_timed_from_its_stage_and_nothing_tells_nothing() -> None:
    assert measure([stage("Training", 5), step(9)], [], None) == took(4, None)
    assert measure([], [], 9 * SECOND_US) == took(None, None, 9)
    assert measure([stage("Evaluating", 7)], [graded("Evaluation", 0, 4, 7)], None) == took(None, None)


def test_start_of_a_run_is_known_when_it_took_one_attempt() -> None:
    status = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:30Z", "attempts": {"total": 1}}
    assert ran_us(status) == 90 * SECOND_US
    assert ran_us({**status, "attempts": {"total": 2}}) is None
    assert ran_us({"attempts": {"total": 1}}) is None


def test_work_is_the_product_of_what_there_is() -> None:
    assert work({"batchSize": 8, "gradientAccumulation": 4.5, "other": 3}, ("batchSize", "gradientAccumulation")) == 8
    assert work({"batchSize": True, "x": -2}, ("batchSize", "x", "gone")) == 1


def test_models_and_runtimes_of_a_project_are_its_own() -> None:
    assert (runtime_key("a", "mine"), runtime_key("a", "nodus/grpo-lora")) == ("a/mine", "nodus/grpo-lora")
    assert (model_key("a", "acme/tiny", "v"), model_key("a", None, "v")) == ("acme/tiny", "a/volume/v")
