"""Reasoning Gym: a dataset as ``reasoning_gym.create_dataset`` makes it, also a composite of several families.

Every fifth entry is held out. The last ``<answer>`` of a completion, or the whole of it, is scored by the dataset's own
``score_answer``; partial credit is the reward. Entries hold their solution, so they stay in the grader's process and
only their family is published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodus.grader.adapters.base import Adapter, Message, Refused, Solution, class_names, held_out
from nodus.grader.tasks import Task

MAX_ENTRIES = 100_000


class ReasoningGym:
    """A dataset of Reasoning Gym; see the module.

    Args:
        dataset: A ``ProceduralDataset``.
    """

    kind = "reasoning-gym"
    episodes = False

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._entries: dict[int, Any] = {}

    def tasks(self, split: str) -> Sequence[object]:
        """List a split's entries, made in this process and kept: not all survive being written down."""
        return [self._listed(index) for index in range(len(self._dataset)) if held_out(index) == (split == "test")]

    def grade(self, task: Task, turns: Sequence[str]) -> object:
        """Return the dataset's own score, None for an empty answer."""
        from nodus.grader import reasoning  # late, like all that only some environments need: forks copy what is there

        return reasoning.score(self._dataset, turns[0], self._entry(task.answer.private))

    def reply(self, task: Task, turns: Sequence[str]) -> list[Message] | None:
        """Return None: an entry is one question."""
        return None

    def _listed(self, index: int) -> dict[str, Any]:
        entry = self._entry(index)
        family = (entry.get("metadata") or {}).get("source_dataset")
        metadata = {"family": family} if isinstance(family, str) else {}
        solution = Solution(str(entry.get("answer") or ""), index)
        return {"prompt": entry["question"], "answer": solution, "metadata": metadata}

    def _entry(self, index: int) -> Any:
        if index not in self._entries:
            self._entries[index] = self._dataset[index]
        return self._entries[index]


def recognises(found: object) -> bool:
    """Tell whether it is a dataset of the library, or what wraps one without end."""
    return bool({"ProceduralDataset", "ReseedingDataset"} & class_names(found, "reasoning_gym"))


def adapt(found: Any) -> Adapter:
    """Return the adapter of a dataset.

    Raises:
        Refused: When it has no end, no entries, or too many.
    """
    if "ReseedingDataset" in class_names(found, "reasoning_gym"):
        raise Refused("a ReseedingDataset has no end; return the dataset that it wraps, with the size to train on")
    size = len(found)
    if not 0 < size <= MAX_ENTRIES:
        raise Refused(f"the dataset has {size} entries; expected 1 to {MAX_ENTRIES}: create it with another size")
    from nodus.grader import reasoning

    reasoning.close_holes()
    return ReasoningGym(found)
