"""``-o custom-columns=NAME:.metadata.name,PHASE:.status.phase``, and the order that ``--sort-by`` asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import click

from nodus.cli.jsonpath import JsonPathError, as_text, find
from nodus.cli.tables import TablePrinter
from nodus.client.resources import JsonObject

NONE = "<none>"


def custom_columns(template: str, items: Sequence[JsonObject], *, headers: bool = True) -> list[str]:
    """Return the lines of a table with one column for each ``HEADER:PATH``.

    Args:
        template: With commas between columns; or, as a file has it, the headers in one line and the paths in another.
        items: Objects.
        headers: Begin with the header line.

    Raises:
        click.UsageError: When a column has no path, or one that can't be read.
    """
    columns = _columns(template)
    try:
        rows = [{"cells": [_cell(find(path, item)) for _, path in columns]} for item in items]
    except JsonPathError as error:
        raise click.UsageError(str(error)) from error
    printer = TablePrinter(headers=headers, verbatim=True)
    return printer.lines({"columnDefinitions": [{"name": header} for header, _ in columns], "rows": rows})


def _columns(template: str) -> list[tuple[str, str]]:
    lines = [line.split() for line in template.splitlines() if line.strip()]
    if len(lines) == 2 and len(lines[0]) == len(lines[1]):
        return list(zip(*lines, strict=True))
    columns = []
    for part in template.strip().split(","):
        header, colon, path = part.strip().partition(":")
        if not colon or not header or not path:
            raise click.UsageError(f"custom-columns: {part!r} is not HEADER:PATH, such as NAME:.metadata.name.")
        columns.append((header, path))
    return columns


def _cell(values: list[Any]) -> str:
    return ",".join(as_text(value) for value in values) or NONE


WITHOUT = (2, 0.0, "")
"""What an object without the field is sorted by."""


def sort_key(path: str, obj: JsonObject) -> tuple[int, float, str]:
    """Return what to sort an object by: numbers before texts, and objects without the field last.

    Raises:
        click.UsageError: When the path can't be read.
    """
    try:
        found = find(path, obj)
    except JsonPathError as error:
        raise click.UsageError(f"--sort-by: {error}.") from error
    value = found[0] if found else None
    if value is None:
        return WITHOUT
    try:  # amounts and counters are decimal texts on the wire
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    return (0, number, "") if math.isfinite(number) else (1, 0.0, as_text(value))
