"""Rows of parquet files, each a prompt with what scores the reply to it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nodus.grader.adapters.base import Refused

MAX_ROWS = 200_000
_BATCH = 1024
_HUB = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)")
_ROLES = (["user"], ["system", "user"])
_MEDIA = ("images", "videos", "audios")


class Row(NamedTuple):
    """A row.

    Attributes:
        place: Where it stands, for messages.
        values: Column to value, as Python objects.
    """

    place: str
    values: dict[str, Any]


def read(names: Sequence[str], here: str) -> list[Row]:
    """Return the rows of files, each different row once.

    Datasets repeat their rows for as many epochs as they were made for; a task is listed once.

    Args:
        names: Paths, and ``hf://datasets/OWNER/NAME/PATH`` of what was fetched when the environment was built.
        here: What relative paths start from.

    Raises:
        Refused: When a file can't be read, there are too many rows, or one has no prompt of the expected form.
    """
    rows: list[Row] = []
    seen: set[bytes] = set()
    for name in names:
        for index, values in enumerate(_rows(name, here)):
            key = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).digest()
            if key in seen:
                continue
            seen.add(key)
            rows.append(_checked(Row(f"row {index} of {os.path.basename(name)}", values)))
            if len(rows) > MAX_ROWS:
                raise Refused(f"{os.path.basename(name)} brings the dataset to more than {MAX_ROWS} different rows")
    if not rows:
        raise Refused(f"{', '.join(map(os.path.basename, names))} has no rows")
    return rows


def _rows(name: str, here: str) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import parquet
        from pyarrow.lib import ArrowException
    except ImportError:
        raise Refused("reading parquet files needs pyarrow; add datasets to the package's dependencies") from None
    path = _place(name, here)
    try:
        # without threads: the process that reads forks for every completion
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH, use_threads=False):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        what = str(error).strip().partition("\n")[0][:160]
        raise Refused(f"{name} can't be read as a parquet file: {what}") from None


def _place(name: str, here: str) -> str:
    if "://" not in name:
        path = os.path.join(here, os.path.expanduser(name))
        if not os.path.isfile(path):
            raise Refused(f"{name} is no file of the package; a relative path starts at the module's directory")
        return path
    match = _HUB.fullmatch(name)
    if match is None:
        raise Refused(f"{name} is no path and not of the form hf://datasets/OWNER/NAME/PATH")
    return _fetched(name, *match.groups())


def _fetched(name: str, repository: str, revision: str | None, path: str) -> str:
    """Return a file of the hub's cache; a build has a network and fills it, a grader reads what is there."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise Refused(f"{name} needs huggingface_hub; add datasets to the package's dependencies") from None
    try:
        return str(hf_hub_download(repository, path, repo_type="dataset", revision=revision))
    except Exception as error:  # noqa: BLE001 - the hub's client raises errors of several libraries
        raise Refused(
            f"{name} is not among what was fetched when the environment was built, and grading has no network "
            f"({type(error).__name__})"
        ) from None


def _checked(row: Row) -> Row:
    prompt = row.values.get("prompt")
    if prompt is None:
        columns = ", ".join(row.values)[:200]
        raise Refused(f"{row.place} has no prompt; its columns are {columns}")
    if not isinstance(prompt, list) or not all(isinstance(message, Mapping) for message in prompt):
        raise Refused(f"{row.place} has a prompt of type {type(prompt).__name__}; expected a list of chat messages")
    roles = [message.get("role") for message in prompt]
    if roles not in _ROLES:
        shown = ", ".join(map(str, roles))[:100] or "no messages"
        raise Refused(f"{row.place} has a prompt of {shown}; expected one user message, after a system message at most")
    if not all(isinstance(message.get("content"), str) for message in prompt):
        raise Refused(f"{row.place} has a prompt whose content is no text")
    if media := next((key for key in _MEDIA if row.values.get(key)), None):
        raise Refused(f"{row.place} has {media}; only prompts of text can be trained on")
    row.values["prompt"] = [{"role": message["role"], "content": message["content"]} for message in prompt]
    return row
