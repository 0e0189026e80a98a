"""What an environment says between the model's turns: which chat messages count, and how they leave its process."""

from __future__ import annotations

import json
from typing import Any

from nodus.grader.adapters import Message

MESSAGES_BYTES = 64 * 1024
"""Of the messages after one turn, as JSON: the model reads them, so more is a fault and not a long answer."""
MAX_MESSAGES = 64
ROLES = ("system", "user", "tool")
_KEYS = frozenset({"role", "content", "name", "tool_call_id"})


class BadMessages(ValueError):
    """What an environment answered is no list of chat messages; the message says what it is."""


def check(value: object) -> list[Message] | None:
    """Return an environment's answer to a turn, or None when the episode has ended.

    Raises:
        BadMessages: When it is anything but None or a short list of messages that may follow the model's turn.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        what = f"{len(value)} messages" if isinstance(value, list) else f"a value of type {type(value).__name__}"
        raise BadMessages(f"the environment answered with {what}; expected 1 to {MAX_MESSAGES}, or None at the end")
    for position, message in enumerate(value):
        _check_message(message, position)
    return value


def _check_message(message: object, position: int) -> None:
    place = f"message {position} of the environment's answer"
    if not isinstance(message, dict):
        raise BadMessages(f"{place} is {type(message).__name__}; expected a dict with role and content")
    if message.get("role") not in ROLES:
        raise BadMessages(f"{place} has the role {str(message.get('role'))[:40]!r}; expected {', '.join(ROLES)}")
    if not isinstance(message.get("content"), str):
        raise BadMessages(f"{place} has content of type {type(message.get('content')).__name__}; expected text")
    for key, text in message.items():
        if key not in _KEYS or not isinstance(text, str):
            raise BadMessages(f"{place} has {str(key)[:40]!r}; expected {', '.join(sorted(_KEYS))}, all of them text")
        if text != text.encode("utf-8", "replace").decode():
            raise BadMessages(f"{place} holds half of a surrogate pair in {key!r}")


def write(messages: list[Message] | None) -> bytes:
    """Return an answer as an episode's process writes it, for :func:`read`.

    Raises:
        BadMessages: When it is none, or too long.
    """
    data = json.dumps({"messages": check(messages)}, ensure_ascii=False).encode()
    if len(data) > MESSAGES_BYTES:
        raise BadMessages(f"the environment answered with {len(data)} bytes; at most {MESSAGES_BYTES} are allowed")
    return data


def read(data: bytes) -> dict[str, Any] | None:
    """Return ``{"messages"}``, or the failure, that an episode's process wrote; None when it is neither."""
    try:
        result = json.loads(data)
        if not isinstance(result, dict):
            return None
        if result.keys() == {"messages"}:
            check(result["messages"])
            return result
    except (ValueError, RecursionError):
        return None
    return result if result.get("verdict") == "InfrastructureFailure" and result.get("reward") is None else None
