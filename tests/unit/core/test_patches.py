"""Merge patches and JSON patches: what RFC 7386 and RFC 6902 say, and nothing but typed errors for the rest."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodus.core.errors import BadRequest, Invalid
from nodus.core.patches import json_patch, merge_patch

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab/~-0", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~-0", max_size=2), inner, max_size=3),
    max_leaves=8,
)
POINTERS = st.lists(
    st.sampled_from(["a", "b", "0", "1", "-", "-1", "01", "\u0661", "~0", "~1", "x", ""]), max_size=3
).map(lambda parts: "".join(f"/{part}" for part in parts)) | st.sampled_from(["a", "~", "/~2"])
OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]), "path": POINTERS},
        optional={"value": JSON, "from": POINTERS},
    ),
    max_size=4,
)


@given(JSON, OPERATIONS)
def test_any_json_patch_gives_a_value_or_a_typed_error_and_leaves_its_arguments(document: Any, patch: Any) -> None:
    before = copy.deepcopy((document, patch))
    try:
        json_patch(document, patch)
    except (BadRequest, Invalid):
        # Refused; that nothing was touched is checked below as well.
        pass
    assert (document, patch) == before


@given(JSON, JSON)
def test_a_merge_patch_applied_twice_is_applied_once(document: Any, patch: Any) -> None:
    once = merge_patch(document, patch)
    assert merge_patch(once, patch) == once


@pytest.mark.parametrize(
    ("document", "operation", "expected"),
    [
        ({"a": [1, 2]}, {"op": "add", "path": "/a/-", "value": 3}, {"a": [1, 2, 3]}),
        ({"a": [1, 2]}, {"op": "add", "path": "/a/2", "value": 3}, {"a": [1, 2, 3]}),
        ({"a": [1, 2]}, {"op": "replace", "path": "/a/0", "value": 3}, {"a": [3, 2]}),
        ({"a": 1}, {"op": "replace", "path": "", "value": 3}, 3),
        ({"a": {"b": 1}}, {"op": "move", "from": "/a/b", "path": "/c"}, {"a": {}, "c": 1}),
        ({"a": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"}, {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a/b": {"~": 1}}, {"op": "remove", "path": "/a~1b/~0"}, {"a/b": {}}),
        ({"a": 1}, {"op": "test", "path": "/a", "value": 1.0}, {"a": 1}),
        ({"a": None}, {"op": "test", "path": "/a", "value": None}, {"a": None}),
    ],
)
def test_operations(document: Any, operation: dict[str, Any], expected: Any) -> None:
    assert json_patch(document, [operation]) == expected


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "add", "path": "/a/3", "value": 1},
        {"op": "add", "path": "/a/01", "value": 1},
        {"op": "add", "path": "/a/+1", "value": 1},
        {"op": "remove", "path": "/a/-"},
        {"op": "remove", "path": "/s/0"},
        {"op": "remove", "path": ""},
        {"op": "replace", "path": "/nope", "value": 1},
        {"op": "add", "path": "/s/x", "value": 1},
        {"op": "add", "path": "/x"},
        {"op": "move", "from": "/o", "path": "/o/inner"},
        {"op": "test", "path": "/t", "value": 1},
        {"op": "test", "path": "/one", "value": True},
        {"op": "test", "path": "/o", "value": {"b": True}},
        {"op": "test", "path": "/a", "value": [1]},
    ],
)
def test_operations_that_fit_nothing_are_invalid(operation: dict[str, Any]) -> None:
    document = {"a": [1, 2], "s": "text", "o": {"b": 1}, "t": True, "one": 1}
    with pytest.raises(Invalid, match="operation 0 of the JSON patch"):
        json_patch(document, [operation])


@pytest.mark.parametrize("patch", [None, 5, "x", {}, [5], [{}], [{"op": "add"}], [{"op": "jump", "path": "/a"}]])
def test_what_is_no_json_patch_is_a_bad_request(patch: Any) -> None:
    with pytest.raises(BadRequest):
        json_patch({"a": 1}, patch)
