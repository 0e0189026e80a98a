"""Giving disk space back: revisions of Volumes beyond those that are kept, and blobs that nothing names any more.

A blob goes in two steps. Its rows go in a transaction that looks once more at whatever changed since everything was
searched; its file goes later, when no project has a row of it and it has lain untouched. A crash in between leaves a
file without rows, which the next round finds. Nothing is removed while a backup is being made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodus.core.clock import SystemClock
from nodus.core.errors import NodusError, NotFound, StoreError
from nodus.server.grading.builds import BuildStore
from nodus.server.settings import Settings, SettingsError
from nodus.server.store import Store, sweeping
from nodus.server.store.sweeping import DIGEST, Begun

if TYPE_CHECKING:
    from sqlalchemy import Connection

log = logging.getLogger(__name__)

FIRST_S, EVERY_S = 600.0, 3600.0
DAY_S = 24 * 3600.0
MOST_AT_ONCE = 200_000
"""Blobs that are looked for at once, in one reading of everything that may name them."""
_ROWS_AT_ONCE = 1000
_LOOSE_AT_ONCE = 200
_JUST_BUILT_S = 600.0


class SweepRefused(NodusError):
    """Nothing can be swept now."""

    reason, status = "SweepRefused", 409


@dataclass(slots=True)
class Swept:
    """What a round removed."""

    revisions: int = 0
    blobs: int = 0
    """Blobs of which no project has a row any more."""
    files: int = 0
    bytes: int = 0
    """Of the files and builds."""
    builds: int = 0
    """What Environments' packages were built into, and no Image names."""
    busy: bool = False
    """Nothing was done: a backup, or another sweep, is going on."""


