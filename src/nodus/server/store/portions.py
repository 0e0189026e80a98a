"""Reading rows of unknown size a portion at a time, so that what is held in memory stays bounded.

A row can be a megabyte or a hundred bytes. The first portion is small; each further one is as large as the rows so far
suggest. Plain statements do it on both databases: PostgreSQL's own cursors need a transaction and a name each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

_FIRST = 32
_PORTION_BYTES = 512 * 1024


def read_in_portions(
    read: Callable[[Any, int], Sequence[Any]], size_of: Callable[[Any], int], *, most: int | None = None
) -> Iterator[Any]:
    """Yield rows until there are no more.

    Args:
        read: returns up to so many rows after a row; after None the first.
        size_of: about how many bytes a row takes.
        most: rows to read at most.
    """
    last: Any = None
    count = size = 0
    while most is None or count < most:
        portion = _FIRST if count == 0 else max(1, min(16 * count, _PORTION_BYTES * count // max(size, 1)))
        portion = portion if most is None else min(portion, most - count)
        rows = read(last, portion)
        for last in rows:
            count += 1
            size += size_of(last)
            yield last
        if len(rows) < portion:
            return
