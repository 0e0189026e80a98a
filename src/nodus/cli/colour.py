"""Colours for terminals, and none for anything else."""

from __future__ import annotations

import os
from typing import TextIO

STYLES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}


def is_terminal(stream: TextIO) -> bool:
    """Return whether a person reads this stream on a terminal that can do more than print lines."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def paint(text: str, style: str, stream: TextIO) -> str:
    """Return the text in a colour, or as it is where the stream is no terminal or ``NO_COLOR`` is set.

    Args:
        text: One line or a part of it.
        style: A key of `STYLES`.
        stream: Where it will be printed.
    """
    if os.environ.get("NO_COLOR") or not is_terminal(stream):
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"
