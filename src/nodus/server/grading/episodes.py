"""Episodes that go on: what an environment is asked after a turn of the model, and what it answers.

A question without effect: nothing is recorded of it, and asked again it is answered again. The environment replays the
turns, so it may be asked of any grader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodus.server.grading.verdicts import Evidence, Outcome, line_about, record_of, storable

MAX_TURNS = 64
"""Most turns of the model in one episode."""
MESSAGES_CHARS = 64 * 1024
MAX_MESSAGES = 64
ROLES = ("system", "user", "tool")
_KEYS = frozenset({"role", "content", "name", "tool_call_id"})
_REASON_CHARS = 2000


class BadMessages(ValueError):
    """What a runner gave for an environment's answer is no list of chat messages."""


@dataclass(frozen=True, slots=True)
class StepReply:
    """What an environment answers after a turn.

    Attributes:
        task_id: The task.
        sample: Which episode of the task.
        messages: What it says next; None when the episode has ended, or it could not run.
        error: Why it could not run; None where it did.
        evidence: What the host saw.
    """

    task_id: str
    sample: int
    messages: list[dict[str, Any]] | None
    error: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """``Error`` where it could not run."""
        return "Passed" if self.error is None else "Error"

    def to_wire(self) -> dict[str, Any]:
        """Return it as an attempt is told."""
        what = {"messages": self.messages} if self.error is None else {"error": self.error}
        return {"taskId": self.task_id, "sample": self.sample, **what}


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode to go on with.

    Attributes:
        task_id: The task it is of.
        sample: Which of several episodes of the task.
        turns: The model's turns so far, at least one.
    """

    task_id: str
    sample: int
    turns: tuple[str, ...]

    def request(self) -> dict[str, Any]:
        """Return what the runner is asked."""
        return {"taskId": self.task_id, "turns": list(self.turns), "step": True}

    def read(self, number: int, evidence: Evidence) -> StepReply | None:
        """Return the reply of a runner's line; None when it is none to this episode."""
        line = line_about(self.task_id, number, evidence)
        if line is None:
            return None
        record = record_of(line, evidence)
        if line.get("verdict") == "InfrastructureFailure":
            reason = str(line.get("reason") or "no reason given")
            return self._error(f"out of memory: {reason}" if evidence.oom else reason, record)
        if "verdict" in line or "messages" not in line:
            return None
        try:
            return StepReply(self.task_id, self.sample, read_messages(line["messages"]), None, record)
        except BadMessages as error:
            return self._error(str(error), record)

    def failed(self, reason: str, evidence: Evidence, **more: Any) -> StepReply:
        """Return the reply of an environment that could not run."""
        return self._error(reason, {**evidence.to_wire(), **more})

    def ended_sandbox(self, reason: str, evidence: Evidence) -> StepReply:
        """Return the reply where the model's code ended its sandbox: an episode can't go on from that."""
        return self._error(reason, evidence.to_wire())

    def ended(self) -> StepReply:
        """Return the reply of an environment that judges single completions: the episode is over."""
        return StepReply(self.task_id, self.sample, None)

    def _error(self, reason: str, record: Mapping[str, Any]) -> StepReply:
        return StepReply(self.task_id, self.sample, None, storable(reason, _REASON_CHARS), record)


def read_messages(value: object) -> list[dict[str, Any]] | None:
    """Return an environment's messages, or None at an episode's end, from what a runner gave for them.

    Raises:
        BadMessages: When they are anything else, or more than a model is to read.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        raise BadMessages(f"the environment's answer is no list of 1 to {MAX_MESSAGES} messages")
    for position, message in enumerate(value):
        if not isinstance(message, dict) or message.get("role") not in ROLES or "content" not in message:
            raise BadMessages(f"message {position} of the environment's answer is none of {', '.join(ROLES)} with text")
        if not message.keys() <= _KEYS or not all(_is_text(text) for text in message.values()):
            raise BadMessages(f"message {position} of the environment's answer holds more than text and who it is from")
    chars = sum(len(text) for message in value for text in message.values())
    if chars > MESSAGES_CHARS:
        raise BadMessages(f"the environment's answer has {chars} characters; at most {MESSAGES_CHARS} are allowed")
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value == value.encode("utf-8", "replace").decode()
