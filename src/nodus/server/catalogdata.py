"""Data of catalog environments that does not ship with Nodus, from the operator's files: the setting ``catalog_data``.

What is found is read, checked and written anew in one form below the data directory, by the digest of its rows: the
same rows are the same environment, whatever file they came in.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodus.core.errors import NodusError
from nodus.server.files import sync_directory
from nodus.server.grading.environments import catalog_data_directory

SPLITS = ("train", "test")
FILE_NAME = "gsm8k-{split}.jsonl"  # where the grader's `gsm8k_full` looks for it
_FILES = ("{split}.jsonl", "{split}.parquet", "{split}-*.parquet", "main/{split}-*.parquet")
"""Where a split may be below ``gsm8k/``; the last two as the data set's repository has them."""
_ANSWER = re.compile(r"####\s*(-?[0-9][0-9,]*(?:\.[0-9]+)?)\s*$")


class CatalogDataMissing(NodusError):
    """The operator's data of an environment is not there, or is not what it should be."""

    reason, status = "CatalogDataMissing", 422


@dataclass(frozen=True, slots=True)
class Prepared:
    """Data in the form in which graders read it.

    Attributes:
        digest: ``sha256:`` of its rows.
        sizes: Split to its number of rows.
    """

    digest: str
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Optional:
    """An environment of the catalog whose data does not ship.

    Attributes:
        document: Its manifest; where there is data, with its digest and sizes.
        problem: Why it can't be used; None when it can.
        listed: Whether it is to be listed: there is a directory for its data.
    """

    document: Mapping[str, Any]
    problem: str | None = None
    listed: bool = True


def found(optional: list[dict[str, Any]], source: Path | None, root: Path) -> list[Optional]:
    """Return the environments whose data does not ship, with what the operator has of it.

    Args:
        optional: Their manifests, as they ship.
        source: The operator's directory; None where there is none.
        root: Where environments' files are kept.
    """
    if source is None:
        problem = "The server has no catalog_data any more. Set it, then start the server again."
        return [Optional(document, problem, listed=False) for document in optional]
    return [_with_data(document, source, root) for document in optional]


def _with_data(document: dict[str, Any], source: Path, root: Path) -> Optional:
    try:
        made = prepare_gsm8k(source, root)
    except CatalogDataMissing as error:
        return Optional(document, f"{error.message}. {error.fix}")
    filled = deepcopy(document)
    filled["spec"]["package"]["catalog"]["data"] = made.digest
    filled["spec"]["splits"] = {split: {"size": size} for split, size in made.sizes.items()}
    return Optional(filled)


def prepare_gsm8k(source: Path, root: Path) -> Prepared:
    """Read GSM8K's two splits below ``source/gsm8k`` and write them for graders, unless that was done before.

    Raises:
        CatalogDataMissing: When a split is missing, can't be read, or has a row that is none of GSM8K.
    """
    lines = {split: [_line(*row) for row in _rows(source / "gsm8k", split)] for split in SPLITS}
    content = hashlib.sha256()
    for split in SPLITS:
        content.update(f"{split} {len(lines[split])}\n{''.join(lines[split])}".encode())
    digest = f"sha256:{content.hexdigest()}"
    target = catalog_data_directory(root, digest)
    if not target.is_dir():
        _write(target, lines)
    return Prepared(digest, {split: len(lines[split]) for split in SPLITS})


def _write(target: Path, lines: Mapping[str, list[str]]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=target.parent))
    try:
        for split in SPLITS:
            file = staging / FILE_NAME.format(split=split)
            file.write_text("".join(lines[split]), encoding="utf-8")
            file.chmod(0o644)
        staging.chmod(0o755)
        staging.rename(target)
        sync_directory(target.parent)
    except OSError:
        if not target.is_dir():  # another server may have written it meanwhile
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _line(place: str, number: int, row: Mapping[str, Any]) -> str:
    question, answer = row.get("question"), row.get("answer")
    found = _ANSWER.search(answer) if isinstance(answer, str) else None
    if not isinstance(question, str) or not question.strip() or found is None:
        raise CatalogDataMissing(
            f"row {number} of {place} is none of GSM8K: it has no question, or no answer that ends in '#### NUMBER'",
            fix="Use the data set's own files, config main.",
        )
    kept = {"row": number, "question": question, "answer": found[1].replace(",", "")}
    return json.dumps(kept, ensure_ascii=False) + "\n"


def _rows(directory: Path, split: str) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    files = next((found for form in _FILES if (found := sorted(directory.glob(form.format(split=split))))), None)
    if files is None:
        raise CatalogDataMissing(
            f"{directory} has no {split}.jsonl and no {split}.parquet",
            fix="Put GSM8K's files there (openai/gsm8k, config main), then start the server again.",
        )
    number = 0
    for file in files:
        try:
            rows = _of_parquet(file) if file.suffix == ".parquet" else _of_jsonl(file)
        except (OSError, ValueError) as error:
            raise CatalogDataMissing(f"{file} can't be read: {error}", fix="Fetch it again.") from error
        for row in rows:
            yield str(file), number, row
            number += 1


def _of_jsonl(file: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a line is no object")
    return rows


def _of_parquet(file: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet  # late, and not part of what a server needs
    except ImportError:
        raise CatalogDataMissing(
            f"{file} is parquet, which this server can't read",
            fix="pip install pyarrow beside the server, or use GSM8K's jsonl files.",
        ) from None
    try:
        rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    except ArrowException as error:
        raise ValueError(str(error)) from error
    return rows
