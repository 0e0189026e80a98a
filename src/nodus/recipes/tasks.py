"""Tasks for a reward: checked one by one, and split into those to train on and those held out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nodus.recipes.errors import TasksError

MIN_HELD_OUT = 16
KEYS = frozenset({"prompt", "answer", "metadata"})
ROLES = frozenset({"system", "user", "assistant"})
# Which tasks are held out depends on the tasks alone, so that the same tasks always make the same Environment.
_SPLIT_SEED = 0

Task = dict[str, Any]


def check_tasks(tasks: Iterable[Any], what: str = "tasks") -> list[Task]:
    """Return tasks as ``{"prompt", "answer", "metadata"?}``.

    Args:
        tasks: ``(prompt, answer)`` pairs, or dicts.
        what: The argument's name, for messages.

    Raises:
        TasksError: For the first task that can't be used; names its position, counted from 0.
    """
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable):
        raise TasksError(
            f"{what} is a {type(tasks).__name__}", fix="Pass a list of (prompt, answer) pairs, or of dicts."
        )
    found = [_check(task, f"{what}[{index}]") for index, task in enumerate(tasks)]
    if not found:
        raise TasksError(f"{what} is empty", fix="Pass (prompt, answer) pairs.")
    return found


def split_tasks(tasks: Sequence[Task], test_tasks: Sequence[Task] | None) -> tuple[list[Task], list[Task]]:
    """Return the tasks to train on and those held out.

    Without ``test_tasks`` a fifth of the different prompts is held out, and at least 16. A prompt that stands in both
    is dropped from training.

    Raises:
        TasksError: When nothing is left to train on.
    """
    if test_tasks is None:
        distinct = {_key(task): task for task in reversed(tasks)}
        count = max(MIN_HELD_OUT, len(distinct) // 5)
        if len(distinct) <= count:
            what = "tasks" if len(distinct) == len(tasks) else "different prompts"
            raise TasksError(
                f"{len(distinct)} {what} are too few: {count} are held out to measure with",
                fix="Pass more tasks (at least 80 use four fifths for training), or choose test_tasks= yourself.",
            )
        order = [_key(task) for task in tasks if distinct.get(_key(task)) is task]
        random.Random(_SPLIT_SEED).shuffle(order)
        chosen = set(order[:count])
        test = [task for task in tasks if _key(task) in chosen and distinct[_key(task)] is task]
        train = list(tasks)
    else:
        train, test = list(tasks), list(test_tasks)
    held_out = {_key(task) for task in test}
    train = [task for task in train if _key(task) not in held_out]
    if not train:
        raise TasksError(
            "every prompt in tasks is also held out, so nothing is left to train on",
            fix="Make the prompts differ, or pass other test_tasks=.",
        )
    return train, test


def _key(task: Task) -> str:
    return json.dumps(task["prompt"], sort_keys=True)


def _check(task: Any, where: str) -> Task:
    if isinstance(task, Mapping):
        unknown = sorted(str(key) for key in task if key not in KEYS)
        if unknown:
            raise TasksError(
                f"{where} has the key {unknown[0]!r}; a task has prompt, answer and metadata",
                fix='Put other values under "metadata".',
            )
        if "prompt" not in task or "answer" not in task:
            missing = "prompt" if "prompt" not in task else "answer"
            raise TasksError(f"{where} has no {missing!r}", fix='Write it as {"prompt": ..., "answer": ...}.')
        prompt, answer, metadata = task["prompt"], task["answer"], task.get("metadata")
    elif isinstance(task, Sequence) and not isinstance(task, str | bytes) and len(task) == 2:
        prompt, answer, metadata = task[0], task[1], None
    else:
        raise TasksError(
            f"{where} is {_short(task)}, neither a (prompt, answer) pair nor a dict", fix="Pass (prompt, answer) pairs."
        )
    _check_prompt(prompt, where)
    _check_json(answer, f"{where}: the answer")
    checked: Task = {"prompt": prompt, "answer": answer}
    if metadata is not None:
        if not isinstance(metadata, Mapping):
            raise TasksError(f"{where}: metadata is {_short(metadata)}", fix="Make it a dict.")
        _check_json(dict(metadata), f"{where}: the metadata")
        checked["metadata"] = dict(metadata)
    return checked


def _check_prompt(prompt: Any, where: str) -> None:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise TasksError(f"{where}: the prompt is empty", fix="Give every task a prompt.")
        _check_json(prompt, f"{where}: the prompt")
        return
    if (
        isinstance(prompt, list)
        and prompt
        and all(
            isinstance(message, dict) and message.get("role") in ROLES and isinstance(message.get("content"), str)
            for message in prompt
        )
    ):
        _check_json(prompt, f"{where}: the prompt")
        return
    raise TasksError(
        f"{where}: the prompt is {_short(prompt)}", fix='Make it a text, or a list of {"role", "content"} messages.'
    )


def _check_json(value: Any, what: str) -> None:
    """Refuse what would arrive at the reward as something else."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
        arrives = json.loads(text)
    except UnicodeEncodeError as error:
        raise TasksError(
            f"{what} holds {text[error.start]!a}, half of a character, which UTF-8 can't carry",
            fix="Leave it out: text.encode(errors='ignore').decode().",
        ) from error
    except RecursionError as error:
        raise TasksError(f"{what} is nested too deeply for JSON", fix="Make it flatter.") from error
    except (TypeError, ValueError) as error:
        raise TasksError(
            f"{what} is {_short(value)}, which JSON can't carry ({error})",
            fix="Use texts, numbers, booleans, None, lists and dicts; str(...) often does.",
        ) from error
    if arrives != value:
        raise TasksError(
            f"{what} is {_short(value)} and would arrive at the reward as {_short(arrives)}",
            fix="Use a list instead of a tuple, and texts as the keys of dicts.",
        )


def _short(value: Any) -> str:
    text = f"{value!r}"
    return f"{text[:60]}… ({type(value).__name__})" if len(text) > 60 else f"{text} ({type(value).__name__})"
