"""Prints the server's Tables: the columns are the server's, the layout is kubectl's."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodus.cli.colour import paint, visible

GAP = 3
PHASE_STYLES = {
    "Running": "cyan",
    "Ready": "green",
    "Succeeded": "green",
    "Failed": "red",
    "Lost": "red",
    "Suspended": "yellow",
    "Cancelled": "yellow",
}


@dataclass(slots=True)
class TablePrinter:
    """Prints one kind's Tables below one header.

    Attributes:
        wide: Also show the columns of lower priority.
        headers: Print the header line.
        project_column: Begin with the project, for lists over all of them.
        show_labels: End with the labels.
        prefix: Put before names, such as ``job/``, where several kinds are printed.
        verbatim: Print headers as they are, not in capitals.
    """

    wide: bool = False
    headers: bool = True
    project_column: bool = False
    show_labels: bool = False
    prefix: str = ""
    verbatim: bool = False
    _widths: list[int] = field(default_factory=list, init=False)
    _columns: list[int] = field(default_factory=list, init=False)
    _names: list[str] = field(default_factory=list, init=False)

    def lines(self, table: Mapping[str, Any]) -> list[str]:
        """Return a Table's lines; the header comes once, and later rows keep the widths."""
        first = not self._names
        if first:
            self._take_columns(table.get("columnDefinitions") or [])
        rows = [self._cells(row) for row in table.get("rows") or []]
        printed = [self._names, *rows] if first and self.headers else rows
        for row in printed:
            self._widths = [
                max(len(cell), width) for cell, width in zip(row, self._widths or [0] * len(row), strict=False)
            ]
        return [self._line(row) for row in printed]

    def _take_columns(self, definitions: Sequence[Mapping[str, Any]]) -> None:
        shown = [(index, item) for index, item in enumerate(definitions) if self.wide or not item.get("priority")]
        self._columns = [index for index, _ in shown]
        self._names = [str(item["name"]) if self.verbatim else str(item["name"]).upper() for _, item in shown]
        if self.project_column:
            self._names.insert(0, "NAMESPACE")
        if self.show_labels:
            self._names.append("LABELS")

    def _cells(self, row: Mapping[str, Any]) -> list[str]:
        values = row.get("cells") or []
        cells = [cell_text(values[index]) if index < len(values) else "" for index in self._columns]
        if self.prefix and cells:
            cells[0] = self.prefix + cells[0]
        metadata = (row.get("object") or {}).get("metadata") or {}
        if self.project_column:
            cells.insert(0, str(metadata.get("namespace") or ""))
        if self.show_labels:
            labels = metadata.get("labels") or {}
            cells.append(",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>")
        return cells

    def _line(self, row: Sequence[str]) -> str:
        padded = [cell.ljust(width + GAP) for cell, width in zip(row, self._widths, strict=False)]
        if "PHASE" in self._names and row is not self._names:
            place = self._names.index("PHASE")
            style = PHASE_STYLES.get(row[place]) if place < len(row) else None
            if style is not None:
                padded[place] = paint(padded[place], style, sys.stdout)
        return "".join(padded).rstrip()


def cell_text(value: object) -> str:
    """Return a cell as it is printed: nothing for null, booleans as YAML has them, objects as JSON, one line always."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    return visible(str(value).replace("\n", " "))


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table made on this side, in the same layout."""
    printer = TablePrinter()
    definitions = [{"name": header} for header in headers]
    return printer.lines({"columnDefinitions": definitions, "rows": [{"cells": list(row)} for row in rows]})
