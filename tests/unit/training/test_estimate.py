"""What a TrainingJob would take, from its plan: more steps never take less, and one figure is never a float's."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodus.core.money import parse_usd
from nodus.server.billing.estimates import Terms
from nodus.server.billing.metering import HOUR_US
from nodus.server.billing.pricebook import PriceBook
from nodus.server.store.measurements import Key, Measurement, Recent
from nodus.server.training.compile import Compiled, EnvironmentPin, ModelPin, RuntimePin
from nodus.server.training.estimate import estimate, planned_steps
from nodus.server.training.plan import Plan
from nodus.server.training.resources import GIB, Chosen, Shape

NOW = datetime(2026, 11, 30, tzinfo=UTC)
TERMS = Terms(PriceBook("test", {"CPU": 0, "default": 0, "H100": 7}, 0), NOW)
DEFAULTS = {"batchSize": 1, "gradientAccumulation": 4, "maxCompletionLength": 64, "numGenerations": 4}
FIGURES: dict[str, Any] = {
    "secondsPerStep": {"CPU": 0.1, "H100": 0.45, "L40S": 1},
    "secondsPerTask": {"CPU": 0.3},
    "reference": {"CPU": {"batchSize": 2}},
}


def plan(*, price: int = 3, gpu: Any = None, tasks: int = 0, figures: Any = None, **parameters: Any) -> Plan:
    runtime = {"parameters": {}, "defaults": {"parameters": DEFAULTS}, "estimate": figures or FIGURES}
    params = {
        "mode": "Train",
        "parameters": {**DEFAULTS, "steps": 10, **parameters},
        "environment": {"trainTasks": 100, "heldOutTasks": tasks},
        "evaluation": {"baseline": True, "final": True},
    }
    shape = None if gpu else Shape("local-cpu", 2, GIB, price=price)
    resources = {"gpu": gpu} if gpu else {"cpu": 2}
    return Plan(
        runtime=RuntimePin("nodus/r", runtime, ""),
        environment=EnvironmentPin("nodus/e", "1.0.0", "sha256:e"),
        model=ModelPin("hf://acme/tiny", "", repo="acme/tiny"),
        chosen=Chosen(resources, gpu["count"] if gpu else 0, shape),
        compiled=Compiled({}, params, b"", "", ""),
    )


class Here:
    """What runs took here, and who asked."""

    def __init__(self, recent: Recent = Recent(), graded_us: tuple[int, ...] = ()) -> None:  # noqa: B008 - a value
        self.recent, self.graded_us = recent, graded_us
        self.asked: list[Key | str] = []

    def runs(self, key: Key) -> Recent:
        self.asked.append(key)
        return self.recent

    def grading(self, environment: str) -> tuple[int, ...]:
        self.asked.append(environment)
        return self.graded_us


def of(planned: Plan, here: Here | None = None, terms: Terms = TERMS, **spec: Any) -> dict[str, Any]:
    return estimate(planned, spec, terms, "default", here or Here())


@given(st.integers(0, 10**5), st.integers(1, 10**4), st.integers(0, 10**4), st.integers(1, 10**12))
def test_more_steps_or_tasks_never_cost_less(steps: int, more: int, tasks: int, price: int) -> None:
    def cost(steps: int, tasks: int) -> int:
        return parse_usd(of(plan(price=price, steps=steps, tasks=tasks))["costUSD"]["p50"])

    assert cost(steps, tasks) <= cost(steps + more, tasks) <= cost(steps + more, tasks + more)


@given(st.integers(1, 10**5), st.integers(0, 10**4), st.integers(1, 64), st.integers(1, 10**12))
def test_cost_is_the_factors_and_nothing_of_a_float(steps: int, tasks: int, batch: int, price: int) -> None:
    found = of(plan(price=price, steps=steps, tasks=tasks, batchSize=batch))
    seconds = steps * Fraction(1, 10) * Fraction(batch, 2) + 2 * tasks * Fraction(3, 10)
    exact = price * seconds * 1_000_000 / HOUR_US
    # Rounded up once to a microsecond and once to a nano-dollar.
    assert 0 <= parse_usd(found["costUSD"]["p50"]) - exact < 1 + Fraction(price, HOUR_US)


def test_episodes_of_several_turns_take_as_much_longer() -> None:
    once, thrice = (of(plan(tasks=4, batchSize=2, **turns)) for turns in ({}, {"maxTurns": 3}))
    assert [thrice[name] / once[name] for name in ("secondsPerStep", "secondsPerTask")] == pytest.approx([3, 3])


def test_slowest_of_the_allowed_that_are_not_here() -> None:
    found = of(plan(gpu={"type": ["h100", "L40S", "RTX-4090"], "count": 2}))
    assert (found["accelerator"], found["secondsPerStep"], found["rateUSDPerHour"]) == ("L40S", 1.0, "0.000000014")
    assert of(plan(gpu={"count": 1}))["accelerator"] == "L40S"  # any would do
    unknown = of(plan(gpu={"type": ["RTX-4090"], "count": 1}))
    assert "secondsPerStep" not in unknown and "duration" not in unknown
    assert [notice["code"] for notice in unknown["warnings"]] == ["StepsNotEstimated"]


def test_own_runs_count_before_the_runtime_and_only_for_what_they_measured() -> None:
    took = ((1, 5), (900, 7), (30, 9))
    runs = [Measurement(step_us, 4 * 64, None, 64, startup_us) for step_us, startup_us in took]
    here = Here(Recent(tuple(runs), NOW))
    found = of(plan(tasks=5, batchSize=2), here)
    assert here.asked == [Key("nodus/r", "acme/tiny", "CPU"), "sha256:e"]
    assert (found["secondsPerStep"], found["secondsPerTask"]) == (0.00006, 0.3)
    assert found["measured"] == {"time": "2026-11-30T00:00:00Z", "runs": 3}
    assert found["overheadUSD"] == {"startup": "0.000000001"}


def test_graders_cost_what_they_worked_on_each_completion() -> None:
    terms = Terms(PriceBook("test", {"CPU": 0, "default": 0}, HOUR_US), NOW)  # a nano-dollar a microsecond
    planned = plan(price=0, tasks=5, steps=10, batchSize=2)
    found = of(planned, Here(graded_us=(30, 1, 2)), terms)
    # 10 steps of 8 completions, and 5 tasks before and after, at the median of 2 microseconds.
    assert (found["overheadUSD"], found["costUSD"]["p50"]) == ({"grading": "0.00000018"}, "0.00000018")
    assert found["costUSD"]["p90"] == "0.00000027"
    assert "GradingNotEstimated" not in [notice["code"] for notice in found["warnings"]]
    unknown = of(planned, Here(), terms)
    assert unknown["costUSD"]["p50"] == "0.00"
    assert "GradingNotEstimated" in [notice["code"] for notice in unknown["warnings"]]


@pytest.mark.parametrize(
    ("parameters", "steps"),
    [
        ({"steps": 7}, 7),
        ({"steps": -1, "epochs": 2}, 200),
        ({"steps": -1, "epochs": 1, "batchSize": 2, "gradientAccumulation": 2, "numGenerations": 2}, 50),
        ({"steps": "many", "epochs": "few"}, 0),
        ({"steps": -1, "epochs": 0.5, "numGenerations": 0}, 13),
    ],
)
def test_steps_of_whatever_a_runtime_takes_for_parameters(parameters: dict[str, Any], steps: int) -> None:
    compiled = plan(**parameters).compiled
    assert compiled is not None
    assert planned_steps(compiled.params, 1) == steps


def test_validations_count_as_often_as_they_are_made() -> None:
    assert of(plan(tasks=3, steps=10, evalSteps=4))["evaluatedTasks"] == 3 * (2 + 2)
    assert of(plan(tasks=3, steps=10, evalSteps=0))["evaluatedTasks"] == 3 * 2
