"""How the reports of ``nodus env test`` and ``nodus env audit`` look to a person."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from nodus.cli.colour import paint, visible
from nodus.cli.tables import plain_table

_STYLES = {"ok": "green", "FAIL": "red", "note": "yellow"}
_SHORT = {
    "Correct": "Correct",
    "Incorrect": "Incorrect",
    "InvalidOutput": "Invalid",
    "InfrastructureFailure": "Failure",
}


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the lines of a check, as JSON has it."""
    lines = [f"{report['environment']} from {visible(report['from'])}"]
    for check in report["checks"]:
        state = paint(f"{check['state']:<6}", _STYLES[check["state"]], sys.stdout)
        lines.append(f"{state}{check['name']:<12} {visible(check['found'])}")
    if report["traceback"]:
        lines += ["", *visible(report["traceback"]).rstrip().splitlines()]
    if report["sample"]:
        lines += ["", *_sample(report["sample"])]
    if report["episode"]:
        lines += ["", "an episode of that task:", *_messages(report["episode"])]
    if report["graded"]:
        rows = [
            (item["taskId"], item["reply"], item["verdict"], _amount(item["reward"]), (item["reason"] or "")[:60])
            for item in report["graded"]
        ]
        lines += ["", *plain_table(("Task", "Reply", "Verdict", "Reward", "Reason"), rows)]
    return lines


def _sample(task: Mapping[str, Any]) -> list[str]:
    prompt = task["prompt"]
    lines = [f"a task of {task['split']}, as the model sees it ({task['taskId']}):"]
    lines += [f"  {line}" for line in visible(prompt).splitlines()] if isinstance(prompt, str) else _messages(prompt)
    if task.get("metadata"):
        lines.append(f"  metadata: {visible(str(task['metadata']))}")
    if task.get("tools"):
        names = [(tool.get("function") or {}).get("name", "?") for tool in task["tools"]]
        lines.append(f"  tools: {visible(', '.join(map(str, names)))}")
    return lines


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    said = (visible(f"[{message.get('role')}] {message.get('content')}") for message in messages)
    return [f"  {line}" for text in said for line in text.splitlines()]


def audit_lines(audit: Mapping[str, Any]) -> list[str]:
    """Return the lines of an audit, as JSON has it."""
    lines = [
        f"{audit['environment']} from {visible(audit['from'])}: "
        f"{_count(audit['tasks'], 'task')} of {audit['split']}, graded by {audit['gradedBy']}",
        "",
    ]
    rows = [] if audit["reference"] is None else [_row("", audit["reference"])]
    rows += [_row(_state(played), played) for played in audit["attacks"]]
    lines += plain_table(("", "Attack", "Played", "Paid", "Best", "Verdicts", "What it does"), rows)
    failed = [played for played in audit["attacks"] if played["failure"]]
    won = [played for played in audit["attacks"] if played["won"]]
    for played in won:
        for example in played["examples"][:1]:
            lines += ["", f"{played['attack']} was paid 1 on task {example['taskId']} for:"]
            lines += [f"  {line}" for line in visible(example["reply"]).splitlines()[:12]]
    if failed:
        lines += ["", "Failures pay nothing, but a model that can cause one escapes a bad reward:"]
        lines += [f"  {played['attack']}: {visible(played['failure'])[:140]}" for played in failed]
    reference = audit["reference"]
    if reference is not None and reference["won"] < reference["played"]:
        lines += [
            "",
            "The tasks' own answers are not all paid 1 as replies: what pays here was not tried by this audit.",
        ]
    verdicts = [
        f"{_count(len(won), 'attack')} {_was(len(won))} paid 1: {', '.join(p['attack'] for p in won)}"
        if won
        else "no attack was paid 1"
    ]
    raised = [played for played in (reference, *audit["attacks"]) if played is not None and played["raised"]]
    if raised:
        what = (
            f"the reward could not judge replies of {', '.join(p['attack'] for p in raised)}, and must judge any text"
        )
        verdicts.append(f"{what}: {visible(raised[0]['raised'])[:140]}")
    return [*lines, "", *(paint(text, "green" if audit["ok"] else "red", sys.stdout) for text in verdicts)]


def _row(state: str, played: Mapping[str, Any]) -> tuple[object, ...]:
    counts = ", ".join(f"{count} {_SHORT[name]}" for name, count in sorted(played["verdicts"].items()))
    best = "none" if played["best"] is None else _amount(played["best"])
    return (state, played["attack"], played["played"], played["paid"], best, counts, played["does"])


def _state(played: Mapping[str, Any]) -> str:
    if played["won"]:
        return "PAID"
    if played["raised"]:
        return "fault"
    if played["paid"]:
        return "part"
    return "fault" if played["failure"] else "ok"


def _amount(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:g}"


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
