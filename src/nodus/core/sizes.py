"""Numbers of bytes, for people."""

from __future__ import annotations

_UNITS = ("", "Ki", "Mi", "Gi", "Ti")


def size_text(size: int) -> str:
    """Return a number of bytes as a quantity of at most one decimal place, such as ``516.5Mi``."""
    value, unit = float(size), 0
    while value >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f}".removesuffix(".0") + _UNITS[unit]
