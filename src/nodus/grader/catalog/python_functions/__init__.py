"""``python-functions``: write a Python function; it is called in the code sandbox and its results are compared here.

``tasks.jsonl`` is made by ``scripts/python_functions.py``: HumanEval's 164 tasks, with their checks turned into calls
and expected results, and tasks of our own. Every fourth task is held out.
"""

from __future__ import annotations

import json
import os.path
import re
from typing import Any

from nodus.grader.code import loads, matches, note, run_code

_DATA = os.path.join(os.path.dirname(__file__), "tasks.jsonl")
_PROMPT = """Write this Python function. Reply with the whole function in one ```python block.

```python
{prompt}```"""
_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)(?:```|\Z)", re.DOTALL)  # takes no more time than the text is long
_PYTHON = ("", "py", "python", "python3")
_ROOT_TOLERANCE = 1e-4


def tasks(split: str) -> list[dict[str, Any]]:
    """Return the tasks of a split."""
    with open(_DATA, encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    chosen = [row for number, row in enumerate(rows) if (number % 4 == 3) == (split == "test")]
    return [
        {
            "prompt": _PROMPT.format(prompt=row["prompt"].lstrip("\n")),
            "answer": row,
            "metadata": {"source": row["id"], "function": row["function"]},
        }
        for row in chosen
    ]


def reward(completion: str, answer: dict[str, Any]) -> float | None:
    """Return 1 when every call returns what it should, 0 otherwise, None when the completion holds no code."""
    source = program(completion, answer)
    if source is None:
        return None
    calls = loads(answer["calls"])
    outcome = run_code(source, answer["function"], calls)
    if outcome.fault is not None:
        return 0.0
    expected = loads(answer["expected"])
    wrong = [
        number
        for number, call in enumerate(outcome.calls)
        if call.error is not None or not _right(answer["compare"], call.value, expected[number], calls[number])
    ]
    if wrong:
        first = outcome.calls[wrong[0]].error or "it returned another value"
        note(f"{len(wrong)} of {len(calls)} calls were wrong; the first, call {wrong[0] + 1}: {first}")
    return float(not wrong)


def program(completion: str, answer: dict[str, Any]) -> str | None:
    """Return the program of a completion: what stands before the function in the prompt, then its code.

    Its code is the last fenced block of Python that defines the function, or the last one; without a block the whole
    reply when it defines the function, or when it goes on where the prompt ends. Nothing of it is parsed here.
    """
    prompt, name = str(answer["prompt"]), str(answer["function"])
    defines = re.compile(rf"^(?:async )?def {re.escape(name)}\b|^{re.escape(name)} *=", re.MULTILINE)
    start = defines.search(prompt)
    before = prompt[: start.start()] if start else ""
    found = _BLOCK.findall(completion)
    blocks = [text for language, text in found if language.strip().lower() in _PYTHON and text.strip()]
    if blocks:
        chosen: str = next((text for text in reversed(blocks) if defines.search(text)), blocks[-1])
    elif defines.search(completion) or (completion.strip() and completion.lstrip("\n").startswith((" ", "\t"))):
        chosen = completion.lstrip("\n")
    else:
        return None
    goes_on = chosen.startswith((" ", "\t")) and not defines.search(chosen)
    return (prompt if goes_on else before) + chosen


def _right(compare: str, value: object, expected: object, arguments: list[Any]) -> bool:
    if compare == "root":  # any root of the polynomial is right, not just the one that was recorded
        return isinstance(value, int | float) and _is_root(arguments[0], value)
    if compare == "sequence" and isinstance(value, list | tuple) and isinstance(expected, list | tuple):
        return matches(tuple(value), tuple(expected))
    return matches(value, expected)


def _is_root(coefficients: list[float], x: float) -> bool:
    try:
        return abs(sum(factor * float(x) ** power for power, factor in enumerate(coefficients))) < _ROOT_TOLERANCE
    except OverflowError:
        return False
