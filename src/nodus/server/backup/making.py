"""``nodus admin backup``: a copy of a server's data in one consistent state, while it runs or not."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nodus._version import __version__
from nodus.core.clock import SystemClock, rfc3339
from nodus.core.errors import NotFound
from nodus.server.backup import manifest
from nodus.server.backup.files import copy_hashed, copy_tree, sha256_of
from nodus.server.backup.manifest import BackupRefused, Manifest
from nodus.server.bootstrap import KEY_FILE
from nodus.server.controllers.service import NODE_FILE
from nodus.server.files import sync_directory
from nodus.server.settings import SETTINGS_FILE, Settings, SettingsError
from nodus.server.store import copying, migrations
from nodus.server.store.blobs import BlobStore

PLAIN_FILES = (KEY_FILE, SETTINGS_FILE, NODE_FILE)
STATE = ("jobs", "sandboxes")
"""Directories of the data directory that are copied as they are: checkpoints and workspaces."""
BLOBS = "blobs"
_TRIES = 3


@dataclass(slots=True)
class Made:
    """A backup that is finished."""

    manifest: Manifest
    new_blobs: int = 0
    """Blobs that were copied this time."""
    new_bytes: int = 0
    state_bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    """Blobs that the server itself has lost, or whose content is no longer theirs."""


def make(data_dir: Path, directory: Path, *, state: bool = True, on_blob: Callable[[int], None] | None = None) -> Made:
    """Make a backup of a server's data; its server goes on meanwhile.

    The database is copied first, in one state; blobs are written before their rows and not swept meanwhile, so that
    every blob of that state is there to be copied.

    Args:
        data_dir: the server's.
        directory: where the backup goes: a new directory, or that of an earlier backup, which this one replaces.
        state: whether to copy checkpoints, workspaces of Sandboxes and logs too, each as it is when its turn comes.
        on_blob: is told of the size in bytes of each blob that is done.

    Raises:
        BackupRefused: there is no server's data, it can't be read, the directory holds something else or is full, or
            another backup runs.
    """
    settings = _settings(data_dir)
    data_dir = settings.data_dir
    directory = directory.expanduser().absolute()
    with manifest.refusals(directory), BlobStore(data_dir / BLOBS).kept() as mine:
        _prepare(data_dir, directory)
        if not mine:
            raise BackupRefused(f"another backup of {data_dir} runs", fix="Try again when it has ended.")
        return _make(settings, directory, state, on_blob or _unnoticed)


def _settings(data_dir: Path) -> Settings:
    if not (data_dir / KEY_FILE).is_file():
        raise BackupRefused(f"there is no {data_dir / KEY_FILE}", fix="Say where the server's data is with --data-dir.")
    try:
        return Settings.load({"data_dir": data_dir})
    except SettingsError as error:
        raise BackupRefused(str(error)) from error


def _prepare(data_dir: Path, directory: Path) -> None:
    if directory.resolve().is_relative_to(data_dir.resolve()):
        raise BackupRefused(f"{directory} is in the data directory itself", fix="Name a place on another disk.")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    ours = (directory / manifest.MARK).exists()
    if not ours and any(directory.iterdir()):
        raise BackupRefused(f"{directory} holds other files", fix="Name a new directory, or one of a backup.")
    (directory / manifest.MARK).touch(mode=0o600)
    (directory / BLOBS).mkdir(exist_ok=True, mode=0o700)


def _make(settings: Settings, directory: Path, state: bool, on_blob: Callable[[int], None]) -> Made:
    number = secrets.token_hex(4)
    database = directory / f"database-{number}.sqlite"
    _snapshot_with_keys(settings, directory, database)
    digests = dict(copying.blobs_of(database))
    made = Made(
        Manifest(
            manifest.FORMAT, __version__, migrations.HEAD, rfc3339(SystemClock().now()), database.name,
            sha256_of(database), f"state-{number}" if state else "", len(digests), sum(digests.values()),
        )
    )  # fmt: skip
    _copy_blobs(BlobStore(settings.data_dir / BLOBS), directory / BLOBS, digests, made, on_blob)
    if state:
        made.state_bytes = _copy_state(settings.data_dir, directory / made.manifest.state)
    sync_directory(directory)
    manifest.write(directory, made.manifest)
    _drop_others(directory, made.manifest, digests.keys())
    return made


def _snapshot_with_keys(settings: Settings, directory: Path, database: Path) -> None:
    """Copy the database with the key file that opens it."""
    for _ in range(_TRIES):
        before = (settings.data_dir / KEY_FILE).read_bytes()
        copying.snapshot(settings.store_url, database)
        for name in _plain_files(settings):
            with contextlib.suppress(FileNotFoundError):
                copy_hashed(settings.data_dir / name, database.with_suffix(f".{name}"))
        if database.with_suffix(f".{KEY_FILE}").read_bytes() == before:
            return
        database.unlink()
    raise BackupRefused("the master keys are being changed", fix="Try again when `nodus admin rotate-keys` has ended.")


def _plain_files(settings: Settings) -> list[str]:
    book = settings.pricebook
    return [*PLAIN_FILES, *([book.name] if book is not None and book.parent == settings.data_dir else [])]


def _copy_blobs(
    blobs: BlobStore, target: Path, digests: dict[str, int], made: Made, on_blob: Callable[[int], None]
) -> None:
    touched: set[Path] = set()
    for digest, size in digests.items():
        place = target / digest[:2] / digest
        if not (place.is_file() and place.stat().st_size == size):
            place.parent.mkdir(exist_ok=True, mode=0o700)
            try:
                if copy_hashed(blobs.path(digest), place) != digest:
                    place.unlink()
                    made.damaged.append(digest)
                    continue
            except (FileNotFoundError, NotFound):
                made.damaged.append(digest)
                continue
            touched.add(place.parent)
            made.new_blobs += 1
            made.new_bytes += size
        on_blob(size)
    for directory in (*touched, target):
        sync_directory(directory)


def _copy_state(data_dir: Path, target: Path) -> int:
    target.mkdir(mode=0o700)
    size = sum(copy_tree(data_dir / name, target / name) for name in STATE)
    for logs in sorted(_attempt_logs(data_dir / "attempts")):
        size += copy_tree(logs, target / logs.relative_to(data_dir))
    return size


def _attempt_logs(attempts: Path) -> Iterator[Path]:
    if attempts.is_dir():
        yield from (path / "log" for path in attempts.iterdir() if (path / "log").is_dir())


def _drop_others(directory: Path, kept: Manifest, wanted: Collection[str]) -> None:
    """Remove what earlier backups of the directory had and this one lacks."""
    for path in directory.iterdir():
        if path.name.startswith("database-") and not path.name.startswith(kept.database.removesuffix(".sqlite") + "."):
            path.unlink()
        elif path.name.startswith("state-") and path.name != kept.state:
            shutil.rmtree(path)
    for path in (directory / BLOBS).glob("*/*"):
        if path.name not in wanted:
            os.unlink(path)


def _unnoticed(size: int) -> None:
    """Nobody watches."""
