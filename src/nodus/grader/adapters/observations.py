"""What an OpenEnv observation says to a model, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_NOT_TOLD = ("done", "reward", "metadata")


def describe(observation: Any, before: Any = None, turn: str = "") -> str:
    """Return an observation as a message.

    Its text fields, a line each, and the texts of its lists of messages. Of those lists only what is new since the
    observation before is told, without the model's own turn, and then no text field that has not changed. An
    observation without any text is told as JSON. ``done``, ``reward`` and ``metadata`` are never told.

    Args:
        observation: What ``reset`` or ``step`` returned.
        before: The observation before it in the episode.
        turn: The model's turn between them.
    """
    fields = _fields(observation)
    texts = {name: value for name, value in fields.items() if isinstance(value, str) and value.strip()}
    heard = _heard(fields)
    if before is not None and heard:
        earlier = _fields(before)
        known = _heard(earlier)
        if heard[: len(known)] == known:
            heard = heard[len(known) :]
        heard = [text for text in heard if text.strip() != turn.strip()]
        if heard:
            texts = {name: text for name, text in texts.items() if earlier.get(name) != text}
    lines = list(texts.values())
    lines += [text for text in heard if not any(text in line for line in lines)]
    return "\n".join(lines) if lines else json.dumps(_plain(fields), sort_keys=True, default=str)


def _fields(observation: Any) -> dict[str, Any]:
    models = getattr(type(observation), "model_fields", None)
    if isinstance(observation, Mapping):
        names, values = list(observation), observation
    else:
        values = vars(observation)
        names = list(models) if isinstance(models, dict) else list(values)
    return {name: values[name] for name in names if name in values and name not in _NOT_TOLD}


def _heard(fields: Mapping[str, Any]) -> list[str]:
    """Return the texts of the messages in a observation's lists."""
    return [
        text for value in fields.values() if isinstance(value, list | tuple) for text in map(_content, value) if text
    ]


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, Mapping) else getattr(message, "content", None)
    return content if isinstance(content, str) else ""


def _plain(value: Any) -> Any:
    """Return a value with models and arrays as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if callable(dump := getattr(value, "model_dump", None)):
        return _plain(dump())
    return _plain(value.tolist()) if callable(getattr(value, "tolist", None)) else value
