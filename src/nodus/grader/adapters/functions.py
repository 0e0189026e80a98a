"""The plain form: ``tasks(split)`` with ``reward(completion, answer)``, or with ``step(turns, answer)`` for episodes.

A module or any object that has them. ``step`` gets every turn of the model so far and returns the environment's next
message, or None once the episode has ended, and the reward so far; it replays the turns from the start.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

from nodus.grader.adapters.base import Adapter, Message
from nodus.grader.tasks import Task

EXPECTED = "tasks(split) and reward(completion, answer), or step(turns, answer) for episodes"


class Functions:
    """An environment made of functions; see the module.

    Args:
        tasks: Lists a split.
        reward: Scores one completion; None where there is ``step``.
        step: Plays an episode's turns; wins where both are given.
    """

    kind = "functions"

    def __init__(
        self,
        tasks: Callable[[str], Sequence[object]],
        reward: Callable[[str, Any], object] | None = None,
        step: Callable[[Sequence[str], Any], object] | None = None,
    ) -> None:
        self.episodes = step is not None
        self._tasks, self._reward, self._step = tasks, reward, step

    def tasks(self, split: str) -> Sequence[object]:
        """List a split."""
        return self._tasks(split)

    def grade(self, task: Task, turns: Sequence[str]) -> object:
        """Return what ``reward`` makes of the first turn, or the reward that ``step`` gives after the last."""
        if self._step is not None:
            return self._played(task, turns)[1]
        assert self._reward is not None
        return self._reward(turns[0], task.answer)

    def reply(self, task: Task, turns: Sequence[str]) -> list[Message] | None:
        """Return ``step``'s next message as the user's; text stands for one message."""
        message = self._played(task, turns)[0] if self._step is not None else None
        if message is None:
            return None
        return [{"role": "user", "content": message}] if isinstance(message, str) else _messages(message)

    def _played(self, task: Task, turns: Sequence[str]) -> tuple[Any, object]:
        assert self._step is not None
        result = self._step(list(turns), task.answer)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"step returned {type(result).__name__}; expected (message or None, reward)")
        return result


def recognises(found: object) -> bool:
    """Tell whether it has ``tasks`` and one of ``reward`` and ``step``."""
    return _has(found, "tasks") and (_has(found, "reward") or _has(found, "step"))


def adapt(found: Any) -> Adapter:
    """Return the adapter of a module or an object."""
    return Functions(found.tasks, getattr(found, "reward", None), getattr(found, "step", None))


def describe_unknown(found: object, loader: str) -> str:
    """Return one sentence that says what was found instead of an environment."""
    what = f"module {found.__name__}" if isinstance(found, types.ModuleType) else f"{type(found).__name__} object"
    missing = " and ".join(name for name in ("tasks", "reward") if not _has(found, name))
    return f"{loader} gave a {what} without {missing}; expected {EXPECTED}"


def _has(found: object, name: str) -> bool:
    return callable(getattr(found, name, None))


def _messages(value: object) -> list[Message]:
    listed = [value] if isinstance(value, dict) else value
    if not isinstance(listed, list) or not all(_is_message(message) for message in listed):
        raise TypeError(f"step returned a message of type {type(value).__name__}; expected text or chat messages")
    return listed


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