async def keep_swept(store: Store, settings: Settings, *, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
    """Sweep every hour until cancelled."""
    await asyncio.sleep(first_s)
    while True:
        try:
            done = await asyncio.to_thread(sweep, store, settings)
            if done.revisions or done.files or done.builds:
                what = (done.revisions, done.files, done.builds, done.bytes)
                log.info("swept %d revisions, %d blobs and %d builds of %d bytes", *what)
        except (NodusError, OSError) as error:
            log.warning("the disk could not be swept: %s", error)
        except Exception:
            # A fault in one round must not end sweeping for as long as the server runs.
            log.exception("the disk could not be swept")
        await asyncio.sleep(every_s)


def sweep(store: Store, settings: Settings, *, keep_s: float | None = None) -> Swept:
    """Remove what is kept no longer. Blocks; called in a thread, or by ``nodus admin sweep``.

    Args:
        store: the server's, or another process's on the same database.
        settings: what is kept.
        keep_s: how long a blob that nothing names stays after its last use; that of the settings when None.

    Raises:
        StoreError: the database failed; what was removed before stays removed.
    """
    keep_s = settings.retain_blobs_days * DAY_S if keep_s is None else keep_s
    done = Swept()
    with store.blobs.kept() as mine:
        if not mine:
            return Swept(busy=True)
        if settings.retain_revisions:
            _sweep_revisions(store, settings, done)
        _sweep_rows(store, settings.data_dir, keep_s, done)
        _sweep_files(store, keep_s, done)
        _sweep_builds(store, BuildStore(settings.data_dir / "builds"), keep_s, done)
    return done


def sweep_data_dir(data_dir: Path, keep_s: float | None = None) -> Swept:
    """Sweep what a server has, whether it runs or not.

    Args:
        data_dir: the server's.
        keep_s: as for :func:`sweep`.

    Raises:
        SweepRefused: there is no server's data, or a backup or another sweep is going on.
    """
    try:
        settings = Settings.load({"data_dir": data_dir})
        if not (data_dir / "keys.json").is_file():
            raise SweepRefused(f"there is no server's data in {data_dir}", fix="Say where it is with --data-dir.")
        store = Store.open(settings.store_url, SystemClock(), data_dir=data_dir, org_name=settings.org_name)
        with contextlib.closing(store):
            done = sweep(store, settings, keep_s=keep_s)
    except (SettingsError, StoreError) as error:
        raise SweepRefused(str(error), fix=getattr(error, "fix", None)) from error
    if done.busy:
        raise SweepRefused("a backup or another sweep is going on", fix="Try again when it has ended.")
    return done


def _sweep_revisions(store: Store, settings: Settings, done: Swept) -> None:
    keep = settings.retain_revisions
    begun = store.read_sync(sweeping.begin)
    many = store.read_sync(sweeping.crowded, keep)
    if not many:
        return
    pinned = store.read_sync(sweeping.pinned)
    for volume in many:
        gone = store.write_sync(sweeping.prune_revisions, volume, keep, pinned, begun)
        done.revisions += len(gone)
        for number in gone:
            shutil.rmtree(settings.data_dir / "volumes" / volume.uid / str(number), ignore_errors=True)


def _sweep_rows(store: Store, data_dir: Path, keep_s: float, done: Swept) -> None:
    while True:
        begun: Begun = store.read_sync(sweeping.begin)
        candidates = set(store.read_sync(sweeping.unused, keep_s, MOST_AT_ONCE))
        named, lists = store.read_sync(sweeping.named, candidates) if candidates else (set(), set())
        named |= candidates.intersection(_in_lists(store, lists))
        named |= candidates.intersection(_in_uploads(data_dir / "uploads"))
        gone = _in_batches(store, sorted(candidates - named), sweeping.forget, keep_s, begun)
        done.blobs += sum(map(len, gone))
        _in_batches(store, sorted(named), sweeping.note_named)
        if len(candidates) < MOST_AT_ONCE:
            return


def _in_batches(store: Store, digests: list[str], write: Callable[..., Any], *rest: Any) -> list[Any]:
    """Give a function of a write transaction so many at a time that nobody waits long."""
    parts = [digests[start : start + _ROWS_AT_ONCE] for start in range(0, len(digests), _ROWS_AT_ONCE)]
    return [store.write_sync(write, part, *rest) for part in parts]


def _in_lists(store: Store, lists: Collection[str]) -> Iterator[str]:
    """Yield the digests that whole lists of outputs name, which are blobs themselves."""
    for digest in lists:
        try:
            yield from DIGEST.findall(zlib.decompress(store.blobs.read_bytes(digest)).decode())
        except NotFound:
            continue  # lost already: so are the names in it


def _in_uploads(uploads: Path) -> Iterator[str]:
    """Yield the digests that uploads to Volumes name which are not committed yet."""
    for journal in uploads.glob("up_*"):
        try:
            yield from DIGEST.findall(journal.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            continue  # committed meanwhile: its revision is younger than the round


def _sweep_files(store: Store, keep_s: float, done: Swept) -> None:
    for part in store.blobs.old_files(keep_s, _LOOSE_AT_ONCE):
        removed = store.write_sync(_remove_loose, store.blobs.discard, part, keep_s)
        done.files += len(removed)
        done.bytes += sum(removed)


def _sweep_builds(store: Store, builds: BuildStore, keep_s: float, done: Swept) -> None:
    """Remove builds that nothing names. One that was just made or used again may be named in a moment."""
    candidates = set(builds.unused(max(keep_s, _JUST_BUILT_S)))
    named = store.read_sync(sweeping.named, candidates)[0] if candidates else set()
    done.builds += len(candidates - named)
    done.bytes += builds.remove(candidates - named)


def _remove_loose(
    conn: Connection, discard: Callable[[str, float], int | None], part: list[str], keep_s: float
) -> list[int]:
    """Remove the files of which there are no rows, while nobody can add one."""
    sizes = [discard(digest, keep_s) for digest in sweeping.without_rows(conn, part)]
    return [size for size in sizes if size is not None]
