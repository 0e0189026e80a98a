"""Small files that are either there whole or not there at all. Loads no torch."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader, or a start after a power cut, sees the old file or the whole new one.

    Raises:
        OSError: When the file system refuses, for example because it is full; the old file is then still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("w") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def read_json(path: Path) -> Any | None:
    """The JSON value of a file, or None when it is missing or not JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def sync_directory(path: Path) -> None:
    """Make a rename or a new name in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_of(root: Path, *, leave_out: frozenset[str] = frozenset()) -> dict[str, dict[str, Any]]:
    """Every file below ``root``: its relative path to ``{"sha256", "sizeBytes"}``, in name order."""
    found = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        name = path.relative_to(root).as_posix()
        if name not in leave_out:
            found[name] = {"sha256": sha256_of(path), "sizeBytes": path.stat().st_size}
    return found
