"""The build's self-check of an environment, run here, with what it found for its author to read."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nodus.core.errors import NodusError
from nodus.server.envtools.building import BuildFailed
from nodus.server.envtools.local import grading
from nodus.server.envtools.subjects import Subject
from nodus.server.grading.environments import EnvironmentLibrary, ResolvedEnvironment
from nodus.server.grading.episodes import Episode
from nodus.server.grading.replies import as_asked, as_reply, right_replies
from nodus.server.grading.selfcheck import FIXED_TURNS, Checked, SelfCheckFailed, check
from nodus.server.grading.service import GradingService
from nodus.server.grading.verdicts import Completion, Verdict

STEPS = ("unpack", "libraries", "load", "tasks", "grade", "step")
"""Of the self-check, in order; the last for environments with episodes alone."""
_TASKS_GRADED = 4
_PROMPT_CHARS = 2000
_REPLY_CHARS = 80


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was checked.

    Attributes:
        state: ``ok``, ``FAIL``, or ``note`` for what its author should know.
        name: What.
        found: In words.
    """

    state: Literal["ok", "FAIL", "note"]
    name: str
    found: str


@dataclass(frozen=True, slots=True)
class Graded:
    """A reply that was graded.

    Attributes:
        task: The task's id.
        reply: What was replied: ``its answer`` or ``nothing``.
        verdict: What came of it.
    """

    task: str
    reply: str
    verdict: Verdict


