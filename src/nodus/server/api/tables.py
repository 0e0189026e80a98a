"""Tables: the columns of ``nodus get``, computed on the server from the kind's declaration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from starlette.requests import Request

from nodus.core.kinds import Column, Kind


def wants_table(request: Request) -> bool:
    """Whether the client asked for a Table; plain JSON is the answer to anything else."""
    first = request.headers.get("accept", "").split(",", 1)[0]
    parts = {part.strip().lower() for part in first.split(";")}
    return {"as=table", "g=meta.k8s.io"} <= parts


def columns_of(kind: Kind) -> list[dict[str, Any]]:
    """The column definitions of a kind."""
    return [
        {
            "name": column.header,
            "type": "string",
            "format": "name" if column.header == "Name" else "",
            "description": column.description,
            "priority": 1 if column.wide else 0,
        }
        for column in kind.columns
    ]


def table(kind: Kind, items: Iterable[Mapping[str, Any]], now: datetime, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A Table of wire objects.

    Args:
        kind: kind of all the objects.
        items: objects in wire form.
        now: for ages.
        metadata: of the list: ``resourceVersion`` and ``continue``.
    """
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(metadata),
        "columnDefinitions": columns_of(kind),
        "rows": [row(kind, item, now) for item in items],
    }


def row(kind: Kind, item: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """One row: the cells, and the object's metadata for ``-A`` and ``--show-labels``."""
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item.get("metadata", {})}
    return {"cells": [_cell(column, item, now) for column in kind.columns], "object": partial}


def _cell(column: Column, item: Mapping[str, Any], now: datetime) -> str:
    value: Any = item
    if callable(column.path):
        value = column.path(item, now)
    else:
        for part in column.path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
