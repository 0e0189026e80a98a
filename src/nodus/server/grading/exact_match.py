"""``ExactMatch``: compare a completion with the answer inside the server, without a sandbox.

The grader's name in the Environment says how the completion is read. Nothing of a completion is executed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from nodus.server.grading.verdicts import Completion, Evidence, Verdict, failed

_NUMBER = re.compile(r"(?<![0-9.])-?[0-9]+(?:\.[0-9]+)?")
# A sign counts where it can't be the minus or the dash of "7-5"; thousands are separated by commas or not at all.
_WRITTEN_NUMBER = re.compile(
    r"(?<![0-9.])((?:(?<![\w.)])[-−]\$?)?)\$?([0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)((?:\.[0-9]+)?)"
)
_LONGEST_NUMBER = 32
_PROCESS = "nodus-server:exact-match"
_ISOLATION = "inside the server; nothing of the completion is executed"

Matcher = Callable[[str, Any], bool | None]


def last_integer(completion: str, answer: Any) -> bool | None:
    """Say whether the last integer in a completion (``12`` or ``12.0``) is the answer; None when it has none."""
    integers = [number for number in _NUMBER.findall(completion) if not number.partition(".")[2].strip("0")]
    if not integers:
        return None
    return len(integers[-1]) <= _LONGEST_NUMBER and float(integers[-1]) == float(answer)


def last_number(completion: str, answer: Any) -> bool | None:
    """Say whether the last number in a completion (``1430``, ``$1,430.00``) is the answer; None when it has none."""
    numbers = _WRITTEN_NUMBER.findall(completion)
    if not numbers:
        return None
    sign, whole, fraction = numbers[-1]
    digits = whole.replace(",", "") + fraction
    return len(digits) <= _LONGEST_NUMBER and Decimal(f"{'-' if sign else ''}{digits}") == Decimal(str(answer))


def whole_text(completion: str, answer: Any) -> bool | None:
    """Say whether a completion is the answer but for white space at its ends; None when it is empty."""
    text = completion.strip()
    return text == str(answer).strip() if text else None


MATCHERS: Mapping[str, Matcher] = {
    "last-integer": last_integer,
    "last-number": last_number,
    "whole-text": whole_text,
}
"""By the name of the grader."""


def matcher(grader_name: str) -> Matcher:
    """Return how an ExactMatch grader of a name reads completions; the whole text where the name says nothing."""
    return MATCHERS.get(grader_name, whole_text)


def grade(item: Completion, answers: Mapping[str, Any], match: Matcher) -> Verdict:
    """Return the verdict of one completion.

    Args:
        item: The completion.
        answers: Task id to answer.
        match: How to compare.
    """
    started = time.perf_counter()
    if item.task_id not in answers:
        evidence = Evidence([_PROCESS], _ISOLATION, 0.0)
        return failed(item, f"this environment has no task {item.task_id!r}", evidence)
    try:
        matched = match(item.first, answers[item.task_id])
    except (ValueError, TypeError, ArithmeticError):
        evidence = Evidence([_PROCESS], _ISOLATION, 0.0)
        answer = repr(answers[item.task_id])[:80]
        return failed(item, f"the answer of task {item.task_id!r} can't be compared as a number: {answer}", evidence)
    duration_ms = (time.perf_counter() - started) * 1000
    output = item.first.encode("utf-8", "surrogatepass")
    record = Evidence([_PROCESS], _ISOLATION, duration_ms, output, exit_code=0).to_wire()
    if matched is None:
        return Verdict(item.task_id, item.sample, "InvalidOutput", 0.0, None, record)
    return Verdict(item.task_id, item.sample, "Correct" if matched else "Incorrect", float(matched), None, record)
