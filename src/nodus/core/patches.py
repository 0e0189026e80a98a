"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902), both pure."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodus.core.errors import BadRequest, Invalid

MAX_OPERATIONS = 1000
MAX_COPIED = 1024 * 1024
"""Characters and values that all the ``copy`` operations of one patch may copy: a few dozen that copy an object into
itself would double it until memory runs out."""
MAX_DEPTH = 64
_POSITION = re.compile(r"0|[1-9][0-9]{0,8}")


def merge_patch(target: Any, patch: Any) -> Any:
    """Return ``target`` with an RFC 7386 merge patch applied; the arguments stay as they are."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """Return ``target`` with RFC 6902 operations applied in order.

    Raises:
        BadRequest: When the patch is not a list of operations.
        Invalid: When an operation's path doesn't exist, a ``test`` fails, or the result is larger or deeper than sense.
    """
    if not isinstance(operations, Sequence) or isinstance(operations, str | bytes):
        raise BadRequest(
            "a JSON patch is a list of operations", fix='Send [{"op": "replace", "path": "/spec/x", "value": 1}].'
        )
    if len(operations) > MAX_OPERATIONS:
        raise BadRequest(f"a JSON patch has at most {MAX_OPERATIONS} operations, this one {len(operations)}")
    document = copy.deepcopy(target)
    copied = 0
    for number, operation in enumerate(operations):
        if not isinstance(operation, Mapping) or not isinstance(operation.get("path"), str):
            raise BadRequest(f"operation {number} of the JSON patch has no op and path")
        if operation.get("op") == "copy":
            copied += _copied(document, operation, number)
            if copied > MAX_COPIED:
                raise Invalid(f"operation {number} of the JSON patch: the copies are over {MAX_COPIED} characters")
        document = _apply(document, operation, number)
    if _measure(document)[1] > MAX_DEPTH:
        raise Invalid(f"the patched object is nested deeper than {MAX_DEPTH} levels")
    return document


def _copied(document: Any, operation: Mapping[str, Any], number: int) -> int:
    """Return the size of what a ``copy`` is about to copy; a path that leads nowhere is refused when it is applied."""
    try:
        size, depth = _measure(_get(document, _parse(str(operation.get("from")))))
    except (KeyError, IndexError, TypeError, ValueError):
        return 0
    if depth > MAX_DEPTH:
        raise Invalid(f"operation {number} of the JSON patch: what it copies is nested deeper than {MAX_DEPTH} levels")
    return size


def _measure(value: Any) -> tuple[int, int]:
    """Return the size, in characters of text and number of values, and the depth; without recursion."""
    size = depth = 0
    pending = [(value, 0)]
    while pending:
        item, level = pending.pop()
        size, depth = size + 1, max(depth, level)
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            size += sum(map(len, item))
            pending.extend((child, level + 1) for child in item.values())
        elif isinstance(item, list):
            pending.extend((child, level + 1) for child in item)
    return size, depth


def _apply(document: Any, operation: Mapping[str, Any], number: int) -> Any:
    op, path = operation.get("op"), operation["path"]
    try:
        if op == "add":
            return _add(document, _parse(path), copy.deepcopy(operation["value"]))
        if op == "remove":
            return _remove(document, _parse(path))[0]
        if op == "replace":
            reduced = _remove(document, _parse(path))[0] if path else None
            return _add(reduced, _parse(path), copy.deepcopy(operation["value"]))
        if op == "move":
            reduced, moved = _remove(document, _parse(str(operation["from"])))
            return _add(reduced, _parse(path), moved)
        if op == "copy":
            return _add(document, _parse(path), copy.deepcopy(_get(document, _parse(str(operation["from"])))))
        if op == "test":
            if not _same(_get(document, _parse(path)), operation["value"]):
                raise Invalid(f"operation {number} of the JSON patch: the value at {path!r} is another")
            return document
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"operation {number} of the JSON patch: nothing fits {op!r} at {path!r} ({error})") from error
    raise BadRequest(f"operation {number} of the JSON patch: unknown op {op!r}")


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal in JSON, where 1 is 1.0 and not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _parse(pointer: str) -> list[str]:
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        raise ValueError("a JSON pointer starts with '/'")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def _index(container: list[Any], part: str, *, grow: bool) -> int:
    if grow and part == "-":
        return len(container)
    if not _POSITION.fullmatch(part):
        raise ValueError(f"{part[:40]!r} is no index")
    position = int(part)
    if position > len(container) - (0 if grow else 1):
        raise IndexError(f"index {part} is outside the list")
    return position


def _get(document: Any, parts: list[str]) -> Any:
    for part in parts:
        document = document[_index(document, part, grow=False)] if isinstance(document, list) else document[part]
    return document


def _add(document: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return value
    parent = _get(document, parts[:-1])
    if isinstance(parent, list):
        parent.insert(_index(parent, parts[-1], grow=True), value)
    elif isinstance(parent, dict):
        parent[parts[-1]] = value
    else:
        raise TypeError("the parent is neither an object nor a list")
    return document


def _remove(document: Any, parts: list[str]) -> tuple[Any, Any]:
    parent = _get(document, parts[:-1])
    if isinstance(parent, list):
        return document, parent.pop(_index(parent, parts[-1], grow=False))
    return document, parent.pop(parts[-1])
