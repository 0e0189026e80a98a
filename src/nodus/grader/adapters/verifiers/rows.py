"""An environment's rows: which are held out, and what of them is published."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from nodus.grader.adapters.base import Message, Refused, held_out

_TEST_SEEDS = 1 << 30
"""Where the seeds of held-out rows begin: an environment that draws its tasks must not draw those of train again."""
Rows = list[dict[str, Any]]


class Row(NamedTuple):
    """One row of a dataset, which only the grader sees.

    Attributes:
        data: Its columns.
        seed: Of whatever is random in its episodes, so that each replay is the same.
    """

    data: dict[str, Any]
    seed: int


def splits(environment: Any) -> dict[str, list[Row]]:
    """Return the rows of ``train`` and ``test``: the dataset and the eval dataset.

    With only one of them every fifth row is held out; of a group, those of each environment for itself: a group fills
    the one that an environment lacks with the other.
    """
    train, test = _table(environment, "dataset"), _table(environment, "eval_dataset")
    members = members_of(environment)
    if not members:
        train, test = _split(train, test)
    else:
        parts = []
        for name, member in members.items():
            own = [
                [row for row in rows or [] if route(row, members) == name] if _has(member, table) else None
                for rows, table in ((train, "dataset"), (test, "eval_dataset"))
            ]
            parts.append(_split(*own))
        train, test = [row for part in parts for row in part[0]], [row for part in parts for row in part[1]]
    return {"train": _numbered(train, 0), "test": _numbered(test, _TEST_SEEDS)}


def members_of(environment: Any) -> dict[str, Any]:
    """Return the environments of a group by name; empty for what is no group."""
    found = getattr(environment, "env_map", None)
    return dict(found) if isinstance(found, dict) else {}


def route(data: dict[str, Any], members: dict[str, Any]) -> str | None:
    """Return the name of the environment of a group that a row belongs to."""
    name = info_of(data).get("env_id")
    name = name[0] if isinstance(name, list | tuple) and name else name
    return name if isinstance(name, str) and name in members else data.get("task")


def member_of(environment: Any, data: dict[str, Any]) -> Any:
    """Return the environment that plays a row: itself, or of a group the one the row belongs to."""
    members = members_of(environment)
    return members.get(route(data, members) or "", environment) if members else environment


def info_of(data: dict[str, Any]) -> dict[str, Any]:
    """Return a row's ``info``, which may be JSON text."""
    info = data.get("info")
    if isinstance(info, str):
        info = json.loads(info) if info.strip() else {}
    return dict(info) if info else {}


def tools_of(environment: Any, data: dict[str, Any]) -> list[Any]:
    """Return the tools that a row's prompt offers, in the library's own form."""
    info, member = info_of(data), member_of(environment, data)
    for given in (info.get("tool_defs"), info.get("oai_tools")):
        if given:
            return list(given)
    return list(getattr(member, "tool_defs", None) or getattr(member, "oai_tools", None) or ())


def public_messages(messages: Iterable[Any]) -> list[Message]:
    """Return chat messages with text as content, from those of any version of the library.

    Raises:
        Refused: When there is something else than text in one.
    """
    return [_public(message) for message in messages]


def _public(message: Any) -> Message:
    given = message.model_dump() if hasattr(message, "model_dump") else dict(message)
    kept: Message = {"role": given["role"], "content": text_of(given.get("content"))}
    if given.get("tool_call_id"):
        kept["tool_call_id"] = given["tool_call_id"]
    if given.get("tool_calls"):
        kept["tool_calls"] = json.loads(json.dumps(given["tool_calls"], default=lambda value: value.model_dump()))
    return kept


def text_of(content: Any) -> str:
    """Return a message's content as text.

    Raises:
        Refused: When a part of it is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_texts(content))


def _texts(parts: Iterable[Any]) -> Iterator[str]:
    for part in parts:
        given = part.model_dump() if hasattr(part, "model_dump") else part
        if isinstance(given, str):
            yield given
        elif isinstance(given.get("text"), str):
            yield given["text"]
        else:
            raise Refused(f"its prompts have content of type {given.get('type')!r}; only text can be trained on here")


def _split(train: Rows | None, test: Rows | None) -> tuple[Rows, Rows]:
    if train is not None and test is not None:
        return train, test
    rows = (train if train is not None else test) or []
    apart = [row for number, row in enumerate(rows) if held_out(number)]
    return [row for number, row in enumerate(rows) if not held_out(number)], apart


def _numbered(rows: Rows, first: int) -> list[Row]:
    return [Row(data, first + number) for number, data in enumerate(rows)]


def _has(environment: Any, table: str) -> bool:
    """Say whether a table was given; asking the library for the eval dataset gives the other where there is none."""
    return any(getattr(environment, name, None) is not None for name in (table, f"{table}_source"))


def _table(environment: Any, table: str) -> Rows | None:
    if not _has(environment, table):
        return None
    found = getattr(environment, f"get_{table}")()
    return [dict(row) for row in (found.to_list() if hasattr(found, "to_list") else found)]
