"""``reasoning-gym``: five families of Reasoning Gym (Apache-2.0), chosen and pinned.

The five are deterministic, and their scorers compare text: none evaluates the model's reply as code, as several other
families do. Each family's entries are numbered; every fifth is held out.
"""

from __future__ import annotations

import importlib.metadata
from functools import cache
from typing import Any

from nodus.grader import reasoning
from nodus.grader.adapters.base import held_out

PURE = True
"""The five families' scorers compare text, and keep nothing; see ``grader/direct.py``."""
VERSION = "0.1.25"
FAMILIES = ("family_relationships", "knights_knaves", "leg_counting", "letter_counting", "word_sorting")
ENTRIES_A_FAMILY = 500
_SEED = 42
_INSTRUCTION = "\n\nPut your final answer between <answer> and </answer>."


@cache
def _datasets() -> dict[str, Any]:
    """Return each family's dataset; made once in a process.

    Raises:
        RuntimeError: When the library is missing or of another version.
    """
    try:
        installed = importlib.metadata.version("reasoning-gym")
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    if installed != VERSION:
        raise RuntimeError(
            f"this environment needs reasoning-gym {VERSION} beside the server, found {installed}; "
            "install nodus-platform[environments]"
        )
    library = reasoning.import_library()
    return {
        name: library.create_dataset(name, size=ENTRIES_A_FAMILY, seed=_SEED + 10_000 * number)
        for number, name in enumerate(FAMILIES)
    }


def tasks(split: str) -> list[dict[str, Any]]:
    """Return the entries of a split; the answer names the entry, which stays in this process with its solution."""
    listed: list[dict[str, Any]] = []
    for family, dataset in _datasets().items():
        for index in range(ENTRIES_A_FAMILY):
            if held_out(index) == (split == "test"):
                prompt = dataset[index]["question"] + _INSTRUCTION
                listed.append({"prompt": prompt, "answer": [family, index], "metadata": {"family": family}})
    return listed


def reward(completion: str, answer: list[Any]) -> float | None:
    """Return the family's own score for the last ``<answer>``, or for the whole completion; None when it is empty."""
    family, index = answer
    dataset = _datasets()[family]
    score = reasoning.score(dataset, completion, dataset[index])
    return None if score is None else float(score)
