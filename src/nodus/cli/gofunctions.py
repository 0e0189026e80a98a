"""The functions of Go templates, and how Go prints JSON values."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

_VERB = re.compile(r"%(?P<flags>[-+0 #]*)(?P<width>\d{0,4})(?:\.(?P<precision>\d{1,4}))?(?P<verb>[a-zA-Z%])")


class TemplateError(ValueError):
    """The template isn't one that is understood; the message says why."""


def as_go_text(value: Any) -> str:
    """Return a value as Go's ``%v`` prints it."""
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return f"map[{' '.join(f'{key}:{as_go_text(item)}' for key, item in sorted(value.items()))}]"
    if isinstance(value, list):
        return f"[{' '.join(as_go_text(item) for item in value)}]"
    return format(value, "g") if isinstance(value, float) else str(value)


def is_true(value: Any) -> bool:
    """Return whether ``if`` takes the value for true: nil, 0, false, and what is empty are not."""
    return bool(value)


def printf(template: str, *values: Any) -> str:
    """Return a text with its verbs (``%s %v %d %q %t %f %x``) replaced, as Go does it."""
    left = list(values)

    def verb(match: re.Match[str]) -> str:
        name = match["verb"]
        if name == "%":
            return "%"
        if not left:
            return f"%!{name}(MISSING)"
        return _formatted(match, left.pop(0))

    return _VERB.sub(verb, template) + (f"%!(EXTRA {', '.join(map(as_go_text, left))})" if left else "")


def _formatted(match: re.Match[str], value: Any) -> str:
    name, flags, width = match["verb"], match["flags"], match["width"]
    precision = None if match["precision"] is None else int(match["precision"])
    if name == "q":
        text = json.dumps(as_go_text(value), ensure_ascii=False)
    elif name in "dfxXeg" and isinstance(value, int | float) and not isinstance(value, bool):
        form = name if name != "d" or isinstance(value, int) else "g"
        if form in "xX" and not isinstance(value, int):
            form = "g"
        dotted = f".{6 if precision is None else precision}" if form in "fe" else ""
        sign = "+" if "+" in flags else ""
        zeros = "0" if "0" in flags and "-" not in flags and width else ""
        return format(value, f"{sign}{zeros}{width if zeros else ''}{dotted}{form}").rjust(
            0 if zeros else int(width or 0)
        )
    elif name in "svt":
        text = as_go_text(value)[:precision]
    else:
        return f"%!{name}({as_go_text(value)})"
    return text.ljust(int(width or 0)) if "-" in flags else text.rjust(int(width or 0))


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list | str):
            if not isinstance(key, int) or not 0 <= key < len(value):
                raise LookupError(f"there is no {key!r} in {len(value)} values")
            value = value[key]
        elif value is not None:
            raise TypeError(f"{as_go_text(value)[:40]!r} has no elements")
    return value


def _slice(value: Any, start: int = 0, end: int | None = None) -> Any:
    if not isinstance(value, list | str):
        raise TypeError("it takes a list or a text")
    return value[start:end]


def _length(value: Any) -> int:
    if not isinstance(value, Mapping | list | str):
        raise TypeError(f"{as_go_text(value)[:40]!r} has no length")
    return len(value)


def _and(*values: Any) -> Any:
    return next((value for value in values if not is_true(value)), values[-1])


def _or(*values: Any) -> Any:
    return next((value for value in values if is_true(value)), values[-1])


def _exists(value: Any, *keys: Any) -> bool:
    for key in keys:
        inside = isinstance(key, int) and 0 <= key < len(value) if isinstance(value, list) else False
        if not inside and not (isinstance(value, Mapping) and key in value):
            return False
        value = value[key]
    return True


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": _and,
    "or": _or,
    "not": lambda value: not is_true(value),
    "eq": lambda first, *others: any(first == other for other in others),
    "ne": lambda left, right: left != right,
    "lt": lambda left, right: left < right,
    "le": lambda left, right: left <= right,
    "gt": lambda left, right: left > right,
    "ge": lambda left, right: left >= right,
    "len": _length,
    "index": _index,
    "slice": _slice,
    "print": lambda *values: " ".join(as_go_text(value) for value in values),
    "println": lambda *values: " ".join(as_go_text(value) for value in values) + "\n",
    "printf": printf,
    "urlquery": lambda value: quote(as_go_text(value), safe=""),
    "js": lambda value: json.dumps(as_go_text(value))[1:-1],
    "html": lambda value: as_go_text(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
    "exists": _exists,
    "base64decode": lambda value: base64.b64decode(value, validate=True).decode(),
}
