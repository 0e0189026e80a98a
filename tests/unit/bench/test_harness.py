"""The bench harness: medians, alternation, the ratio's direction, the line's keys."""

import json

import pytest

from bench._harness import Figure, Result, measure


def test_measure_alternates_sides_and_prints_medians(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []
    values = {"ours": iter([9, 1, 2, 3, 4, 5]), "peer": iter([9, 10, 20, 30, 40, 50])}

    def side(name: str) -> float:
        calls.append(name)
        return float(next(values[name]))

    status = measure(Figure("x", "s", goal=2.0), lambda: side("ours"), lambda: side("peer"))

    assert status == 0
    assert calls == ["ours", "peer"] + ["ours", "peer", "peer", "ours"] * 2 + ["ours", "peer"]
    line = json.loads(capsys.readouterr().out)
    assert line == {"name": "x", "ours": 3.0, "peer": 30.0, "ratio": 10.0, "unit": "s", "goal": 2.0, "met": True}


@pytest.mark.parametrize(
    ("figure", "ours", "peer", "ratio", "met"),
    [
        (Figure("a", "s", goal=0.9), 1.1, 1.0, 1 / 1.1, True),
        (Figure("a", "s", goal=0.9), 1.2, 1.0, 1 / 1.2, False),
        (Figure("a", "1/s", goal=2, better="higher"), 300.0, 100.0, 3.0, True),
        (Figure("a", "1/s", goal=400, better="higher"), 399.0, None, None, False),
        (Figure("a", "s", goal=0.2), 0.15, None, None, True),
        (Figure("a", "1/s", goal=400, better="higher", goal_of="ours"), 500.0, 1000.0, 0.5, True),
    ],
)
def test_result_ratio_above_one_is_better(
    figure: Figure, ours: float, peer: float | None, ratio: float | None, met: bool
) -> None:
    result = Result(figure, ours, peer)
    assert result.ratio == (None if ratio is None else pytest.approx(ratio))
    assert result.met is met


def test_measure_times_runs_that_return_none(capsys: pytest.CaptureFixture[str]) -> None:
    measure(Figure("x", "s", goal=1), lambda: None)
    line = json.loads(capsys.readouterr().out)
    assert 0 <= line["ours"] < 1
    assert line["peer"] is None and line["ratio"] is None


def test_measure_with_too_few_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 5"):
        measure(Figure("x", "s", goal=1), lambda: None, rounds=3)
