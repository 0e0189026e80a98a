"""What ``--for`` asks of an object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from nodus.cli.jsonpath import JsonPathError, as_text, find

PHASE_PATHS = (".status.phase", "status.phase", "$.status.phase")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition, as ``--for`` words it."""

    text: str
    """For messages."""
    holds: Callable[[Any], bool]
    """Whether an object meets it."""
    deleted: bool = False
    """The object's absence is what is waited for."""
    missing_ok: bool = False
    """It may be gone before the wait begins."""
    phase: str | None = None
    """The phase it asks for, where it asks for one."""


GONE = Condition("its deletion", lambda obj: False, deleted=True, missing_ok=True)


def parse_condition(text: str) -> Condition:
    """Return the condition of ``--for``.

    Raises:
        click.UsageError: When it is none, or its path can't be read.
    """
    if text == "delete":
        return Condition("its deletion", lambda obj: False, deleted=True)
    form, _, rest = text.partition("=")
    if form == "jsonpath":
        return _value(text, *split_path(rest))
    if form == "condition":
        return _condition(text, rest)
    raise click.UsageError(f"--for={text}: use jsonpath='{{.status.phase}}'=VALUE, condition=NAME[=STATUS] or delete.")


def _value(text: str, path: str, wanted: str | None) -> Condition:
    if not path.strip("{} "):
        raise click.UsageError(f"--for={text} names nothing to look at.")
    try:
        find(path, {})
    except JsonPathError as error:
        raise click.UsageError(f"--for: {error}.") from error

    def holds(obj: Any) -> bool:
        values = [as_text(value) for value in find(path, obj)]
        return bool(values) if wanted is None else wanted in values

    phase = wanted if path.strip("{} ") in PHASE_PATHS else None
    return Condition(f"{path}={wanted}" if wanted is not None else path, holds, phase=phase)


def _condition(text: str, rest: str) -> Condition:
    name, _, status = rest.partition("=")
    if not name:
        raise click.UsageError(f"--for={text} names nothing to look at.")
    status = status or "True"

    def holds(obj: Any) -> bool:
        conditions = (obj.get("status") or {}).get("conditions") or []
        return any(
            str(item.get("type")).lower() == name.lower() and str(item.get("status")).lower() == status.lower()
            for item in conditions
        )

    return Condition(f"condition {name}={status}", holds)


def split_path(text: str) -> tuple[str, str | None]:
    """Return the path and the value of ``'{.status.phase}'=Succeeded``; quotes may stand around either."""
    path, closing, rest = text.partition("}")
    if not closing:
        path, equals, value = text.partition("=")
        return path, value.strip("'\"") if equals else None
    rest = rest.lstrip("'\"")
    return path.lstrip("'\"") + closing, rest[1:].strip("'\"") if rest.startswith("=") else None
