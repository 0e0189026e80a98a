"""Amounts as Kubernetes writes them, such as ``500m`` or ``16Gi``: read, and written for people."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

QUANTITY = r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([KMGT]i?|m)?"
"""Bounded, so that every quantity is a number that an integer holds."""
_UNITS = ("", "Ki", "Mi", "Gi", "Ti")
_FACTORS = {"": 1.0, "m": 0.001, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_FACTORS |= {unit: 1024.0**power for power, unit in enumerate(_UNITS) if unit}


def quantity(value: str | float) -> float:
    """Return the number that a quantity such as ``4``, ``500m`` or ``16Gi`` means.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(QUANTITY, str(value))
    if match is None:
        raise ValueError(f"{str(value)[:60]!r} is not a quantity; write it like 4, 500m or 16Gi")
    return float(match[1]) * _FACTORS[match[2] or ""]


@lru_cache(maxsize=1024)
def exact_quantity(value: str | float) -> Fraction:
    """Return a quantity without rounding, for what is charged by it.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(QUANTITY, str(value))
    if match is None:
        raise ValueError(f"{str(value)[:60]!r} is not a quantity; write it like 4, 500m or 16Gi")
    factor = Fraction(1, 1000) if match[2] == "m" else int(_FACTORS[match[2] or ""])
    return Fraction(match[1]) * factor


def size_text(size: int) -> str:
    """Return a number of bytes as a quantity of at most one decimal place, such as ``516.5Mi``."""
    value, unit = float(size), 0
    while value >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f}".removesuffix(".0") + _UNITS[unit]
