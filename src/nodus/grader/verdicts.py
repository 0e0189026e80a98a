"""What a reward becomes: the one place that turns a value into a verdict."""

from __future__ import annotations

import json
import math
import numbers
import sys
from collections.abc import Callable
from typing import Any

CORRECT, INCORRECT, INVALID, FAILURE = "Correct", "Incorrect", "InvalidOutput", "InfrastructureFailure"
VERDICTS = frozenset({CORRECT, INCORRECT, INVALID, FAILURE})
_PLAIN_NUMBERS = (float, int, bool)
_RESULT_KEYS = frozenset({"verdict", "reward", "reason", "traceback", "code", "lost"})
_LARGEST = sys.float_info.max
# Without the layers of json.loads around it: each memory page that a worker touches after a fork is copied or faulted.
_scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]


def failure(reason: str, trace: str | None = None) -> dict[str, Any]:
    """Return the verdict of a grader that could not judge: it carries no reward."""
    result: dict[str, Any] = {"verdict": FAILURE, "reward": None, "reason": reason}
    if trace:
        result["traceback"] = trace
    return result


def classify(value: object) -> dict[str, Any]:
    """Return verdict and reward for what ``reward`` returned.

    A number of at least 1 (or True) is Correct, a lower one Incorrect, None is InvalidOutput with reward 0. Anything
    else (text, NaN, an infinity, a list) is a fault of the reward, never a reward of 0.
    """
    if value is None:
        return {"verdict": INVALID, "reward": 0.0}
    if type(value) in _PLAIN_NUMBERS:
        return _scored(value)  # without asking the number classes, which is a tenth of a fork's work
    plain = value
    item = getattr(value, "item", None)
    if callable(item) and not isinstance(value, numbers.Real):
        plain = item()  # a numpy bool, a 0-d array or tensor
    if not isinstance(plain, numbers.Real):
        return failure(f"reward returned {_shown(value)}; expected a number, a bool or None")
    return _scored(plain)


def _scored(value: Any) -> dict[str, Any]:
    try:
        number = float(value)
    except OverflowError:
        return failure("reward returned a number that is too large")
    if not math.isfinite(number):
        return failure(f"reward returned {number}; expected a finite number")
    return {"verdict": CORRECT if number >= 1 else INCORRECT, "reward": number}


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a repr of the environment's own class may raise anything
        text = "?"
    return f"{type(value).__name__} {text[:80]}"


def write_result(result: dict[str, Any]) -> bytes:
    """Return a verdict as a completion's process writes it, for :func:`read_result`."""
    if len(result) == 2:  # no reason, no traceback: by hand, since the JSON encoder is half of what a child does
        return f'{{"verdict": "{result["verdict"]}", "reward": {result["reward"]!r}}}'.encode()
    return json.dumps(result).encode()


def read_result(data: bytes) -> dict[str, Any] | None:
    """Return the verdict that a completion's process wrote, or None when it is not exactly one well-formed verdict."""
    try:
        text = data.decode()
        result, end = _scan(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return None
    if end != len(text) or not isinstance(result, dict) or not result.keys() <= _RESULT_KEYS:
        return None
    if not isinstance(result.get("verdict"), str) or result["verdict"] not in VERDICTS:
        return None
    reward = result.get("reward")
    if result["verdict"] == FAILURE:
        return result if reward is None else None
    # compared, not converted: a forged integer may be larger than any float
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not -_LARGEST <= reward <= _LARGEST:
        return None
    if result["verdict"] == INVALID:
        return result if reward == 0 else None
    return result if (reward >= 1) == (result["verdict"] == CORRECT) else None
