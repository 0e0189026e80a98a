"""What every adapter promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from nodus.grader.tasks import Task

Message = dict[str, Any]
"""A chat message: ``role`` and ``content``, both text; for the result of a tool also ``name`` or ``tool_call_id``.

Of an environment's answer, roles are ``system``, ``user`` and ``tool``, and no other key is let through.
"""


class Refused(Exception):
    """The environment is of no kind that can be graded here; the message says in one sentence what was found."""


class EnvironmentFault(Exception):
    """The environment's own code failed.

    Attributes:
        trace: The traceback, from the environment's first frame on.
    """

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace


class Adapter(Protocol):
    """An environment in the one form that the runner understands.

    Attributes:
        kind: Its ecosystem, such as ``functions`` or ``verifiers``.
        episodes: Whether the environment answers the model's turns. False: only the first turn is ever graded.

    One that knows how many turns an episode has at most also has ``max_turns``, which ``nodus-env info`` tells.
    """

    kind: str
    episodes: bool

    def tasks(self, split: str) -> Sequence[object]:
        """List a split: what :func:`nodus.grader.tasks.read_task` reads.

        Each is a dict with ``prompt`` (text or chat messages), ``answer`` (any object: it never leaves the process),
        ``metadata`` (public, JSON) and, where the model may call tools, ``tools`` (JSON schemas as chat templates take
        them). A test prompt that is also in train is dropped from train by the caller; where a prompt does not tell
        what the task is, list :class:`nodus.grader.tasks.Keyed` ones.
        """
        ...

    def grade(self, task: Task, turns: Sequence[str]) -> object:
        """Return the reward of an episode, the model's turns so far, as it stands.

        Runs in a process of its own, forked after ``tasks``. A single completion is an episode of one turn.

        Returns:
            A finite number or bool (1 or more is Correct), or None where the reply holds no answer.

        Raises:
            Exception: Any; the grader could not run, which is never a reward of 0.
        """
        ...

    def reply(self, task: Task, turns: Sequence[str]) -> list[Message] | None:
        """Return the environment's messages after the model's last turn, or None when the episode has ended.

        Runs like ``grade``; there is no state between turns but ``turns``. Called only where ``episodes``.
        """
        ...


class Solution(str):
    """A task's solution as text, which the build's checks try as a reply, with what else the grader needs of the task.

    Args:
        text: The solution; empty where the ecosystem has none as text.
        private: Anything; it never leaves the process.
    """

    private: Any

    def __new__(cls, text: str, private: Any) -> Solution:
        """Return the text with its private part."""
        made = super().__new__(cls, text)
        made.private = private
        return made


_HELD_OUT_EVERY = 5


def held_out(index: int) -> bool:
    """Tell whether a row of a dataset without a test split of its own is held out: every fifth is."""
    return index % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1


def class_names(found: object, package: str) -> set[str]:
    """Return the names of an object's classes, its own and those it derives from, that a package defines.

    What is recognised so needs no import of the package.
    """
    own = type(found).__mro__
    return {cls.__name__ for cls in own if cls.__module__.partition(".")[0] == package}
