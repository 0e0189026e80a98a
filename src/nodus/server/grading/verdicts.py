"""A completion, its verdict and the evidence, as the host writes them.

What a runner says about a completion is one line on a private descriptor; this module decides what of it counts. The
evidence (which process, how it ended, how long it took, the digest of what it said, under which isolation) is the
host's own observation wherever the host can observe it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

VerdictName = Literal["Correct", "Incorrect", "InvalidOutput", "InfrastructureFailure"]
Outcome = Literal["Passed", "Failed", "Error"]
OUTCOMES: dict[str, Outcome] = {
    "Correct": "Passed",
    "Incorrect": "Failed",
    "InvalidOutput": "Failed",
    "InfrastructureFailure": "Error",
}
_REASON_CHARS = 2000
_CODE_CHARS = 300
_MAX_FIGURE = 1e15
MAX_REWARD = 1e9
"""Of either sign. Means and deviations of larger ones overflow in a trainer's 32 bits, and in a summary's decimals."""


class Answer(Protocol):
    """What came of an item: a verdict, or an environment's reply."""

    @property
    def outcome(self) -> Outcome:
        """``Error`` where the environment could not run."""
        ...

    @property
    def evidence(self) -> Mapping[str, Any]:
        """What the host saw."""
        ...


A_co = TypeVar("A_co", bound=Answer, covariant=True)


