"""Label and field selectors, parsed once and matched anywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nodus.core.errors import BadRequest

Operator = Literal["=", "!=", "in", "notin", "exists", "!exists"]
_SET = re.compile(r"([^\s!=,()]+)\s+(in|notin)\s*\(([^()]*)\)")
_PAIR = re.compile(r"([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=,()]*)")
_BARE = re.compile(r"(!?)([^\s!=,()]+)")
MAX_TERMS = 100
"""Of one selector; a database refuses queries of a thousand."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a selector; all terms must hold."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, value: str | None) -> bool:
        """Tell whether a key with ``value`` (None: absent) satisfies the term."""
        match self.operator:
            case "=" | "in":
                return value in self.values
            case "!=" | "notin":
                return value not in self.values
            case "exists":
                return value is not None
            case _:
                return value is None


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """Read ``a=b,c!=d,e in (x,y),f,!g``.

    Raises:
        BadRequest: When the text is no selector.
    """
    found: list[Requirement] = []
    position, text = 0, text.strip()
    while position < len(text):
        requirement, position = _term(text, position)
        if len(found) == MAX_TERMS:
            raise BadRequest(f"a selector has at most {MAX_TERMS} terms", fix="Use `key in (a,b)` for several values.")
        found.append(requirement)
        rest = text[position:].lstrip()
        if rest and not rest.startswith(","):
            raise _bad(text)
        position = len(text) - len(rest[1:].lstrip()) if rest else len(text)
    return tuple(found)


def _term(text: str, position: int) -> tuple[Requirement, int]:
    if match := _SET.match(text, position):
        values = tuple(value.strip() for value in match.group(3).split(","))
        return Requirement(match.group(1), "in" if match.group(2) == "in" else "notin", values), match.end()
    if match := _PAIR.match(text, position):
        return Requirement(match.group(1), "!=" if match.group(2) == "!=" else "=", (match.group(3),)), match.end()
    if match := _BARE.match(text, position):
        return Requirement(match.group(2), "!exists" if match.group(1) else "exists"), match.end()
    raise _bad(text)


def _bad(text: str) -> BadRequest:
    return BadRequest(f"{text[:200]!r} is not a selector", fix="Write it like app=web,tier!=db,env in (dev,prod).")


def matches_labels(requirements: tuple[Requirement, ...], labels: Mapping[str, str]) -> bool:
    """Tell whether ``labels`` satisfy every requirement."""
    return all(requirement.matches(labels.get(requirement.key)) for requirement in requirements)


def matches_fields(requirements: tuple[Requirement, ...], wire_object: Mapping[str, Any]) -> bool:
    """Tell whether the object (in wire form) satisfies every dotted-path requirement."""
    return all(requirement.matches(field_text(wire_object, requirement.key)) for requirement in requirements)


def field_text(wire_object: Mapping[str, Any], path: str) -> str | None:
    """Return the value at a dotted path as selectors compare it, or None when absent."""
    value: Any = wire_object
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
