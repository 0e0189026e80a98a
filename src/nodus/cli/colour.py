"""Colours for terminals, and none for anything else."""

from __future__ import annotations

import os
import re
from typing import TextIO

STYLES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}
_PAINT = re.compile(rf"(\x1b\[(?:0|{'|'.join(STYLES.values())})m)")


def is_terminal(stream: TextIO) -> bool:
    """Return whether a person reads this stream on a terminal that can do more than print lines."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def visible(text: str) -> str:
    """Return a text with control characters and broken ones spelled out, so that what a terminal shows is what it says.

    Names, messages and logs of others reach the screen; an escape sequence in one could rewrite what stands there.
    """
    if text.isprintable() or all(sign.isprintable() or sign in "\n\t" for sign in text):
        return text
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode() for sign in text
    )


def visible_but_paint(text: str) -> str:
    """Return `visible` of a text in which our own colours stay: its parts are ours and others' together."""
    return "".join(part if number % 2 else visible(part) for number, part in enumerate(_PAINT.split(text)))


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
