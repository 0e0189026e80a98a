"""Admission's shared rules: what is pruned so that the rest can be checked, what may not change."""

from __future__ import annotations

from typing import Any

import pytest

from nodus.core.errors import FieldImmutable
from nodus.core.kinds import JOB, TRAINING_JOB
from nodus.server.kinds.base import check_immutable, decode_all, same_spec

GOOD = {"command": ["true"]}


@pytest.mark.parametrize(
    ("bad", "kept"),
    [
        ({"timeout": 5}, {}),
        ({"resources": {"cpu": 1, "memory": 5}}, {"resources": {"cpu": 1}}),
        (
            {"env": [{"name": "A", "value": "x"}, {"name": "B", "value": 5}]},
            {"env": [{"name": "A", "value": "x"}, {"name": "B"}]},
        ),
        ({"volumes": [{"volume": "v"}]}, {}),
        ({"volumes": [{"volume": "v", "mountPath": "/v"}, 5]}, {}),
        ({"secrets": [5]}, {}),
        ({"resources": {"gpu": "a:b"}}, {"resources": {}}),
        ({"unknown": {"deep": [1]}}, {}),
    ],
)
def test_mistakes_are_left_out_so_that_the_rest_decodes(bad: dict[str, Any], kept: dict[str, Any]) -> None:
    causes: list[Any] = []
    model, pruned = decode_all(JOB, {**GOOD, **bad}, causes)
    assert causes
    assert model is not None
    assert pruned == {**GOOD, **kept}


def test_missing_fields_leave_nothing_to_check() -> None:
    causes: list[Any] = []
    assert decode_all(TRAINING_JOB, {"unknown": 1}, causes)[0] is None
    assert {cause.field for cause in causes} == {"spec.runtime", "spec.unknown"}


@pytest.mark.parametrize("spec", [None, [], "x", 5, {"a": {"b": {}}}, {"command": {"x": 1}}, {"env": {"0": 1}}])
def test_anything_at_all_decodes_or_gives_causes(spec: Any) -> None:
    causes: list[Any] = []
    decode_all(JOB, spec, causes)
    assert causes


def test_input_is_left_as_it_was() -> None:
    spec = {**GOOD, "timeout": 5}
    decode_all(JOB, spec, [])
    assert spec == {**GOOD, "timeout": 5}


def test_spellings_of_one_value_are_the_same_spec() -> None:
    assert same_spec(
        JOB, {**GOOD, "resources": {"gpu": "H100:2"}}, {**GOOD, "resources": {"gpu": {"type": ["H100"], "count": 2}}}
    )
    assert same_spec(JOB, {**GOOD, "secrets": ["a"]}, {**GOOD, "secrets": [{"name": "a"}]})
    assert same_spec(JOB, GOOD, {**GOOD, "state": "Running"})
    assert not same_spec(JOB, GOOD, {**GOOD, "state": "Cancelled"})


def test_every_changed_immutable_field_is_named() -> None:
    with pytest.raises(FieldImmutable) as caught:
        check_immutable(JOB, GOOD, {"command": ["false"], "image": "nodus/grpo-lora", "timeout": "5m"})
    assert set(caught.value.details["diff"]) == {"spec.command", "spec.image"}


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [(None, "5", True), ("5", "5.00", True), ("5", "6", True), ("5", "4", False), ("5", None, False)],
)
def test_caps_only_rise(before: str | None, after: str | None, allowed: bool) -> None:
    specs = [{**GOOD, "maxCostUSD": amount} if amount else GOOD for amount in (before, after)]
    if allowed:
        check_immutable(JOB, *specs)
    else:
        with pytest.raises(FieldImmutable):
            check_immutable(JOB, *specs)
