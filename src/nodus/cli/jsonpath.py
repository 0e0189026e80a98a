"""The part of JSONPath that scripts use: ``{.a.b}``, ``['key']``, ``[0]``, ``[-1]``, ``[*]``, and text between."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

_STEP = re.compile(
    r"""\.(?P<key>[A-Za-z0-9_\-/]+|\*)|\[(?:'(?P<quoted>[^']*)'|"(?P<double>[^"]*)"|(?P<index>-?\d+|\*))\]"""
)
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\"": '"'}


class JsonPathError(ValueError):
    """The expression isn't one that is understood; the message shows where it stops."""


def render(template: str, document: Any) -> str:
    """Return a template with every ``{path}`` replaced by what it finds, several finds joined by spaces.

    Args:
        template: Such as ``{.metadata.name}{"\\n"}``, or a bare path such as ``.metadata.name``.
        document: JSON.

    Raises:
        JsonPathError: When an expression can't be read.
    """
    if "{" not in template:
        template = "{" + template + "}"
    pieces = re.split(r"(\{[^{}]*\})", template)
    if any(brace in piece for piece in pieces[::2] for brace in "{}"):
        raise JsonPathError(f"JSONPath {template!r} has a brace without its other half")
    return "".join(_piece(piece, document) for piece in pieces)


def find(path: str, document: Any) -> list[Any]:
    """Return everything a path finds; nothing where a key is missing.

    Args:
        path: Such as ``.status.outputs[*].name``; ``{}`` around it and a leading ``$`` are allowed.
        document: JSON.

    Raises:
        JsonPathError: When the path can't be read.
    """
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    text = text.removeprefix("$")
    if text and text[0] not in ".[":
        text = "." + text
    values, position = [document], 0
    while position < len(text):
        if text[position:] == ".":
            break
        match = _STEP.match(text, position)
        if match is None:
            raise JsonPathError(f"JSONPath {path!r} is not understood from {text[position:]!r} on")
        values = [found for value in values for found in _step(match, value)]
        position = match.end()
    return values


def as_text(value: Any) -> str:
    """Return a found value as it is printed: strings bare, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _piece(piece: str, document: Any) -> str:
    if not (piece.startswith("{") and piece.endswith("}")):
        return piece
    inner = piece[1:-1].strip()
    if inner.startswith('"') and inner.endswith('"') and len(inner) > 1:
        literal = inner[1:-1]
        for escape, meant in _ESCAPES.items():
            literal = literal.replace(escape, meant)
        return literal
    if inner.split(" ")[0] in ("range", "end"):
        raise JsonPathError("JSONPath `range` is not supported; use -o json with jq, or [*]")
    return " ".join(as_text(value) for value in find(inner, document))


def _step(match: re.Match[str], value: Any) -> Iterable[Any]:
    index = match["index"]
    if index == "*" or match["key"] == "*":
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if index is not None:
        position = int(index)
        return [value[position]] if isinstance(value, list) and -len(value) <= position < len(value) else []
    key = next(name for name in (match["key"], match["quoted"], match["double"]) if name is not None)
    return [value[key]] if isinstance(value, dict) and key in value else []
