from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy
import pytest

from nodus.grader import verdicts
from nodus.grader.verdicts import classify, read_result, write_result


@pytest.mark.parametrize(
    ("value", "verdict", "reward"),
    [
        (1, "Correct", 1.0),
        (1.0, "Correct", 1.0),
        (True, "Correct", 1.0),
        (2.5, "Correct", 2.5),
        (0.999999, "Incorrect", 0.999999),
        (0, "Incorrect", 0.0),
        (False, "Incorrect", 0.0),
        (-1.0, "Incorrect", -1.0),
        (None, "InvalidOutput", 0.0),
        (Fraction(1, 2), "Incorrect", 0.5),
        (numpy.float64(1), "Correct", 1.0),
        (numpy.float32(0.5), "Incorrect", 0.5),
        (numpy.int64(1), "Correct", 1.0),
        (numpy.bool_(True), "Correct", 1.0),
        (numpy.array(1.0), "Correct", 1.0),
    ],
)
def test_usable_reward_becomes_a_verdict(value: object, verdict: str, reward: float) -> None:
    assert classify(value) == {"verdict": verdict, "reward": reward}


@pytest.mark.parametrize(
    "value",
    [
        "1.0",
        "",
        b"1",
        [1.0],
        {"score": 1},
        float("nan"),
        float("inf"),
        -float("inf"),
        10**400,
        1j,
        numpy.float64("nan"),
    ],
)
def test_unusable_reward_is_a_failure_and_never_zero(value: object) -> None:
    result = classify(value)
    assert (result["verdict"], result["reward"]) == ("InfrastructureFailure", None)
    assert result["reason"]


def test_array_of_several_numbers_is_no_reward() -> None:
    with pytest.raises(ValueError):
        classify(numpy.array([1.0, 2.0]))  # raised inside the completion's process: a reward that raises


@pytest.mark.parametrize(
    "line",
    [
        {"verdict": "Correct", "reward": 1.0},
        {"verdict": "Incorrect", "reward": -3},
        {"verdict": "InvalidOutput", "reward": 0},
        {"verdict": "InfrastructureFailure", "reward": None, "reason": "x"},
    ],
)
def test_consistent_result_is_accepted(line: dict[str, Any]) -> None:
    assert read_result(json.dumps(line).encode()) == line
    assert read_result(write_result(line)) == line


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Correct",
        b"[]",
        b'{"verdict": "Correct"}',
        b'{"verdict": "Correct", "reward": 0.5}',
        b'{"verdict": "Incorrect", "reward": 1}',
        b'{"verdict": "InvalidOutput", "reward": 0.5}',
        b'{"verdict": "InfrastructureFailure", "reward": 0.0}',
        b'{"verdict": "Correct", "reward": NaN}',
        b'{"verdict": "Correct", "reward": Infinity}',
        b'{"verdict": "Correct", "reward": true}',
        b'{"verdict": "Correct", "reward": "1"}',
        b'{"verdict": "Best", "reward": 1}',
        b"[" * 60_000,
        b'{"verdict": "Correct", "reward": 1}\xff',
        b'{"verdict": "Correct", "reward": 1}{"verdict": "Correct", "reward": 1}',
    ],
)
def test_inconsistent_result_is_refused(data: bytes) -> None:
    assert read_result(data) is None


def test_every_verdict_has_an_outcome_on_the_host() -> None:
    from nodus.server.grading.verdicts import OUTCOMES

    assert set(OUTCOMES) == verdicts.VERDICTS
