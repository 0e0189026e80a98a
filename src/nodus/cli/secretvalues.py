"""The values of a Secret, from where a user keeps them. No message here, and no output, shows a value."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from nodus.client.dotenv import parse

MAX_BYTES = 1024 * 1024
"""Of one file; the server takes a megabyte for the whole object."""


def collect(literals: Iterable[str], files: Iterable[str], env_files: Iterable[str]) -> dict[str, str]:
    """Return the values by key.

    Args:
        literals: ``KEY=VALUE`` each.
        files: ``KEY=PATH`` or ``PATH`` each, whose key is then the file's name; ``-`` is standard input.
        env_files: Paths of files with ``KEY=VALUE`` lines.

    Raises:
        click.UsageError: For a malformed argument, a missing file, or a key that is given twice.
    """
    values: dict[str, str] = {}
    for number, literal in enumerate(literals, start=1):
        key, equals, value = literal.partition("=")
        if not equals or not key:
            # Not quoted: without an equals sign it is probably the value alone.
            raise click.UsageError(f"--from-literal number {number} is not KEY=VALUE.")
        _put(values, key, value)
    for given in files:
        key, equals, path = given.partition("=")
        if not equals:
            key, path = Path(given).name, given
        if path == "-" and not equals:
            raise click.UsageError("standard input needs a key: --from-file KEY=-.")
        _put(values, key, _read("--from-file", path))
    for path in env_files:
        for key, value in _env_lines(path, _read("--from-env-file", path)):
            _put(values, key, value)
    if not values:
        raise click.UsageError("say which values: --from-literal, --from-file or --from-env-file.")
    return values


def _put(values: dict[str, str], key: str, value: str) -> None:
    if key in values:
        raise click.UsageError(f"the key {key!r} is given twice.")
    values[key] = value


def _read(option: str, path: str) -> str:
    try:
        content = sys.stdin.buffer.read(MAX_BYTES + 1) if path == "-" else _file(Path(path))
    except OSError as error:
        raise click.UsageError(f"{option} {path}: {error.strerror}.") from error
    if len(content) > MAX_BYTES:
        raise click.UsageError(f"{option} {path} is larger than 1 MiB.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{option} {path} is not UTF-8 text; encode it, such as with base64.") from error


def _file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _env_lines(path: str, text: str) -> Iterable[tuple[str, str]]:
    try:
        yield from parse(text)
    except ValueError as error:
        raise click.UsageError(f"{error} of {path} is not KEY=VALUE.") from error
