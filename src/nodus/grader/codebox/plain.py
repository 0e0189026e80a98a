"""Values that cross between a grader and the code it has run: plain data, as JSON, and nothing that could act.

Numbers, text, True, False and None are themselves; everything else is a JSON list with its kind in front::

    [1, 2]  ["l", 1, 2]      (1, 2)  ["t", 1, 2]      {"a": 1}  ["d", ["a", 1]]      nan  ["f", "nan"]

What comes back is built from built-in types alone, so that comparing it calls no code of the program's.
"""

from __future__ import annotations

import json
import math
from typing import Any

MAX_COLLISIONS = 64
"""Keys of one dict that share a hash: a program can choose keys that all do, and each costs as much as all before."""


class NotPlain(ValueError):
    """A value is no plain data, or a text holds none."""


def dumps(value: object) -> str:
    """Return a value as JSON text; what is derived from a built-in type travels as that type.

    Raises:
        NotPlain: For a value of any other type.
    """
    try:
        return json.dumps(_encoded(value), separators=(",", ":"))
    except RecursionError:
        raise NotPlain("the value is nested too deeply") from None
    except ValueError as error:  # an integer of more digits than Python prints
        raise error if isinstance(error, NotPlain) else NotPlain(str(error)) from None


def loads(text: str) -> Any:
    """Return the value of a text that ``dumps`` made, or that somebody made up.

    Raises:
        NotPlain: When it holds none.
    """
    try:
        return _decoded(json.loads(text, object_pairs_hook=_no_object))
    except (ValueError, RecursionError, TypeError, OverflowError) as error:
        raise NotPlain(f"{type(error).__name__}: {error}") from None


def matches(value: object, expected: object, tolerance: float = 1e-6) -> bool:
    """Say whether a plain value equals the expected one, as ``==`` does, floats within a tolerance.

    Args:
        value: What the code returned.
        expected: What it should have returned.
        tolerance: Largest difference of a float, absolute or by its size, whichever is larger.
    """
    try:
        return _same(value, expected, tolerance)
    except (RecursionError, OverflowError, TypeError):
        return False


def _encoded(value: object) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        number = float.__float__(value)
        return number if math.isfinite(number) else ["f", repr(number)]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return ["l", *map(_encoded, list.__iter__(value))]
    if isinstance(value, tuple):
        return ["t", *map(_encoded, tuple.__iter__(value))]
    if isinstance(value, dict):
        return ["d", *([_encoded(key), _encoded(item)] for key, item in dict.items(value))]
    raise NotPlain(f"a {type(value).__name__} is no plain data")


def _decoded(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    kind, *items = value
    if kind == "l":
        return [_decoded(item) for item in items]
    if kind == "t":
        return tuple(_decoded(item) for item in items)
    if kind == "f" and items in (["nan"], ["inf"], ["-inf"]):
        return float(items[0])
    if kind == "d":
        return _dict([(_decoded(key), _decoded(item)) for key, item in items])
    raise NotPlain(f"{str(kind)[:20]!r} is no kind of value")


def _dict(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    shared: dict[int, int] = {}
    for key, _ in pairs:
        shared[hash(key)] = shared.get(hash(key), 0) + 1
    if max(shared.values(), default=0) > MAX_COLLISIONS:
        raise NotPlain(f"more than {MAX_COLLISIONS} keys of a dict share a hash")
    return dict(pairs)


def _no_object(pairs: list[tuple[str, Any]]) -> Any:
    raise NotPlain("a JSON object is no value")


def _same(value: object, expected: object, tolerance: float) -> bool:
    if isinstance(expected, int | float) and isinstance(value, int | float):
        if value == expected:
            return True
        if not isinstance(value, float) and not isinstance(expected, float):
            return False
        if math.isnan(value) and math.isnan(expected):
            return True
        return math.isfinite(value) and abs(value - expected) <= tolerance * max(1.0, abs(expected))
    if type(value) is not type(expected):
        return False
    if isinstance(expected, list | tuple) and isinstance(value, list | tuple):
        return len(value) == len(expected) and all(
            _same(one, other, tolerance) for one, other in zip(value, expected, strict=True)
        )
    if isinstance(expected, dict) and isinstance(value, dict):
        return len(value) == len(expected) and all(
            key in value and _same(value[key], item, tolerance) for key, item in expected.items()
        )
    return value == expected
