"""What an OpenEnv observation says to a model, as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_NOT_TOLD = ("done", "reward", "metadata")
_ONCE = "prompt"


def describe(observation: Any, before: Any = None, turn: str = "") -> str:
    """Return an observation as a message.

    Its text fields, a line each, and the texts of its lists of messages. Of those lists only what is new since the
    observation before is told, without the model's own turn; then no text field that has not changed is told again, and
    no ``prompt``. An observation without text is told as JSON. ``done``, ``reward`` and ``metadata`` are never told.

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
        if new := _new(heard, _heard(earlier), turn):
            heard = new
            texts = {name: text for name, text in texts.items() if name != _ONCE and earlier.get(name) != text}
    lines = list(texts.values())
    lines += [text for text in heard if not any(text.strip() in line for line in lines)]
    return "\n".join(lines) if lines else json.dumps(_plain(fields), sort_keys=True, default=str)


def _new(heard: list[str], known: list[str], turn: str) -> list[str]:
    """Return what of the messages was not heard before: those at the end, and what the last one was lengthened by."""
    last = len(known) - 1
    if heard[: last + 1] == known:
        new = heard[last + 1 :]
    elif len(heard) > last >= 0 and heard[:last] == known[:last] and heard[last].startswith(known[last]):
        new = [heard[last][len(known[last]) :], *heard[last + 1 :]]
    else:
        new = heard
    own = re.compile(r"\A\s*(\[[^\]\n]{1,40}\][ \t]*)?" + re.escape(turn.strip()) + r"[ \t]*(\n|\Z)")
    told = [own.sub("", text, count=1) if turn.strip() else text for text in new]
    return [text.strip("\n") for text in told if text.strip()]


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
