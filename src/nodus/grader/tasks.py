"""Tasks: their identity, what may be published of them, which split they belong to, and their order.

Identity and order are promises: the same environment, version and seed give the same tasks in the same order on every
machine, for as long as ``PROTOCOL_VERSION`` stays.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

ID_LENGTH = 16
MAX_TOOLS = 128
TOOLS_CHARS = 256 * 1024
"""Of the schemas of one task's tools, as JSON: each prompt carries them."""
Prompt = str | list[dict[str, Any]]
Tools = tuple[dict[str, Any], ...]


class BadTask(ValueError):
    """An environment's task is not of the form that the guide describes."""


class Task(NamedTuple):
    """One task.

    Attributes:
        id: 16 hex digits; see ``task_id``.
        prompt: Text, or chat messages with ``role`` and ``content``.
        answer: What only the grader sees.
        metadata: What is published beside the prompt.
        tools: What the model may call, as schemas that a chat template takes.
        key: What tells the task from others of the same prompt, such as a game's seed.
    """

    id: str
    prompt: Prompt
    answer: Any = None
    metadata: Mapping[str, Any] = {}
    tools: Tools = ()
    key: str = ""


def canonical_prompt(prompt: Prompt) -> str:
    """Return a text that is equal exactly for equal prompts."""
    return json.dumps(prompt, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def task_id(name: str, version: str, split: str, prompt: Prompt, occurrence: int) -> str:
    """Return a task's id: a digest of the environment, the split, the prompt and how often it came before.

    Args:
        name: The environment's name, without project.
        version: Its version.
        split: ``train`` or ``test``.
        prompt: The prompt.
        occurrence: 0 for the first task of this prompt in the split, 1 for the second, ...
    """
    identity = json.dumps([name, version, split, canonical_prompt(prompt), occurrence], ensure_ascii=False)
    return hashlib.sha256(identity.encode()).hexdigest()[:ID_LENGTH]


class Keyed(dict[str, Any]):
    """A task that an adapter lists whose prompt does not tell what it is: a game that opens the same for every secret.

    Args:
        key: What does.
        task: ``prompt``, ``answer``, ``metadata`` and ``tools``.
    """

    def __init__(self, key: str, **task: Any) -> None:
        super().__init__(task)
        self.key = key


class Listed(NamedTuple):
    """What ``tasks(split)`` listed at one position; a :class:`Task` without its id."""

    prompt: Prompt
    answer: Any
    metadata: dict[str, Any]
    tools: Tools = ()
    key: str = ""


def read_task(raw: object, position: int, split: str) -> Listed:
    """Return what ``tasks(split)`` listed at a position.

    Raises:
        BadTask: When it is neither a ``(prompt, answer)`` pair nor a dict with a prompt; the message names the place.
    """
    place = f"tasks({split!r})[{position}]"
    tools, key = None, ""
    if isinstance(raw, Mapping):
        if "prompt" not in raw:
            raise BadTask(f"{place} has no 'prompt'; it has {', '.join(sorted(map(str, raw))) or 'nothing'}")
        prompt, answer, metadata = raw["prompt"], raw.get("answer"), raw.get("metadata") or {}
        tools, key = raw.get("tools"), raw.key if isinstance(raw, Keyed) else ""
    elif isinstance(raw, tuple | list) and len(raw) == 2:
        (prompt, answer), metadata = raw, {}
    else:
        raise BadTask(f"{place} is {type(raw).__name__}; expected a (prompt, answer) pair or a dict with 'prompt'")
    metadata = _checked_metadata(metadata, place)
    checked = _checked_tools(tools, place) if tools else ()
    return Listed(_checked_prompt(prompt, place), answer, metadata, checked, key)


def _checked_prompt(prompt: object, place: str) -> Prompt:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise BadTask(f"{place} has an empty prompt")
        return prompt
    if isinstance(prompt, list) and prompt and all(_is_message(message) for message in prompt):
        return prompt
    raise BadTask(f"{place} has a prompt of type {type(prompt).__name__}; expected text or a list of chat messages")


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _checked_metadata(metadata: object, place: str) -> dict[str, Any]:
    try:
        plain = json.loads(json.dumps(metadata, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadTask(f"{place} has metadata that is not JSON: {error}") from None
    if not isinstance(plain, dict):
        raise BadTask(f"{place} has metadata of type {type(metadata).__name__}; expected a dict")
    return plain


def _checked_tools(tools: object, place: str) -> Tools:
    try:
        text = json.dumps(tools, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadTask(f"{place} has tools that are not JSON: {error}") from None
    plain = json.loads(text)
    if not isinstance(plain, list) or len(plain) > MAX_TOOLS or len(text) > TOOLS_CHARS:
        raise BadTask(
            f"{place} has tools that are no list of at most {MAX_TOOLS} schemas with {TOOLS_CHARS} characters in all"
        )
    names = [_tool_name(tool) for tool in plain]
    if None in names:
        bad = json.dumps(plain[names.index(None)])[:100]
        form = '{"type": "function", "function": {"name", "description", "parameters"}}'
        raise BadTask(f"{place} has the tool {bad}; expected {form}")
    if len(set(names)) != len(names):
        raise BadTask(f"{place} has two tools of one name: {', '.join(map(str, names))[:200]}")
    return tuple(plain)


def _tool_name(tool: object) -> str | None:
    """Return the name in the schema of a tool, or None when it is no schema."""
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict):
        return None
    if not isinstance(function.get("description") or "", str) or not isinstance(function.get("parameters") or {}, dict):
        return None
    name = function.get("name")
    return name if isinstance(name, str) and name.strip() else None


def build_split(name: str, version: str, split: str, listed: Iterable[object]) -> list[Task]:
    """Return a split's tasks in the order the environment listed them, with their ids.

    Raises:
        BadTask: For the first task that is not of the expected form.
    """
    seen: dict[str, int] = {}
    tasks: list[Task] = []
    for position, raw in enumerate(listed):
        listed = read_task(raw, position, split)
        key = canonical_prompt(listed.prompt)
        occurrence = seen.get(key, 0)
        seen[key] = occurrence + 1
        tasks.append(Task(task_id(name, version, split, listed.prompt, occurrence), *listed))
    return tasks


def without_shared(train: Sequence[Task], test: Sequence[Task]) -> list[Task]:
    """Return the train tasks that are not held out, by their prompt and key: the held-out set stays whole."""
    held_out = {(canonical_prompt(task.prompt), task.key) for task in test}
    return [task for task in train if (canonical_prompt(task.prompt), task.key) not in held_out]


def ordered(tasks: Sequence[Task], seed: int) -> list[Task]:
    """Return the tasks in the order of a seed."""
    shuffled = list(tasks)
    random.Random(seed).shuffle(shuffled)
    return shuffled


def public_line(task: Task, *, answers: bool = False) -> dict[str, Any]:
    """Return what is printed of a task; the answer only when asked for.

    Raises:
        BadTask: When the answer is asked for and is not JSON.
    """
    line: dict[str, Any] = {"taskId": task.id, "prompt": task.prompt, "metadata": dict(task.metadata)}
    if task.tools:
        line["tools"] = list(task.tools)
    if answers:
        try:
            json.dumps(task.answer, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise BadTask(f"the answer of task {task.id} is not JSON: {error}") from None
        line["answer"] = task.answer
    return line
