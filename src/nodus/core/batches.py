"""Cutting long lists into requests that a server takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batches(
    items: Iterable[T], size_of: Callable[[T], int], *, most_bytes: int, most: int | None = None
) -> Iterator[list[T]]:
    """Yield the items in order, in lists that are as long as they may be; none is empty.

    Args:
        items: Any number of them.
        size_of: How many bytes one takes.
        most_bytes: What the items of a list take together at most; one that takes more is alone.
        most: How many are in a list at most; any number when left out.
    """
    batch: list[T] = []
    size = 0
    for item in items:
        more = size_of(item)
        if batch and (len(batch) == most or size + more > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += more
    if batch:
        yield batch
