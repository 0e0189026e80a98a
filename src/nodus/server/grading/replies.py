"""Replies to a task that may be right: its answer, plain and in the forms in which answers are usually asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from nodus.server.grading.manifests import Task

_ANSWER_NAMES = ("answer", "ground_truth", "expected", "target", "solution", "label", "gold")
_TAG = re.compile(r"<([A-Za-z][\w-]*)>")


def prompt_text(task: Task) -> str:
    """Return what the model reads last: the prompt, or the text of its last message."""
    return task.prompt if isinstance(task.prompt, str) else str(task.prompt[-1].get("content", ""))


def as_reply(task: Task) -> str:
    """Return a task's answer as a reply."""
    return task.answer if isinstance(task.answer, str) else json.dumps(task.answer)


def in_formats(task: Task, text: str) -> list[str]:
    """Return a text in the forms in which answers are usually asked for, and in those that the prompt names."""
    tags = dict.fromkeys([*_TAG.findall(prompt_text(task)), "answer"])
    return [*(f"<{tag}>{text}</{tag}>" for tag in tags), f"\\boxed{{{text}}}", f"#### {text}"]


def as_asked(task: Task) -> list[str]:
    """Return a task's answer in the tags that its prompt names: a reward that is asked for them parses them."""
    return [f"<{tag}>{as_reply(task)}</{tag}>" for tag in dict.fromkeys(_TAG.findall(prompt_text(task)))]


def right_replies(task: Task) -> list[str]:
    """Return what may be right: the task's answer, or what it holds under the usual names, plain and in every form."""
    found = [as_reply(task)] if task.answer is not None else []
    found += dict.fromkeys(_named_answers(task.answer))
    return list(dict.fromkeys(reply for text in found for reply in (text, *in_formats(task, text))))


def _named_answers(value: object, depth: int = 3) -> Iterator[str]:
    if not isinstance(value, dict) or not depth:
        return
    for name, inner in value.items():
        if name in _ANSWER_NAMES and isinstance(inner, str | int | float):
            yield str(inner)
        yield from _named_answers(inner, depth - 1)
