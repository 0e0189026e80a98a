"""Task manifests: the tasks of an environment's split in a seed's order, made once and kept.

The first run that needs a (version digest, split, seed) makes the manifest in a sandbox; every later one reads what
was kept, so the tasks never change between runs. Answers are part of a manifest only where an ExactMatch grader inside
the server needs them, and never part of what is published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from nodus.server.store import Store

Prompt = str | list[dict[str, Any]]
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as JSON writes it


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    Attributes:
        task_id: 16 hex digits.
        prompt: Text, or chat messages.
        metadata: Published beside the prompt.
        answer: For graders inside the server; None elsewhere. Never published.
        tools: What the model may call, as schemas that a chat template takes.
    """

    task_id: str
    prompt: Prompt
    metadata: Mapping[str, Any] = field(default_factory=dict)
    answer: Any = None
    tools: Sequence[Mapping[str, Any]] = ()

    def public(self) -> dict[str, Any]:
        """Return what a trainer sees; ``tools`` only where there are any."""
        seen = {"taskId": self.task_id, "prompt": self.prompt, "metadata": dict(self.metadata)}
        return {**seen, "tools": [dict(tool) for tool in self.tools]} if self.tools else seen


@dataclass(frozen=True, slots=True)
class Manifest:
    """The tasks of one split in the order of one seed.

    Attributes:
        digest: The environment version's digest.
        split: ``train`` or ``test``.
        seed: Decides the order.
        tasks: All tasks of the split.
        has_answers: Whether the tasks carry answers.
    """

    digest: str
    split: str
    seed: int
    tasks: tuple[Task, ...]
    has_answers: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as it is kept."""
        rows = [
            [t.task_id, t.prompt, dict(t.metadata), t.answer, *([list(t.tools)] if t.tools else [])] for t in self.tasks
        ]
        return {"format": 1, "hasAnswers": self.has_answers, "tasks": rows}

    @classmethod
    def from_json(cls, digest: str, split: str, seed: int, value: Mapping[str, Any]) -> Manifest:
        """Return a manifest that was kept."""
        tasks = tuple(Task(*row) for row in value["tasks"])
        return cls(digest, split, seed, tasks, bool(value["hasAnswers"]))

    @classmethod
    def from_lines(cls, digest: str, split: str, seed: int, lines: Iterable[Any], has_answers: bool) -> Manifest:
        """Return the manifest of what the runner listed.

        Raises:
            ValueError: When a line is no task, or two have one id.
        """
        tasks = tuple(_task(line) for line in lines)
        if len({task.task_id for task in tasks}) != len(tasks):
            raise ValueError("two tasks have the same taskId")
        return cls(digest, split, seed, tasks, has_answers)

    def jsonl(self, count: int | None = None) -> str:
        """Return the first ``count`` tasks as JSON lines for a trainer; all of them when None."""
        chosen = self.tasks if count is None else self.tasks[:count]
        return "".join(json.dumps(task.public(), ensure_ascii=False) + "\n" for task in chosen)


def _task(line: Any) -> Task:
    if not isinstance(line, dict) or not isinstance(line.get("taskId"), str) or not line["taskId"]:
        raise ValueError("a line has no taskId")
    if not isinstance(line.get("prompt"), str | list) or not isinstance(line.get("metadata", {}), dict):
        raise ValueError(f"task {line['taskId']} has no prompt, or metadata that is no object")
    tools = line.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f"task {line['taskId']} has tools that are no list of schemas")
    try:
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise ValueError(f"task {line['taskId']!a} holds a number that is not finite") from None
    if _NUL.search(text) or text != text.encode("utf-8", "replace").decode():
        raise ValueError(f"task {line['taskId']!a} holds a NUL character or half of a surrogate pair")
    return Task(line["taskId"], line["prompt"], line.get("metadata", {}), line.get("answer"), tuple(tools))


class ManifestStore(Protocol):
    """Where manifests are kept; the first writer of a key wins."""

    async def get(self, digest: str, split: str, seed: int) -> dict[str, Any] | None:
        """Return what is kept under a key, or None."""
        ...

    async def put(self, digest: str, split: str, seed: int, value: dict[str, Any]) -> dict[str, Any]:
        """Keep a value unless one is kept already; return the one that is kept."""
        ...


class MemoryManifests:
    """Manifests kept in memory, for tests and for one-off use."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, int], dict[str, Any]] = {}

    async def get(self, digest: str, split: str, seed: int) -> dict[str, Any] | None:
        """Return what is kept under a key, or None."""
        return self._kept.get((digest, split, seed))

    async def put(self, digest: str, split: str, seed: int, value: dict[str, Any]) -> dict[str, Any]:
        """Keep a value unless one is kept already; return the one that is kept."""
        return self._kept.setdefault((digest, split, seed), value)


class StoredManifests:
    """Manifests kept in the database.

    Args:
        store: The server's store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, digest: str, split: str, seed: int) -> dict[str, Any] | None:
        """Return what is kept under a key, or None."""
        from nodus.server.store import manifests

        value: dict[str, Any] | None = await self._store.read(manifests.get, digest, split, seed)
        return value

    async def put(self, digest: str, split: str, seed: int, value: dict[str, Any]) -> dict[str, Any]:
        """Keep a value unless one is kept already; return the one that is kept."""
        from nodus.server.store import manifests

        kept: dict[str, Any] = await self._store.write(manifests.put, digest, split, seed, value)
        return kept
