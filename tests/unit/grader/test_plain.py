"""Plain data between a grader and the code it has run: what crosses, what does not, and what counts as equal."""

from __future__ import annotations

import math
import sys
from collections import Counter, OrderedDict
from typing import Any, NamedTuple

import pytest

from nodus.grader.codebox.plain import MAX_COLLISIONS, NotPlain, dumps, loads, matches


class Pair(NamedTuple):
    """A tuple of a class."""

    a: int
    b: int


class Always(int):
    """A number that says it equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


VALUES: list[Any] = [
    None, True, 0, -5, 10**300, 1.5, "", "a\ud800\x00", [], (), {}, [1, (2, [3])], {"a": [1], 2: (3,), (4, 5): None},
    ["l", 1], ["d"], math.inf, -math.inf,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    back = loads(dumps(value))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "plain"), [(Always(7), 7), (Pair(1, 2), (1, 2)), (Counter("aa"), {"a": 2}), (OrderedDict(b=1), {"b": 1})]
)
def test_what_derives_from_a_built_in_type_travels_as_that_type(value: Any, plain: Any) -> None:
    back = loads(dumps(value))
    assert back == plain and type(back) is type(plain)


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"x", [object()], _deep(), 1 << 100_000], ids=lambda v: type(v).__name__
)
def test_other_values_do_not_cross(value: object) -> None:
    with pytest.raises(NotPlain):
        dumps(value)


MADE_UP = [
    "", "x", "{}",
    '{"a": 1}', "[]", '["x", 1]', '["f", "1"]', '["d", 1]', '["d", [["l"], 1]]', '["d", [1]]', "[" * 100_000,
    "1" * 5000, '["d"' + ',["a",1]' * (MAX_COLLISIONS + 1) + "]", "[[1]]",
]  # fmt: skip


@pytest.mark.parametrize("text", MADE_UP, ids=lambda text: text[:12])
def test_text_that_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(NotPlain):
        loads(text)


def test_keys_that_collide_are_refused_and_many_that_do_not_are_none_of_them() -> None:
    with pytest.raises(NotPlain, match="share a hash"):
        loads(dumps({number * sys.hash_info.modulus: 0 for number in range(MAX_COLLISIONS + 1)}))
    many = {number: str(number) for number in range(50_000)}
    assert loads(dumps(many)) == many


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (4, 4.0, True), (True, 1, True), (1.0000001, 1.0, True), (1.1, 1.0, False), (4, 5, False), ("4", 4, False),
        ([1], (1,), False), ([1, 2], [1], False), ((1.0000001,), (1.0,), True), ({"a": 1.0}, {"a": 1}, True),
        ({"a": 1}, {"b": 1}, False), ({}, [], False), (None, None, True), (None, 0, False), (math.nan, math.nan, True),
        (math.inf, 1.0, False), (math.inf, math.inf, True), (10**400, 1.0, False), ("a", "a", True),
    ],
)  # fmt: skip
def test_equal_means_what_python_says_but_for_small_differences(value: Any, expected: Any, same: bool) -> None:
    assert matches(value, expected) is same
