"""Strict decoding: every mistake with its path, in one answer."""

import pytest

from nodus.core.errors import Cause
from nodus.core.kinds import JOB, KINDS, TRAINING_JOB, find_kind
from nodus.core.kinds.decode import decode, encode


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_example_validates_and_round_trips(kind) -> None:  # type: ignore[no-untyped-def]
    model, causes = decode(kind.spec_model, kind.example.get("spec", {}))
    assert causes == []
    assert model is not None
    again, _ = decode(kind.spec_model, encode(model))
    assert again == model


def test_all_mistakes_come_at_once_with_paths_and_near_misses() -> None:
    spec = {
        "runtim": "x",
        "maxCostUSD": 5,
        "model": {"url": "x"},
        "resources": {"gpu": "H100:x"},
        "grading": {"maxParallel": True},
    }
    model, causes = decode(TRAINING_JOB.spec_model, spec)
    assert model is None
    by_path = {cause.field: cause for cause in causes}
    assert by_path["spec.runtim"] == Cause(
        "spec.runtim", "FieldValueNotSupported", "unknown field; did you mean 'runtime'?"
    )
    assert by_path["spec.model.url"].message == "unknown field; did you mean 'uri'?"
    assert by_path["spec.runtime"].reason == "FieldValueRequired"
    assert set(by_path) == {
        "spec.runtim",
        "spec.model.url",
        "spec.runtime",
        "spec.maxCostUSD",
        "spec.resources.gpu",
        "spec.grading.maxParallel",
    }


def test_shorthands_are_read() -> None:
    model, causes = decode(
        JOB.spec_model,
        {"command": ["a"], "resources": {"gpu": "H100:8"}, "secrets": ["hf", {"name": "x", "version": 2}]},
    )
    assert causes == []
    assert model is not None
    assert model.resources.gpu.count == 8  # type: ignore[attr-defined]
    assert [secret.name for secret in model.secrets] == ["hf", "x"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [None, 3, "x", [], True])
def test_a_spec_that_is_no_object_is_one_cause(value: object) -> None:
    model, causes = decode(JOB.spec_model, value)
    assert model is None
    assert [cause.field for cause in causes] == ["spec"]


@pytest.mark.parametrize("word", ["tj", "TrainingJob", "trainingjobs", "trainingjob", "TRAININGJOB"])
def test_kinds_are_found_by_any_of_their_names(word: str) -> None:
    assert find_kind(word) is TRAINING_JOB
