"""Changing the master key that hashes API keys and encrypts Secrets, while no server runs: ``nodus admin rotate-keys``.

A rotation adds a key to ``keys.json`` and encrypts every Secret anew; API keys are hashed anew when they are next
shown, since only their holders have them. A crash in between does no harm: every key of before is still there, until
:func:`drop_old_keys` takes them away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from nodus.core.clock import SystemClock, parse_rfc3339, rfc3339
from nodus.core.errors import NodusError
from nodus.core.kinds import ATTEMPT
from nodus.server import datadir
from nodus.server.bootstrap import KEY_FILE
from nodus.server.settings import Settings, SettingsError
from nodus.server.signing import KeyringError, Signer
from nodus.server.store import Store, audit, idempotency, keys, objects, secret_values
from nodus.server.store.context import lock_objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

_BATCH = 100
_ACTOR = audit.Actor("operator", "nodus admin")


class RotationRefused(NodusError):
    """The master key can't be changed now; nothing was done."""

    reason, status = "RotationRefused", 409


@dataclass(frozen=True, slots=True)
class Rotated:
    """What a rotation did."""

    version: int
    """Number of the new master key."""
    secrets: int
    """Versions of Secrets that were encrypted anew."""


def rotate(data_dir: Path) -> Rotated:
    """Add a master key, use it from now on, and encrypt every Secret with it.

    Raises:
        RotationRefused: a server runs, or there are no keys to rotate.
        StoreError: the database can't be used; the rotation can be repeated.
    """
    with _opened(data_dir) as (store, signer):
        fresh = signer.rotated()
        fresh.save(data_dir / KEY_FILE, made=rfc3339(SystemClock().now()))
        secrets = _reseal_all(store, fresh)
        store.write_sync(audit.record, _ACTOR, "rotate", audit.Target("MasterKey", str(fresh.current)))
        return Rotated(fresh.current, secrets)


def drop_old_keys(data_dir: Path, confirm: Callable[[list[str]], bool]) -> int:
    """Take the master keys of before away; what they alone open ends.

    Args:
        data_dir: the server's.
        confirm: is given the names of the API keys that end, when there are any, and says whether to go on.

    Returns:
        How many API keys ended.

    Raises:
        RotationRefused: a server runs, there is one key only, an attempt that began before the rotation still runs, or
            ``confirm`` said no.
        StoreError: the database can't be used; it can be repeated.
    """
    path = data_dir / KEY_FILE
    with _opened(data_dir) as (store, signer):
        if len(signer.versions) == 1:
            raise RotationRefused("there is one master key only", fix="Run `nodus admin rotate-keys` first.")
        running = store.read_sync(_begun_before, signer.made)
        if running:
            raise RotationRefused(
                f"attempts that began before the rotation still run: {', '.join(running[:5])}",
                fix="Wait until they have ended; their tokens are signed with the key of before.",
            )
        ending = store.read_sync(_names, signer.current)
        if ending and not confirm(ending):
            raise RotationRefused("nothing was changed")
        _reseal_all(store, signer)
        ended = store.write_sync(_end_keys, signer.current)
        signer.only_current().save(path, made=signer.made)
        return ended


@contextlib.contextmanager
def _opened(data_dir: Path) -> Iterator[tuple[Store, Signer]]:
    """The store and the keys of a server that does not run."""
    path = data_dir / KEY_FILE
    if not path.exists():
        raise RotationRefused(f"there is no {path}", fix="Say where the server's data is with --data-dir.")
    try:
        settings = Settings.load({"data_dir": data_dir})
        lock = datadir.DataDirLock.acquire(data_dir)
    except datadir.Locked as error:
        raise RotationRefused(
            f"the server of {data_dir} runs", fix="Stop it first: `nodus down`; runs go on."
        ) from error
    except (SettingsError, datadir.DataDirError) as error:
        raise RotationRefused(str(error)) from error
    with contextlib.ExitStack() as stack:
        stack.callback(lock.release)
        try:
            signer = Signer.open(path)
        except KeyringError as error:
            raise RotationRefused(str(error)) from error
        store = Store.open(settings.store_url, SystemClock(), data_dir=data_dir, org_name=settings.org_name)
        stack.callback(store.close)
        try:
            yield store, signer
        except KeyringError as error:
            raise RotationRefused(str(error), fix="Restore keys.json from a backup.") from error


def _reseal_all(store: Store, signer: Signer) -> int:
    total = 0
    while done := store.write_sync(_reseal, signer):
        total += done
    return total


def _reseal(conn: Connection, signer: Signer) -> int:
    """Encrypt some values that an older key sealed with the current one."""
    found = secret_values.sealed_otherwise(conn, f"{signer.current}:", _BATCH)
    for uid, version, sealed in found:
        secret_values.replace(conn, uid, version, signer.encrypt(signer.decrypt(sealed, uid), uid))
    return len(found)


def _begun_before(conn: Connection, made: str | None) -> list[str]:
    """Names of attempts that run with a token of an older key; all that run where the key's age isn't known."""
    # The file says it in whole seconds.
    since = parse_rfc3339(made) + timedelta(seconds=1) if made else None
    return [
        attempt.name
        for attempt in objects.list_(conn, ATTEMPT, None).items
        if not ATTEMPT.is_terminal(attempt.status.get("phase")) and (since is None or attempt.created_at <= since)
    ]


def _names(conn: Connection, version: int) -> list[str]:
    return sorted(objects.get_by_uid(conn, uid).name for uid in keys.hashed_before(conn, version))


def _end_keys(conn: Connection, version: int) -> int:
    lock_objects(conn)
    doomed = keys.hashed_before(conn, version)
    for uid in doomed:
        obj = objects.get_by_uid(conn, uid)
        objects.delete(conn, obj)
        audit.record(conn, _ACTOR, "delete", audit.Target(obj.kind, obj.name, uid=obj.uid))
    idempotency.forget_sealed(conn)
    return len(doomed)
