"""``gsm8k``: word problems of grade school, whose answer is one number.

The rows are 100 of GSM8K's test split, which ship with Nodus (``NOTICE`` says where they are from and their licence).
Sorted by their number, every second one is held out: 50 train, 50 test.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

_ROWS = Path(__file__).with_name("rows.jsonl")
_INSTRUCTION = "\n\nThink step by step, then write the answer as a number on the last line."
# A sign counts where it can't be the minus or the dash of "7-5"; thousands are separated by commas or not at all.
_NUMBER = re.compile(
    r"(?<![0-9.])((?:(?<![\w.)])[-−]\$?)?)\$?([0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)((?:\.[0-9]+)?)"
)
_LONGEST_NUMBER = 32


def tasks(split: str) -> list[dict[str, Any]]:
    """Return the rows of a split; ``metadata.row`` is a row's number in GSM8K's test split, counted from 0."""
    rows = [json.loads(line) for line in _ROWS.read_text(encoding="utf-8").splitlines()]
    return [task(row) for row in rows[1 if split == "test" else 0 :: 2]]


def task(row: dict[str, Any]) -> dict[str, Any]:
    """Return the task of a row with ``row``, ``question`` and ``answer``."""
    return {"prompt": row["question"] + _INSTRUCTION, "answer": row["answer"], "metadata": {"row": row["row"]}}


def reward(completion: str, answer: str) -> float | None:
    """Return 1 when the last number of the completion is the answer, 0 when not, None when there is no number.

    ``1430``, ``1,430``, ``$1430.00`` and ``#### 1430.`` are one number; digits other than 0 to 9 are none.
    """
    numbers = _NUMBER.findall(completion)
    if not numbers:
        return None
    sign, whole, fraction = numbers[-1]
    digits = whole.replace(",", "") + fraction
    if len(digits) > _LONGEST_NUMBER:
        return 0.0
    return float(Decimal(f"{'-' if sign else ''}{digits}") == Decimal(answer))