class Item(Protocol[A_co]):
    """What a grader is asked, one at a time: a completion to grade, or an episode to go on with."""

    @property
    def task_id(self) -> str:
        """The task it is of."""
        ...

    def request(self) -> dict[str, Any]:
        """Return what the runner is asked, without the id."""
        ...

    def read(self, number: int, evidence: Evidence) -> A_co | None:
        """Return what a runner's line answers; None when it is no answer to this.

        Args:
            number: The id it was asked under.
            evidence: With the line as its output.
        """
        ...

    def failed(self, reason: str, evidence: Evidence, **more: Any) -> A_co:
        """Return the answer where the environment could not run."""
        ...

    def ended_sandbox(self, reason: str, evidence: Evidence) -> A_co:
        """Return the answer where the model's code ended its sandbox, in each that it was given."""
        ...


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion to grade.

    Attributes:
        task_id: The task it answers.
        sample: Which of several completions of the task.
        completion: Its text; of an episode, unused.
        turns: The model's turns of an episode, at least one, graded as it stands; None for a single completion.
    """

    task_id: str
    sample: int
    completion: str = ""
    turns: tuple[str, ...] | None = None

    @property
    def first(self) -> str:
        """The model's first reply: what a grader of single completions judges."""
        return self.completion if self.turns is None else self.turns[0]

    def request(self) -> dict[str, Any]:
        """Return what the runner is asked."""
        said = {"completion": self.completion} if self.turns is None else {"turns": list(self.turns)}
        return {"taskId": self.task_id, **said}

    def read(self, number: int, evidence: Evidence) -> Verdict | None:
        """Return the verdict of a runner's line; see :func:`from_line`."""
        return from_line(self, number, evidence)

    def failed(self, reason: str, evidence: Evidence, **more: Any) -> Verdict:
        """Return the verdict of a completion that could not be graded."""
        return failed(self, reason, evidence, **more)

    def ended_sandbox(self, reason: str, evidence: Evidence) -> Verdict:
        """Return the verdict of a completion whose code ended its sandbox, in each that it was given."""
        return ended_sandbox(self, reason, evidence)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a completion is worth.

    Attributes:
        task_id: The task.
        sample: Which completion of the task.
        verdict: One of the four.
        reward: None exactly for InfrastructureFailure.
        reason: Why it could not be graded.
        evidence: What the host saw.
    """

    task_id: str
    sample: int
    verdict: VerdictName
    reward: float | None
    reason: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """``Passed``, ``Failed``, or ``Error`` (which stands in no pass rate)."""
        return OUTCOMES[self.verdict]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the host knows about the process that graded.

    Attributes:
        process: Its command line.
        isolation: How it was isolated.
        duration_ms: From when it could start on the completion to its line, by the host's clock.
        output: The line, as read.
        oom: Whether the kernel killed a process of the sandbox for want of memory meanwhile.
        tries: How many workers had the completion.
        exit_code: Of the worker, when it ended over it.
        read: The line as it counts, where that is not the line as read.
    """

    process: Sequence[str]
    isolation: str
    duration_ms: float
    output: bytes = b""
    oom: bool = False
    tries: int = 1
    exit_code: int | None = None
    read: Mapping[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return it as it is recorded."""
        return {
            "process": list(self.process),
            "exitCode": self.exit_code,
            "durationMs": round(self.duration_ms, 3),
            "outputSHA256": hashlib.sha256(self.output).hexdigest(),
            "oom": self.oom,
            "tries": self.tries,
            "isolation": self.isolation,
        }


def storable(text: object, limit: int) -> str:
    """Return the text of a stranger, cut to a length and without what a database or a response can't hold.

    Args:
        text: What an environment said, such as the message of an exception; JSON brings halves of surrogate pairs.
        limit: In characters.
    """
    return str(text)[:limit].replace("\x00", "\\0").encode("utf-8", "replace").decode()


def failed(item: Completion, reason: str, evidence: Evidence, **more: Any) -> Verdict:
    """Return the verdict of a completion that could not be graded."""
    record = {**evidence.to_wire(), **more}
    if "traceback" in more:
        record["traceback"] = storable(more["traceback"], _REASON_CHARS)
    return Verdict(item.task_id, item.sample, "InfrastructureFailure", None, storable(reason, _REASON_CHARS), record)


def ended_sandbox(item: Completion, reason: str, evidence: Evidence) -> Verdict:
    """Return the verdict of a completion whose code ended its sandbox, in each that it was given: wrong, no failure."""
    return Verdict(item.task_id, item.sample, "Incorrect", 0.0, storable(reason, _REASON_CHARS), evidence.to_wire())


def from_line(item: Completion, number: int, evidence: Evidence) -> Verdict | None:
    """Return the verdict of a runner's line; None when the line is none for this completion.

    Args:
        item: The completion that was asked about.
        number: The id it was asked under.
        evidence: With the line as its output.
    """
    line = line_about(item.task_id, number, evidence)
    if line is None:
        return None
    verdict: Any = line.get("verdict")
    reward = line.get("reward")
    if str(verdict) not in OUTCOMES:
        return None
    record = record_of(line, evidence)
    reason = storable(line["reason"], _REASON_CHARS) if line.get("reason") else _code_reason(verdict, record)
    if verdict == "InfrastructureFailure":
        if evidence.oom:
            reason = f"out of memory: {reason}"
        return Verdict(item.task_id, item.sample, "InfrastructureFailure", None, reason or "no reason given", record)
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return None
    if isinstance(reward, float) and not math.isfinite(reward):
        return None
    if abs(reward) > MAX_REWARD:
        reason = f"reward returned {str(reward)[:30]}; a reward is from {-MAX_REWARD:g} to {MAX_REWARD:g}"
        return Verdict(item.task_id, item.sample, "InfrastructureFailure", None, reason, record)
    return Verdict(item.task_id, item.sample, verdict, float(reward), reason, record)


def line_about(task_id: str, number: int, evidence: Evidence) -> dict[str, Any] | None:
    """Return a runner's line, read, or None when it is no object about this task and request."""
    try:
        line = json.loads(evidence.output) if evidence.read is None else dict(evidence.read)
    except (ValueError, RecursionError):
        return None
    ours = isinstance(line, dict) and line.get("id") == number and line.get("taskId") == task_id
    return line if ours else None


def record_of(line: Mapping[str, Any], evidence: Evidence) -> dict[str, Any]:
    """Return the evidence as it is recorded, with what the runner saw of the process that it forked."""
    reported = line.get("evidence")
    return {**evidence.to_wire(), **_child_facts(reported if isinstance(reported, Mapping) else {})}


def _child_facts(reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the runner, which is not the graded process, saw of the completion's own process."""
    facts: dict[str, Any] = {}
    if _is_figure(reported.get("exitCode")):
        facts["exitCode"] = reported["exitCode"]
    if isinstance(reported.get("signal"), str):
        facts["signal"] = storable(reported["signal"], 32)
    if _is_figure(reported.get("ms")):
        facts["processMs"] = reported["ms"]
    if _is_figure(reported.get("peakMemoryBytes")):
        facts["peakMemoryBytes"] = reported["peakMemoryBytes"]
    if reported.get("timedOut") is True:
        facts["timedOut"] = True
    if isinstance(reported.get("traceback"), str):
        facts["traceback"] = storable(reported["traceback"], _REASON_CHARS)
    if isinstance(reported.get("code"), Mapping):
        facts["code"] = _code_facts(reported["code"])
    return facts


def _code_facts(reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the code sandbox saw of the process that ran a completion's code."""
    facts: dict[str, Any] = {}
    for name in ("fault", "note", "signal", "outputSHA256"):
        if isinstance(reported.get(name), str):
            facts[name] = storable(reported[name], _CODE_CHARS)
    for name in ("exitCode", "ms", "peakMemoryBytes", "runs"):
        if _is_figure(reported.get(name)):
            facts[name] = reported[name]
    if reported.get("timedOut") is True:
        facts["timedOut"] = True
    return facts


def _is_figure(value: object) -> bool:
    """Say whether a stranger's value is a number that databases and other programs hold too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_FIGURE


def _code_reason(verdict: str, record: Mapping[str, Any]) -> str | None:
    """Return why a completion's code was wrong, of a verdict that says no reason itself."""
    code = record.get("code") or {}
    reason = code.get("fault") or code.get("note")
    if reason is None or verdict == "Correct":
        return None
    return f"out of memory: {reason}" if record.get("oom") else str(reason)
