"""Reads manifests: files, directories or standard input; YAML or JSON; one or more documents each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from nodus.client.resources import JsonObject

SUFFIXES = (".yaml", ".yml", ".json")


def read_manifests(files: Sequence[str], *, recursive: bool = False) -> list[JsonObject]:
    """Return the documents of all files in order; a List counts as its items.

    Args:
        files: Paths; ``-`` is standard input, a directory stands for its manifests in name order.
        recursive: Also read the directories below.

    Raises:
        click.UsageError: When a file is missing, can't be read or holds something else; names file and line.
    """
    if not files:
        raise click.UsageError("say which manifest: -f FILE, -f DIRECTORY or -f - for standard input.")
    documents: list[JsonObject] = []
    for file in files:
        for source, text in _texts(file, recursive):
            documents.extend(_objects(source, _parse(source, text)))
    if not documents:
        raise click.UsageError(f"there are no objects in {', '.join(files)}.")
    return documents


def _texts(file: str, recursive: bool) -> Iterator[tuple[str, str]]:
    if file == "-":
        yield "standard input", sys.stdin.read()
        return
    path = Path(file)
    try:
        if path.is_dir():
            found = path.rglob("*") if recursive else path.iterdir()
            for entry in sorted(entry for entry in found if entry.suffix in SUFFIXES and entry.is_file()):
                yield str(entry), entry.read_text(encoding="utf-8")
        else:
            yield file, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise click.UsageError(f"{file} can't be read: {reason}.") from error


def _parse(source: str, text: str) -> list[Any]:
    if source.endswith(".json"):
        try:
            return [json.loads(text)]
        except ValueError as error:
            raise click.UsageError(f"{source} is not valid JSON: {error}.") from error
    import yaml

    class Loader(yaml.SafeLoader):
        """Leaves dates and times as the text they are: the wire has no date type."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return list(yaml.load_all(text, Loader=Loader))
    except yaml.YAMLError as error:
        raise click.UsageError(f"{source} is not valid YAML: {error}") from error


def _objects(source: str, documents: list[Any]) -> Iterator[JsonObject]:
    for number, document in enumerate(documents, start=1):
        if document is None:
            continue
        if not isinstance(document, dict) or not document.get("kind") or not document.get("apiVersion"):
            raise click.UsageError(f"document {number} of {source} has no apiVersion and kind.")
        if str(document["kind"]).endswith("List") and isinstance(document.get("items"), list):
            yield from _objects(source, document["items"])
        else:
            yield document
