"""Money, durations, names, digests, patches and selectors."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodus.core.clock import parse_rfc3339
from nodus.core.digests import canonical_json, digest_of
from nodus.core.durations import format_age, format_duration, parse_duration
from nodus.core.errors import BadRequest, Invalid
from nodus.core.ids import generated_name, name_problem, new_api_key
from nodus.core.money import format_usd, parse_usd
from nodus.core.patches import json_patch, merge_patch
from nodus.core.selectors import matches_fields, matches_labels, parse_selector


@given(st.integers(min_value=0, max_value=10**18))
def test_money_round_trips_exactly(nanos: int) -> None:
    assert parse_usd(format_usd(nanos)) == nanos


@pytest.mark.parametrize("text", ["", "1,5", "-1", "1.0000000001", "1e3", "nan", ".5", "5.", 5, 5.0, None, " 5", "٥"])
def test_money_refuses_what_is_no_decimal_string(text: Any) -> None:
    with pytest.raises(ValueError, match="write dollars as a string"):
        parse_usd(text)


@pytest.mark.parametrize(
    ("nanos", "text"), [(0, "0.00"), (15_000, "0.000015"), (20 * 10**9, "20.00"), (1, "0.000000001")]
)
def test_money_prints_two_to_nine_places(nanos: int, text: str) -> None:
    assert format_usd(nanos) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m0s", 900), ("2h0m0s", 7200), ("250ms", 0.25), ("1h30m", 5400)]
)
def test_durations_parse(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-5m", "5x", "1h 2m", "9" * 400 + "h", "\u0665m"])
def test_bad_durations_say_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", ["tomorrow", "2026-01-31T12:00:00", "0001-01-01T00:00:00+10:00", "9999-12-31T23:00:00-10:00"]
)
def test_what_is_no_time_in_utc_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"timezone|outside the years|Invalid isoformat"):
        parse_rfc3339(text)


def test_durations_and_ages_print_like_go() -> None:
    assert [format_duration(s) for s in (42, 900, 7200)] == ["42s", "15m0s", "2h0m0s"]
    assert [format_age(s) for s in (-3, 12, 400, 10_000, 400_000)] == ["0s", "12s", "6m", "2h", "4d"]


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a" * 64, "a.b", "a\x00", "a/b"])
def test_bad_names_are_named(name: str) -> None:
    assert name_problem(name) is not None


def test_generated_names_are_names() -> None:
    assert name_problem(generated_name("grpo-lora-")) is None
    assert name_problem(generated_name("x" * 80)) is None
    assert new_api_key().startswith("nodus_")


def test_digests_ignore_key_order_and_refuse_nan() -> None:
    assert digest_of({"a": 1, "b": [1, "é"]}) == digest_of({"b": [1, "é"], "a": 1})
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"x": float("nan")})


def test_merge_patch_follows_the_rfc_examples() -> None:
    assert merge_patch({"a": "b", "c": {"d": 1, "e": 2}}, {"a": None, "c": {"d": None, "f": 3}}) == {
        "c": {"e": 2, "f": 3}
    }
    assert merge_patch({"a": [1]}, {"a": [2, 3]}) == {"a": [2, 3]}
    assert merge_patch("x", {"a": {"b": None}}) == {"a": {}}


def test_json_patch_applies_every_operation() -> None:
    start = {"a": [1, 2], "b": {"c": 1}, "m~/n": 0}
    steps = [
        {"op": "test", "path": "/a/0", "value": 1},
        {"op": "add", "path": "/a/-", "value": 3},
        {"op": "replace", "path": "/b/c", "value": 2},
        {"op": "copy", "from": "/b/c", "path": "/d"},
        {"op": "move", "from": "/d", "path": "/e"},
        {"op": "remove", "path": "/m~0~1n"},
    ]
    assert json_patch(start, steps) == {"a": [1, 2, 3], "b": {"c": 2}, "e": 2}
    assert start["a"] == [1, 2]


@pytest.mark.parametrize(
    ("operations", "error"),
    [
        ({}, BadRequest),
        ("x", BadRequest),
        ([1], BadRequest),
        ([{"op": "add"}], BadRequest),
        ([{"op": "fly", "path": "/a"}], BadRequest),
        ([{"op": "remove", "path": "/zz"}], Invalid),
        ([{"op": "test", "path": "/a", "value": 2}], Invalid),
        ([{"op": "add", "path": "a", "value": 2}], Invalid),
        ([{"op": "add", "path": "/a/b", "value": 2}], Invalid),
        ([{"op": "add", "path": "/l/9", "value": 2}], Invalid),
        ([{"op": "add", "path": "/b"}], Invalid),
    ],
)
def test_bad_json_patches_are_typed(operations: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        json_patch({"a": 1, "l": []}, operations)


def _nested(levels: int) -> dict[str, Any]:
    return {"n": _nested(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    ("operations", "error", "says"),
    [
        ([{"op": "copy", "from": "", "path": "/a"}] * 80, Invalid, "nested deeper"),
        ([{"op": "copy", "from": "", "path": f"/a{number}"} for number in range(60)], Invalid, "the copies are over"),
        ([{"op": "test", "path": "/a", "value": 1}] * 1001, BadRequest, "at most 1000 operations"),
        ([{"op": "add", "path": "/n" * 50 * n, "value": _nested(50)} for n in range(40)], Invalid, "nested deeper"),
    ],
)
def test_json_patches_that_grow_without_end_are_refused(operations: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        json_patch({"a": 1, "l": ["x" * 100]}, operations)


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ("a=1", {"a": "1"}, True),
        ("a==1", {"a": "1"}, True),
        ("a!=1", {}, True),
        ("a in (1, 2)", {"a": "2"}, True),
        ("a notin (1,2)", {"a": "2"}, False),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("a=1,b=2", {"a": "1"}, False),
        ("nodus.dev/x=y", {"nodus.dev/x": "y"}, True),
        ("", {"a": "1"}, True),
    ],
)
def test_label_selectors(selector: str, labels: dict[str, str], expected: bool) -> None:
    assert matches_labels(parse_selector(selector), labels) is expected


@pytest.mark.parametrize("selector", ["=", "a in", "a in (", ",,", "a=b c", "(a)", "a=1,,b"])
def test_bad_selectors_are_refused(selector: str) -> None:
    with pytest.raises(BadRequest, match="not a selector"):
        parse_selector(selector)


def test_field_selectors_follow_dotted_paths() -> None:
    wire = {"status": {"phase": "Ready", "n": 3, "ok": True}}
    assert matches_fields(parse_selector("status.phase=Ready,status.n=3,status.ok=true,spec.x!=1"), wire)
    assert not matches_fields(parse_selector("status.phase.deep=Ready"), wire)


def test_endless_selectors_are_refused() -> None:
    assert len(parse_selector(",".join(["a=b"] * 100))) == 100
    with pytest.raises(BadRequest, match="at most 100 terms"):
        parse_selector(",".join(["a=b"] * 101))
