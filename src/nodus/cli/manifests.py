"""Reads manifests: files, directories or standard input; YAML or JSON; one or more documents each.

Only what JSON can hold comes back: a manifest that YAML or Python would read more generously than the server (a key
that stands twice, a key that is no text, an alias that unfolds to gigabytes) is refused here, with its place.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from nodus.client.resources import JsonObject
from nodus.core.errors import NodusError

SUFFIXES = (".yaml", ".yml", ".json")
MAX_DEPTH = 100
MAX_VALUES = 1_000_000
"""Of one document, aliases unfolded; the server takes a megabyte of JSON."""


def read_manifests(files: Sequence[str], *, recursive: bool = False) -> list[JsonObject]:
    """Return the documents of all files in order; a List counts as its items.

    Args:
        files: Paths; ``-`` is standard input, a directory stands for its manifests in name order.
        recursive: Also read the directories below.

    Raises:
        click.UsageError: When no file is named.
        NodusError: When a file is missing, can't be read or holds something else; names file and line.
    """
    if not files:
        raise click.UsageError("say which manifest: -f FILE, -f DIRECTORY or -f - for standard input.")
    documents: list[JsonObject] = []
    for file in files:
        for source, text in _texts(file, recursive):
            documents.extend(_objects(source, _parse(source, text)))
    if not documents:
        raise NodusError(f"there are no objects in {', '.join(files)}")
    return documents


def parse_object(source: str, text: str) -> JsonObject:
    """Return the one object that a text in YAML holds.

    Raises:
        NodusError: When it holds something else.
    """
    found = list(_objects(source, _parse(source, text)))
    if len(found) != 1:
        raise NodusError(f"{source}: one object is expected, there are {len(found)}")
    return found[0]


def _texts(file: str, recursive: bool) -> Iterator[tuple[str, str]]:
    source = "standard input" if file == "-" else file
    try:
        if file == "-":
            yield source, sys.stdin.buffer.read().decode("utf-8-sig")
            return
        path = Path(file)
        entries = [path]
        if path.is_dir():
            found = path.rglob("*") if recursive else path.iterdir()
            entries = sorted(entry for entry in found if entry.suffix in SUFFIXES and entry.is_file())
        for entry in entries:
            source = str(entry)
            yield source, entry.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise NodusError(f"{source} can't be read: {reason}") from error


def _parse(source: str, text: str) -> list[Any]:
    try:
        documents = _parse_json(source, text) if source.endswith(".json") else _parse_yaml(source, text)
    except RecursionError as error:
        raise NodusError(f"{source} is nested too deeply") from error
    for document in documents:
        _check_values(source, document)
    return documents


def _parse_json(source: str, text: str) -> list[Any]:
    try:
        return [json.loads(text, object_pairs_hook=_object)]
    except ValueError as error:
        raise NodusError(f"{source} is not valid JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def _parse_yaml(source: str, text: str) -> list[Any]:
    import yaml

    from nodus.cli.yaml_loader import Loader

    try:
        return list(yaml.load_all(text, Loader=Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise NodusError(f"{source}{place}: not valid YAML: {problem}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number or date that is none
        raise NodusError(f"{source} is not valid YAML: {error}") from error


def _check_values(source: str, document: Any) -> None:
    """Refuse what JSON can't hold, and what aliases make endless, without unfolding them."""
    pending: list[tuple[Any, tuple[str, ...]]] = [(document, ())]
    seen = 0
    while pending:
        value, path = pending.pop()
        seen += 1
        if seen > MAX_VALUES or len(path) > MAX_DEPTH:
            what = "nested too deeply" if len(path) > MAX_DEPTH else "too large when its aliases are unfolded"
            raise NodusError(f"{source} is {what}")
        if isinstance(value, dict):
            for key, child in value.items():
                if not isinstance(key, str):
                    where = ".".join(path) or "the document"
                    raise NodusError(f"{source}: the key {key!r} in {where} is no text; put it in quotes")
                pending.append((child, (*path, key)))
        elif isinstance(value, list):
            pending.extend((child, (*path, str(number))) for number, child in enumerate(value))
        elif isinstance(value, float) and not math.isfinite(value):
            raise NodusError(f"{source}: {'.'.join(path)} is {value}; JSON has no such number")
        elif not (value is None or isinstance(value, str | bool | int | float)):
            raise NodusError(f"{source}: {'.'.join(path)} is a {type(value).__name__}; JSON has no such value")


def _objects(source: str, documents: list[Any]) -> Iterator[JsonObject]:
    for number, document in enumerate(documents, start=1):
        if document is None:
            continue
        where = f"document {number} of {source}"
        if not isinstance(document, dict):
            raise NodusError(f"{where} is no object with apiVersion and kind")
        lacking = [key for key in ("apiVersion", "kind") if not document.get(key)]
        if lacking:
            raise NodusError(f"{where} has no {' and no '.join(lacking)}")
        for key in ("apiVersion", "kind"):
            if not isinstance(document[key], str):
                raise NodusError(f"{where}: {key} is {document[key]!r}; text is expected")
        if document["kind"].endswith("List") and isinstance(document.get("items"), list):
            yield from _objects(source, document["items"])
        else:
            _check_metadata(where, document.get("metadata"))
            yield document


def _check_metadata(where: str, metadata: Any) -> None:
    """Check what the client itself reads of an object; the rest is the server's to judge."""
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        raise NodusError(f"{where}: metadata is {metadata!r}; an object is expected")
    for key in ("name", "generateName", "namespace"):
        if not isinstance(metadata.get(key), str | None):
            raise NodusError(f"{where}: metadata.{key} is {metadata[key]!r}; put it in quotes")
    for key in ("labels", "annotations"):
        if not isinstance(metadata.get(key), dict | None):
            raise NodusError(f"{where}: metadata.{key} is {metadata[key]!r}; an object is expected")
