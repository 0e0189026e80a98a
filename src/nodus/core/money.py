"""Money as integer nano-dollars; decimal strings on the wire, never a float."""

from __future__ import annotations

import re

NANO = 1_000_000_000
MAX_NANOS = 9_000_000_000 * NANO
"""The largest amount that is counted; a database's integers end a little above."""
_AMOUNT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?")


def parse_usd(text: object) -> int:
    """Return the nano-dollars of a decimal string such as ``"20.00"``.

    Raises:
        ValueError: When it isn't a plain decimal with at most nine places; numbers are not accepted.
    """
    match = _AMOUNT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'{text!r} is not an amount; write dollars as a string, like "20.00" (at most nine places)')
    whole, fraction = match.group(1), match.group(2) or ""
    return int(whole) * NANO + int(fraction.ljust(9, "0"))


def format_usd(nanos: int) -> str:
    """Return nano-dollars as a decimal string with two to nine places, such as ``"0.000015"``."""
    sign, nanos = ("-", -nanos) if nanos < 0 else ("", nanos)
    whole, fraction = divmod(nanos, NANO)
    digits = f"{fraction:09d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{digits}"
