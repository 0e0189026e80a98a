"""``nodus admin restore``: an empty data directory becomes that of a backup."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nodus.core.clock import SystemClock
from nodus.server import datadir
from nodus.server.backup import manifest
from nodus.server.backup.files import copy_hashed, copy_tree
from nodus.server.backup.making import BLOBS
from nodus.server.backup.manifest import BackupRefused, Manifest
from nodus.server.bootstrap import RESTORING_FILE
from nodus.server.files import replace_file, sync_directory
from nodus.server.settings import SETTINGS_FILE, Settings, SettingsError
from nodus.server.store import Store, audit, copying
from nodus.server.store.blobs import BlobStore

_ACTOR = audit.Actor("operator", "nodus admin")
_MAY_BE_THERE = frozenset({datadir.LOCK_FILE, SETTINGS_FILE})


@dataclass(slots=True)
class Restored:
    """What was put back."""

    manifest: Manifest
    settings: Settings
    damaged: list[str] = field(default_factory=list)
    """Blobs that the backup lacks, or whose content is no longer theirs."""


def restore(directory: Path, data_dir: Path) -> Restored:
    """Put a backup back into an empty data directory, and into its database.

    Killed, it is called again and begins anew; until it has ended, no server starts on the directory.

    Args:
        directory: of the backup.
        data_dir: new or empty; a ``nodus.toml`` in it is kept and may name an empty PostgreSQL database.

    Raises:
        BackupRefused: there is no whole backup, the directory or database is in use, or one can't be written.
    """
    found = manifest.read(directory)
    database = directory / found.database
    data_dir = data_dir.expanduser().absolute()
    with manifest.refusals(data_dir), _locked(data_dir):
        _make_room(data_dir, directory)
        draft = _checked_copy(database, data_dir, found)
        settings = _restore_files(directory, data_dir, found)
        done = Restored(found, settings)
        _restore_blobs(directory / BLOBS, BlobStore(data_dir / BLOBS), draft, done)
        _restore_database(draft, found, settings)
        (data_dir / RESTORING_FILE).unlink()
        sync_directory(data_dir)
        return done


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    try:
        lock = datadir.DataDirLock.acquire(data_dir)
    except datadir.DataDirError as error:
        raise BackupRefused(str(error)) from error
    try:
        yield
    finally:
        lock.release()


def _make_room(data_dir: Path, directory: Path) -> None:
    """Mark the directory, and remove what a restore that was killed has left."""
    begun = (data_dir / RESTORING_FILE).exists()
    others = sorted(path.name for path in data_dir.iterdir() if path.name not in _MAY_BE_THERE)
    if others and not begun:
        raise BackupRefused(
            f"{data_dir} is not empty: it has {', '.join(others[:5])}",
            fix="Restore into a new directory with --data-dir, or move this one away.",
        )
    replace_file(data_dir / RESTORING_FILE, f"{directory.absolute()}\n")
    for name in others:
        path = data_dir / name
        if name != RESTORING_FILE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _checked_copy(database: Path, data_dir: Path, found: Manifest) -> Path:
    draft = data_dir / ".restored.sqlite"
    try:
        sha256 = copy_hashed(database, draft)
    except FileNotFoundError as error:
        raise BackupRefused(f"there is no {database}", fix="Use another backup.") from error
    if sha256 != found.database_sha256:
        raise BackupRefused(f"{database} is not as it was written", fix="Use another backup.")
    copying.check_file(draft)
    return draft


def _restore_files(directory: Path, data_dir: Path, found: Manifest) -> Settings:
    prefix = found.database.removesuffix("sqlite")
    for source in directory.glob(f"{prefix}*"):
        name = source.name.removeprefix(prefix)
        if name != "sqlite" and not (data_dir / name).exists():
            copy_hashed(source, data_dir / name)
    if found.state:
        copy_tree(directory / found.state, data_dir)
    try:
        settings = Settings.load({"data_dir": data_dir})
    except SettingsError as error:
        raise BackupRefused(str(error), fix=f"Put a {SETTINGS_FILE} that fits into {data_dir} first.") from error
    if not copying.is_empty(settings.store_url):
        raise BackupRefused(
            "the database that the settings name is not empty",
            fix="Name another one in NODUS_SERVER_DATABASE_URL; after a restore that was killed, make this one anew.",
        )
    return settings


def _restore_blobs(source: Path, blobs: BlobStore, database: Path, done: Restored) -> None:
    blobs.make_root()
    made: set[Path] = set()
    for digest, _ in copying.blobs_of(database):
        target = blobs.path(digest)
        target.parent.mkdir(exist_ok=True, mode=0o700)
        try:
            if copy_hashed(source / digest[:2] / digest, target) != digest:
                target.unlink()
                done.damaged.append(digest)
        except FileNotFoundError:
            done.damaged.append(digest)
        made.add(target.parent)
    for path in (*made, blobs.root):
        sync_directory(path)


def _restore_database(draft: Path, found: Manifest, settings: Settings) -> None:
    """Bring the database up to this version's schema and to where the settings say."""
    place = copying.sqlite_file(settings.store_url)
    if place is not None:
        os.replace(draft, place)
    else:
        with contextlib.closing(Store.open(f"sqlite:///{draft}", SystemClock(), data_dir=settings.data_dir)):
            pass  # opening migrates it
        copying.load(draft, settings.store_url)
        for path in settings.data_dir.glob(f"{draft.name}*"):
            path.unlink()
    store = Store.open(settings.store_url, SystemClock(), data_dir=settings.data_dir, org_name=settings.org_name)
    with contextlib.closing(store):
        store.write_sync(copying.begin_anew)
        store.write_sync(audit.record, _ACTOR, "restore", audit.Target("Backup", found.made))
