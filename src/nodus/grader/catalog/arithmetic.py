"""``arithmetic``: additions of two numbers from 2 to 20.

All 361 pairs are tasks. Which are held out is fixed: pairs are kept together with their mirror image (3 + 5 with
5 + 3), the couples are shuffled once, and 128 tasks are taken for the test split; the other 233 train.
"""

from __future__ import annotations

import random
import re

LOW, HIGH = 2, 20
HELD_OUT_TASKS = 128
_SHUFFLE_SEED = 2
_NUMBER = re.compile(r"(?<![0-9.])-?[0-9]+(?:\.[0-9]+)?")
_LONGEST_NUMBER = 32


def tasks(split: str) -> list[tuple[str, str]]:
    """Return the pairs of a split as (prompt, answer)."""
    couples = [(a, b) for a in range(LOW, HIGH + 1) for b in range(a, HIGH + 1)]
    random.Random(_SHUFFLE_SEED).shuffle(couples)
    held_out: list[tuple[int, int]] = []
    train: list[tuple[int, int]] = []
    for a, b in couples:
        orders = [(a, b)] if a == b else [(a, b), (b, a)]
        chosen = held_out if len(held_out) + len(orders) <= HELD_OUT_TASKS else train
        chosen += orders
    pairs = held_out if split == "test" else train
    return [(f"What is {a} + {b}? Reply with only the number.", str(a + b)) for a, b in sorted(pairs)]


def reward(completion: str, answer: str) -> float | None:
    """Return 1 when the last integer of the completion is the answer, 0 when not, None when there is no integer."""
    integers = [number for number in _NUMBER.findall(completion) if not number.partition(".")[2].strip("0")]
    if not integers:
        return None
    return float(len(integers[-1]) <= _LONGEST_NUMBER and float(integers[-1]) == int(answer))
