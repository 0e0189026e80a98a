"""What can be wrong with the database, each as one clear line, and the translation of drivers' errors."""

from __future__ import annotations

import errno
from pathlib import Path

from sqlalchemy.exc import DBAPIError, ProgrammingError, SQLAlchemyError

from nodus.core.errors import StoreError


class StoreCorrupt(StoreError):
    """The database file is damaged or isn't one; nothing was changed."""

    retryable = False


class StoreFull(StoreError):
    """The disk is full; the transaction was rolled back."""


class StoreLocked(StoreError):
    """Another process holds the database for longer than the store waits."""


class StoreUnreachable(StoreError):
    """The database can't be opened or the connection was lost."""


class StoreClosed(StoreError):
    """The store was closed; no transaction runs any more."""


class StoreTooNew(StoreError):
    """A newer version of Nodus made the database."""

    retryable = False


# SQLSTATEs of transactions that lost a race and succeed when run again: serialization failure, deadlock, lock timeout.
_RETRY_SQLSTATES = frozenset({"40001", "40P01", "55P03"})
_CORRUPT_SQLSTATES = frozenset({"XX001", "XX002"})
_FULL_SQLSTATES = frozenset({"53100"})
_LOST_SQLSTATES = frozenset({"57P01", "57P02", "57P03", "53300"})


def is_retryable(error: BaseException) -> bool:
    """Tell whether running the same transaction again is likely to succeed."""
    if not isinstance(error, DBAPIError):
        return False
    return _sqlstate(error) in _RETRY_SQLSTATES


def is_lost(error: BaseException) -> bool:
    """Tell whether the connection is gone, so that another one must be opened."""
    if not isinstance(error, DBAPIError):
        return False
    return error.connection_invalidated or _sqlstate(error) in _LOST_SQLSTATES


def is_bug(error: BaseException) -> bool:
    """Tell whether the statement itself is wrong; SQLite reports that as it reports a database out of order."""
    text = str(getattr(error, "orig", None) or "")
    return isinstance(error, ProgrammingError) or "syntax error" in text or text.startswith("no such ")


def translate(error: SQLAlchemyError, where: str) -> StoreError:
    """Return the store's own error for a driver's.

    Args:
        error: what SQLAlchemy raised.
        where: the database as people know it: a path, or a URL without its password.
    """
    original = getattr(error, "orig", None) or error
    text = str(original).strip().splitlines()[0] if str(original).strip() else type(original).__name__
    low, state = text.lower(), _sqlstate(error)
    if state in _FULL_SQLSTATES or "disk is full" in low:
        return StoreFull(f"no space left for the database {where}", fix="Free some disk space; nothing was lost.")
    if state in _CORRUPT_SQLSTATES or "malformed" in low or "not a database" in low:
        fix = "Restore the file from a backup, or move it away to start afresh."
        return StoreCorrupt(f"the database {where} is damaged ({text})", fix=fix)
    if "database is locked" in low or "database table is locked" in low or state == "55P03":
        fix = "Stop the other process that uses it, then try again."
        return StoreLocked(f"the database {where} is locked by another process", fix=fix)
    if state in {"40001", "40P01"}:
        return StoreLocked(f"the transaction kept losing to others on {where} ({text})", fix="Try again.")
    if "readonly" in low or "read-only" in low:
        return StoreUnreachable(f"the database {where} can't be written ({text})", fix="Check the file's permissions.")
    fix = "Check that the database is there, running, and open to this user."
    return StoreUnreachable(f"the database {where} can't be used: {text}", fix=fix)


def disk_error(error: OSError, root: Path) -> StoreFull | StoreUnreachable:
    """Return the store's own error for a file that could not be written below ``root``."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"no space left in {root}", fix="Free some disk space; nothing was lost.")
    return StoreUnreachable(f"{root} can't be written: {error.strerror}", fix="Check the directory.")


def _sqlstate(error: BaseException) -> str | None:
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    return state if isinstance(state, str) else None
