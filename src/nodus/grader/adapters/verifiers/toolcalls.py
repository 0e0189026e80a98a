"""Calls of tools in the text of a reply, the form that Qwen and most open chat templates teach, and tools' schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_MAX_STARTS = 64
"""Places where a bare object is tried: a reply of opening braces must not cost its grader the time limit."""
MAX_CALLS = 32
_decode = json.JSONDecoder().raw_decode


class Call(NamedTuple):
    """One call of a tool.

    Attributes:
        name: The tool's.
        arguments: By parameter.
    """

    name: str
    arguments: dict[str, Any]


def calls_in(text: str) -> list[Call]:
    """Return the calls of a reply, in its order, at most ``MAX_CALLS``.

    ``<tool_call>`` blocks win; without one that holds a call, bare JSON objects with a name and arguments count.
    """
    blocks = [call for block in _BLOCK.findall(text) if (call := _call(_object_at(block, 0)[0])) is not None]
    return (blocks or _bare(text))[:MAX_CALLS]


def _bare(text: str) -> list[Call]:
    found: list[Call] = []
    position, starts = text.find("{"), 0
    while position >= 0 and starts < _MAX_STARTS:
        value, end = _object_at(text, position)
        if (call := _call(value)) is not None:
            found.append(call)
        starts += 1
        position = text.find("{", end if value is not None else position + 1)
    return found


def _object_at(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value at a position, white space before it skipped, and its end; None where there is none."""
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    try:
        return _decode(text, position)
    except (ValueError, RecursionError):
        return None, position


def _call(value: Any) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))  # Llama's template says parameters
    if isinstance(arguments, str):
        arguments = _object_at(arguments, 0)[0]
    return Call(value["name"], arguments) if isinstance(arguments, dict) else None


def schemas(tools: Iterable[Any]) -> list[dict[str, Any]]:
    """Return tools of any version of the library as chat templates take them."""
    return [_schema(tool) for tool in tools]


def _schema(tool: Any) -> dict[str, Any]:
    given = tool.model_dump() if hasattr(tool, "model_dump") else tool
    function = given.get("function") or given
    names = ("name", "description", "parameters")
    plain = {name: function[name] for name in names if function.get(name) is not None}
    return {"type": "function", "function": json.loads(json.dumps(plain, default=str))}
