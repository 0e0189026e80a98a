"""``letter-counting-legacy-eval`` and ``-rl``: the legacy protocol over Reasoning Gym's ``letter_counting``.

One list of entries, seed 42, not shuffled by family as ``reasoning-gym`` has it. The evaluation profile holds out
entries 0 to 63; the RL profile trains on those and holds out entries 64 to 127. A system message asks for nothing but
the answer, and the generator scores the reply as it is: a reply that holds more than the answer gets a part of the
reward, and white space counts.
"""

from __future__ import annotations

import importlib.metadata
import os
from functools import cache
from types import SimpleNamespace
from typing import Any

PURE = True
"""The family's scorer compares text, and keeps nothing; see ``grader/direct.py``."""
VERSION = "0.1.25"
SEED, ENTRIES = 42, 64
FAMILY = "letter_counting"
SYSTEM = "Answer with only the number. Do not write any other words, punctuation or explanation."


@cache
def _dataset() -> Any:
    """Return the generator's entries; made once in a process.

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
    os.environ.setdefault("MPLCONFIGDIR", "/tmp")  # it imports matplotlib, which wants a place to write
    import reasoning_gym

    return reasoning_gym.create_dataset(FAMILY, size=2 * ENTRIES, seed=SEED)


def evaluation() -> SimpleNamespace:
    """Return the evaluation profile: nothing to train on, the first entries held out."""
    return SimpleNamespace(tasks=lambda split: _tasks(0) if split == "test" else [], reward=reward)


def training() -> SimpleNamespace:
    """Return the RL profile: the first entries to train on, those that follow held out."""
    return SimpleNamespace(tasks=lambda split: _tasks(ENTRIES if split == "test" else 0), reward=reward)


def _tasks(first: int) -> list[dict[str, Any]]:
    """Return one slice of the entries; the answer is an entry's place, its solution stays in this process."""
    return [
        {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": _dataset()[index]["question"]},
            ],
            "answer": index,
            "metadata": {"family": FAMILY},
        }
        for index in range(first, first + ENTRIES)
    ]


def reward(completion: str, answer: int) -> float:
    """Return the generator's own score for the raw completion."""
    dataset = _dataset()
    return float(dataset.score_answer(completion, dataset[answer]))