@dataclass(slots=True)
class Report:
    """What a check found.

    Attributes:
        subject: What was checked.
        lines: In the order in which it was checked.
        sample: A task, as a trainer sees it.
        episode: The messages of an episode of that task, where the environment answers.
        graded: Replies and their verdicts.
        trace: The environment's traceback, or the end of its log, when it failed.
    """

    subject: Subject
    lines: list[Line] = field(default_factory=list)
    sample: dict[str, Any] | None = None
    episode: list[dict[str, Any]] = field(default_factory=list)
    graded: list[Graded] = field(default_factory=list)
    trace: str = ""

    @property
    def ok(self) -> bool:
        """Whether a server would take it."""
        return not any(line.state == "FAIL" for line in self.lines)

    def to_wire(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        graded = [
            {
                "taskId": item.task,
                "reply": item.reply,
                "verdict": item.verdict.verdict,
                "reward": item.verdict.reward,
                "reason": item.verdict.reason,
                "evidence": item.verdict.evidence,
            }
            for item in self.graded
        ]
        return {
            "environment": f"{self.subject.name}@{self.subject.version}",
            "from": self.subject.where,
            "ok": self.ok,
            "checks": [{"state": line.state, "name": line.name, "found": line.found} for line in self.lines],
            "sample": self.sample,
            "episode": self.episode,
            "graded": graded,
            "traceback": self.trace or None,
        }


async def run(subject: Subject, *, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Check an environment in this machine's sandboxes.

    Args:
        subject: What to check.
        progress: Called with what is done next.

    Raises:
        NoSandbox: Where no sandbox can be had.
    """
    report = Report(subject)
    async with grading(subject) as service:
        if subject.how:
            report.lines.append(Line("ok", "package", subject.how))
        progress("listing and grading, as the build does")
        try:
            checked = await check(service, subject.name, subject.spec, f"check-{secrets.token_hex(4)}")
        except NodusError as error:
            _failed(report, error)
            return report
        environment = await service.resolve(subject.name, subject.spec)
        _tell(report, checked, environment)
        progress("grading answers")
        await _grade(report, service, environment, checked)
        if checked.facts.get("episodes"):
            await _play(report, service, environment)
    return report


def not_built(what: str, error: BuildFailed) -> Report:
    """Return the report of a directory whose package can't be built.

    Args:
        what: Its path.
        error: Why.
    """
    report = Report(Subject(Path(what).resolve().name, "unbuilt", {}, what, EnvironmentLibrary(Path(), Path)))
    report.lines.append(Line("FAIL", error.step, f"{error.message}. {error.fix}" if error.fix else error.message))
    report.trace = error.log
    return report


def _failed(report: Report, error: NodusError) -> None:
    step = error.step if isinstance(error, SelfCheckFailed) else "libraries"
    for name in STEPS[: STEPS.index(step)] if step in STEPS else ():
        report.lines.append(Line("ok", name, _PASSED[name]))
    message, _, trace = error.message.partition("\n")
    report.lines.append(Line("FAIL", step, f"{message}. {error.fix}" if error.fix else message))
    report.trace = trace


_PASSED = {
    "unpack": "its files are there",
    "libraries": "what it imports of the graders' libraries is there",
    "load": "it is an environment",
    "tasks": "listed twice in two processes, equal",
    "grade": "an answer, also in the tags that its prompt names, and an empty reply",
}


def _tell(report: Report, checked: Checked, environment: ResolvedEnvironment) -> None:
    say = report.lines.append
    python, libraries = checked.grader.get("python"), dict(checked.grader.get("libraries") or {})
    names = ", ".join(f"{name} {version}" for name, version in libraries.items())
    say(Line("ok", "libraries", f"Python {python}" + (f" with {names}" if names else "")))
    say(Line("ok", "load", _what(checked.facts)))
    sizes = ", ".join(f"{size} {split}" for split, size in checked.splits.items())
    say(Line("ok", "tasks", f"{sizes}; listed twice in two processes, equal"))
    declared = report.subject.spec.get("splits") or {}
    for split, size in checked.splits.items():
        if split in declared and (declared[split] or {}).get("size") != size:
            say(Line("FAIL", "splits", f"{split} has {size} tasks; the manifest declares {declared[split]}"))
    if not checked.splits.get("test"):
        say(Line("note", "splits", "nothing is held out: there is no comparison before and after training"))
    if shared := checked.facts.get("shared"):
        say(Line("note", "shared", f"{shared} tasks of train have a held-out prompt, and were left out of train"))
    say(
        Line(
            "ok",
            "grade",
            f"an answer, also in the tags that its prompt names, and an empty reply, by {_grader(environment)}",
        )
    )
    if checked.facts.get("episodes"):
        say(Line("ok", "step", "two turns played twice in two processes, equal"))
    say(Line("ok", "digest", checked.digest))
    manifest = next(m for split in ("test", "train") if (m := checked.manifests[split]).tasks)
    report.sample = {"split": manifest.split, **_shortened(manifest.tasks[0].public())}


def _what(facts: Mapping[str, Any]) -> str:
    parts = [str(facts.get("ecosystem", "of no known kind"))]
    if facts.get("episodes"):
        turns = facts.get("maxTurns")
        parts.append(f"episodes of up to {turns} turns" if turns else "episodes; maxTurns of a run says how long")
    if facts.get("tools"):
        parts.append("offers tools")
    return ", ".join(parts)


def _grader(environment: ResolvedEnvironment) -> str:
    if environment.exact_match is not None:
        return f"ExactMatch {environment.exact_match!r} inside Nodus"
    return "its program" + (", which runs code in the code sandbox" if environment.runs_code else "")


def _shortened(task: dict[str, Any]) -> dict[str, Any]:
    prompt = task["prompt"]
    if isinstance(prompt, str) and len(prompt) > _PROMPT_CHARS:
        return {**task, "prompt": f"{prompt[:_PROMPT_CHARS]}... ({len(prompt)} characters)"}
    return task


async def _grade(report: Report, service: GradingService, environment: ResolvedEnvironment, checked: Checked) -> None:
    """Grade the answers of a few tasks, in the usual forms, and an empty reply to each; twice."""
    manifest = next(m for split in ("test", "train") if (m := checked.manifests[split]).tasks)
    tasks = manifest.tasks[:_TASKS_GRADED]
    asked = [(task, reply) for task in tasks for reply in (*right_replies(task), "")]
    items = [Completion(task.task_id, 0, reply) for task, reply in asked]
    verdicts = await service.grade(f"test-{secrets.token_hex(4)}", environment, [*items, *items], 2)
    first, second = verdicts[: len(items)], verdicts[len(items) :]
    for one, other in zip(first, second, strict=True):
        if one.reward != other.reward:
            found = f"one reply to task {one.task_id} was paid {one.reward} and {other.reward}; seed it from the task"
            report.lines.append(Line("FAIL", "reward", found))
            break
    fault = next(
        (
            ((task, reply), verdict)
            for (task, reply), verdict in zip(asked, first, strict=True)
            # what nobody asks for, such as a box around an expression that is evaluated, may be beyond a reward
            if verdict.verdict == "InfrastructureFailure" and reply in ("", as_reply(task), *as_asked(task))
        ),
        None,
    )
    if fault is not None:
        (task, reply), verdict = fault
        found = f"the reply {_quoted(reply)} to task {task.task_id} could not be graded: {verdict.reason}"
        report.lines.append(Line("FAIL", "reward", found))
        report.trace = str(verdict.evidence.get("traceback", ""))
    for task in tasks:
        given = [(reply, verdict) for (of, reply), verdict in zip(asked, first, strict=True) if of is task]
        answered = [verdict for reply, verdict in given if reply]
        if answered:
            best = max(answered, key=lambda verdict: verdict.reward if verdict.reward is not None else -1e9)
            report.graded.append(Graded(task.task_id, "its answer", best))
        report.graded.extend(Graded(task.task_id, "nothing", verdict) for reply, verdict in given if not reply)
    _judge(report)


def _quoted(reply: str) -> str:
    return repr(reply if len(reply) <= _REPLY_CHARS else f"{reply[:_REPLY_CHARS]}...")


async def _play(report: Report, service: GradingService, environment: ResolvedEnvironment) -> None:
    """Play the self-check's turns once more, for its author to read."""
    assert report.sample is not None
    for count in range(1, len(FIXED_TURNS) + 1):
        episode = Episode(report.sample["taskId"], 0, FIXED_TURNS[:count])
        (reply,) = await service.step("play", environment, [episode], 1)
        report.episode.append({"role": "assistant", "content": FIXED_TURNS[count - 1]})
        report.episode.extend(dict(message) for message in reply.messages or ())
        if reply.messages is None:
            return


def _judge(report: Report) -> None:
    say = report.lines.append
    answers = [item.verdict for item in report.graded if item.reply == "its answer"]
    wrong = sum(verdict.verdict != "Correct" for verdict in answers)
    if wrong:
        found = f"{wrong} of {len(answers)} answers are not paid 1 as replies, also not as <answer>...</answer>"
        say(Line("note", "answers", f"{found}; fine where an answer is no reply"))
    paid = [item.verdict for item in report.graded if item.reply == "nothing" and (item.verdict.reward or 0) > 0]
    if paid:
        say(Line("note", "empty reply", f"is paid {json.dumps(paid[0].reward)}; `nodus env audit` says more"))
