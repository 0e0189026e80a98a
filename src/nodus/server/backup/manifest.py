"""What a backup's directory holds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from nodus.core.errors import NodusError, StoreError
from nodus.server.files import replace_file
from nodus.server.store.errors import disk_error

FORMAT = 1
MANIFEST = "backup.json"
MARK = "nodus-backup"
"""An empty file: this directory is ours, also while its first backup is not finished."""


class BackupRefused(NodusError):
    """A backup can't be made or restored so; what was there is as it was."""

    reason, status = "BackupRefused", 409


@contextlib.contextmanager
def refusals(where: Path) -> Iterator[None]:
    """Turn what can go wrong with a disk or a database into one refusal.

    Raises:
        BackupRefused: something did.
    """
    try:
        yield
    except StoreError as error:
        raise BackupRefused(error.message, fix=error.fix) from error
    except OSError as error:
        full = disk_error(error, where)
        raise BackupRefused(full.message, fix=full.fix) from error


@dataclass(frozen=True, slots=True)
class Manifest:
    """One finished backup."""

    format: int
    nodus: str
    """Version that made it."""
    schema: str
    """Revision of the database's schema."""
    made: str
    """RFC 3339."""
    database: str
    """Name of the SQLite file."""
    database_sha256: str
    state: str
    """Name of the directory of checkpoints, workspaces and logs; empty without them."""
    blobs: int
    """How many blobs belong to it."""
    blob_bytes: int


def read(directory: Path) -> Manifest:
    """Return the finished backup of a directory.

    Raises:
        BackupRefused: there is none, or a newer version of Nodus made it.
    """
    path = directory / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] > FORMAT:
            raise BackupRefused(f"a newer version of Nodus ({found['nodus']}) made {directory}", fix="Use that one.")
        return Manifest(**{name: found[name] for name in Manifest.__dataclass_fields__})
    except FileNotFoundError as error:
        why = "its first backup was not finished" if (directory / MARK).exists() else f"it has no {MANIFEST}"
        raise BackupRefused(
            f"{directory} holds no backup: {why}", fix="Name a directory of `nodus admin backup`."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackupRefused(f"{path} can't be read: {error}", fix="Use another backup.") from error


def write(directory: Path, manifest: Manifest) -> None:
    """Make a backup the one of its directory, in one step.

    Raises:
        OSError: the disk is full.
    """
    replace_file(directory / MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")
