"""JSONPath as Kubernetes tools have it.

Text with expressions in braces: paths (``{.a.b}``, ``{..name}``, ``['key']``, ``[0]``, ``[-1]``, ``[1:3]``, ``[*]``,
``[?(@.phase=="Ready")]``), texts (``{"\\n"}``), and loops (``{range .items[*]}...{end}``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

_KEY = re.compile(r"(?P<key>(?:[A-Za-z0-9_\-/$@]|\\.)+|\*)")
_INDEX = re.compile(r"-?\d+$")
_SLICE = re.compile(r"(-?\d*):(-?\d*)(?::(-?\d+))?$")
_FILTER = re.compile(r"\?\(\s*(?P<path>@?.*?)\s*(?:(?P<operator>==|!=|<=|>=|<|>)\s*(?P<value>.+?)\s*)?\)$")
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\"": '"', r"\\": "\\"}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
MAX_FOUND = 1_000_000
"""Values of one path; ``..`` can multiply them."""

Step = Callable[[Any], Iterable[Any]]


class JsonPathError(ValueError):
    """The expression isn't one that is understood; the message shows where it stops."""


class _Piece(NamedTuple):
    kind: str
    """text, path, range or end."""
    content: str


def render(template: str, document: Any) -> str:
    """Return a template with every ``{expression}`` replaced by what it finds, several finds joined by spaces.

    Args:
        template: Such as ``{.metadata.name}{"\\n"}``, or a bare path such as ``.metadata.name``.
        document: JSON.

    Raises:
        JsonPathError: When an expression can't be read.
    """
    if "{" not in template:
        template = "{" + template + "}"
    pieces = list(_pieces(template))
    _check_loops(template, pieces)
    return "".join(_rendered(pieces, document, document))


def find(path: str, document: Any, root: Any = None) -> list[Any]:
    """Return everything a path finds; nothing where a key is missing.

    Args:
        path: Such as ``.status.outputs[*].name``; ``{}`` around it and a leading ``$`` are allowed.
        document: JSON.
        root: What ``$`` means; the document when None.

    Raises:
        JsonPathError: When the path can't be read.
    """
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    values = [document]
    if text.startswith("$"):
        text, values = text[1:], [document if root is None else root]
    text = text.removeprefix("@")
    if text and text[0] not in ".[":
        text = "." + text
    for step in _steps(path, text):
        values = [found for value in values for found in step(value)]
        if len(values) > MAX_FOUND:
            raise JsonPathError(f"JSONPath {path!r} finds more than {MAX_FOUND} values")
    return values


def as_text(value: Any) -> str:
    """Return a found value as it is printed: strings bare, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# ---------------------------------------------------------------------------------------------------------- templates
def _pieces(template: str) -> Iterator[_Piece]:
    position = 0
    while position < len(template):
        opening = template.find("{", position)
        text = template[position : opening if opening >= 0 else len(template)]
        if "}" in text:
            raise JsonPathError(f"JSONPath {template!r} has a brace without its other half")
        if text:
            yield _Piece("text", text)
        if opening < 0:
            return
        closing = _closing(template, opening)
        inner = template[opening + 1 : closing].strip()
        position = closing + 1
        word, _, rest = inner.partition(" ")
        if word in ("range", "end"):
            yield _Piece(word, rest.strip())
        elif len(inner) > 1 and inner[0] == inner[-1] and inner[0] in "\"'":
            yield _Piece("text", re.sub(r"\\.", lambda match: _ESCAPES.get(match[0], match[0]), inner[1:-1]))
        else:
            yield _Piece("path", inner)


def _closing(template: str, opening: int) -> int:
    """Return where the expression that opens there ends; braces in quotes don't count."""
    quote = None
    position = opening + 1
    while position < len(template):
        sign = template[position]
        if quote and sign == "\\":
            position += 1
        elif quote:
            quote = None if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign == "}":
            return position
        elif sign == "{":
            break
        position += 1
    raise JsonPathError(f"JSONPath {template!r} has a brace without its other half")


def _check_loops(template: str, pieces: list[_Piece]) -> None:
    depth = 0
    for piece in pieces:
        depth += {"range": 1, "end": -1}.get(piece.kind, 0)
        if depth < 0:
            break
    if depth != 0:
        raise JsonPathError(f"JSONPath {template!r}: every {{range ...}} needs its {{end}}")


