"""What a TrainingJob shows of a trainer that reports as any program does."""

from __future__ import annotations

from typing import Any

import pytest

from nodus.server.training import progress


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {}),
        ({"units": {"completed": 3}}, {}),
        ({"stage": "Warming"}, {"progress": {"stage": "Warming"}}),
        (
            {"units": {"completed": 3, "total": 9}, "metrics": {"step": "3", "loss": "0.5", "mine": "1"}},
            {"metrics": {"step": 3, "totalSteps": 9, "loss": "0.5"}},
        ),
        ({"units": {"completed": 1, "total": 2.5}, "metrics": {"step": "x"}}, {}),
    ],
)
def test_progress_of_a_job_is_that_of_its_training(given: Any, expected: dict[str, Any]) -> None:
    assert progress.of_job(given) == expected
