"""Go-style durations (``1h30m``, ``15m0s``, ``250ms``) and ages for tables."""

from __future__ import annotations

import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Bounded: a number of hundreds of digits is infinite, which no arithmetic after it expects.
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,18})?)(ms|s|m|h|d)")


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as ``2h0m0s`` or ``15m``.

    Raises:
        ValueError: When the text is no duration; the message shows the form.
    """
    position, total = 0, 0.0
    for match in _PART.finditer(text):
        if match.start() != position:
            break
        total += float(match.group(1)) * _UNITS_S[match.group(2)]
        position = match.end()
    if not text or position != len(text):
        raise ValueError(f"{text[:60]!r} is not a duration; write it like 90s, 15m or 1h30m")
    return total


def format_duration(seconds: float) -> str:
    """Return seconds as Go prints them: ``1h0m0s``, ``15m0s``, ``42s``."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{secs}s"
    return f"{minutes}m{secs}s" if minutes else f"{secs}s"


def format_age(seconds: float) -> str:
    """Return an age as tables show it, in its largest unit: ``12s``, ``6m``, ``3h``, ``2d``."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 172800 else f"{whole // 86400}d"