def _rendered(pieces: list[_Piece], document: Any, root: Any) -> Iterator[str]:
    position = 0
    while position < len(pieces):
        piece = pieces[position]
        if piece.kind == "text":
            yield piece.content
        elif piece.kind == "path":
            yield " ".join(as_text(value) for value in find(piece.content, document, root))
        elif piece.kind == "range":
            end = _end_of(pieces, position)
            for value in find(piece.content, document, root):
                yield from _rendered(pieces[position + 1 : end], value, root)
            position = end
        position += 1


def _end_of(pieces: list[_Piece], start: int) -> int:
    depth = 0
    for position in range(start, len(pieces)):
        depth += {"range": 1, "end": -1}.get(pieces[position].kind, 0)
        if depth == 0:
            return position
    raise AssertionError("loops were checked")


# -------------------------------------------------------------------------------------------------------------- paths
def _steps(path: str, text: str) -> Iterator[Step]:
    position = 0
    while position < len(text) and text[position:] != ".":
        rest = text[position:]
        if rest.startswith("["):
            length = _bracket_length(path, rest)
            yield _bracket(path, rest[1 : length - 1].strip())
        else:
            dots = 2 if rest.startswith("..") else 1
            if rest.startswith("..["):
                yield _descend
                position += 2
                continue
            match = _KEY.match(rest, dots) if rest.startswith(".") else None
            if match is None:
                raise JsonPathError(f"JSONPath {path!r} is not understood from {rest!r} on")
            if dots == 2:
                yield _descend
            name = match["key"]
            yield _every if name == "*" else _key(re.sub(r"\\(.)", r"\1", name))
            length = match.end()
        position += length


def _bracket_length(path: str, rest: str) -> int:
    depth, quote = 0, None
    for position, sign in enumerate(rest):
        if quote:
            quote = None if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        else:
            depth += {"[": 1, "]": -1}.get(sign, 0)
            if depth == 0:
                return position + 1
    raise JsonPathError(f"JSONPath {path!r} is not understood from {rest!r} on")


def _bracket(path: str, inner: str) -> Step:
    if inner == "*":
        return _every
    if inner.startswith("?"):
        return _filter(path, inner)
    parts = [part.strip() for part in re.split(r",(?=(?:[^'\"]|'[^']*'|\"[^\"]*\")*$)", inner)]
    steps = [_one_of(path, inner, part) for part in parts]
    return lambda value: (found for step in steps for found in step(value))


def _one_of(path: str, inner: str, part: str) -> Step:
    if len(part) > 1 and part[0] == part[-1] and part[0] in "\"'":
        return _key(part[1:-1])
    if _INDEX.match(part):
        return _index(int(part))
    match = _SLICE.match(part)
    if match is None or match[3] == "0":
        raise JsonPathError(f"JSONPath {path!r} is not understood from {f'[{inner}]'!r} on")
    cut = slice(*(int(number) if number else None for number in match.groups()))
    return lambda value: value[cut] if isinstance(value, list) else []


def _filter(path: str, inner: str) -> Step:
    match = _FILTER.match(inner)
    if match is None:
        raise JsonPathError(f"JSONPath {path!r} is not understood from {f'[{inner}]'!r} on")
    left, operator, right = match["path"], match["operator"], match["value"]
    wanted = None if right is None else _literal(path, right)
    list(_steps(path, left.removeprefix("@")))  # a mistake in it is said even where there is nothing to filter

    def holds(item: Any) -> bool:
        found = find(left, item)
        if operator is None:
            return bool(found)
        try:
            return any(_COMPARE[operator](value, wanted) for value in found)
        except TypeError:  # text against a number has no order
            return False

    return lambda value: [item for item in (value if isinstance(value, list) else []) if holds(item)]


def _literal(path: str, text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError as error:
        raise JsonPathError(f"JSONPath {path!r}: {text!r} is no text in quotes, number, true or false") from error


def _key(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _index(position: int) -> Step:
    def step(value: Any) -> list[Any]:
        return [value[position]] if isinstance(value, list) and -len(value) <= position < len(value) else []

    return step


def _every(value: Any) -> Iterable[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _descend(value: Any) -> Iterator[Any]:
    pending = [value]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(reversed(list(_every(current))))
