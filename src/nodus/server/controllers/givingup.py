"""When a controller stops trying: an object whose passes keep failing ends, instead of failing for ever.

A pass that fails is tried again with growing pauses. After :data:`MOST_FAILURES` in a row over at least
:data:`LEAST_S` the object ends with what went wrong, and what it held is given back. Troubles of the database or of a
full disk don't count: they are nobody's fault here, and pass. The count is a row, so it outlives the server.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nodus.core.clock import rfc3339
from nodus.core.durations import format_age
from nodus.core.errors import NodusError, StoreError
from nodus.server.controllers.outcome import NOTHING, Action, EventNote, Outcome
from nodus.server.store import failures, objects
from nodus.server.store.failures import Failures

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.core.kinds import Kind
    from nodus.server.store import Store
    from nodus.server.store.objects import Object

log = logging.getLogger(__name__)

MOST_FAILURES = 10
LEAST_S = 300.0
"""An object is given up after so many failed passes in a row, and not before so many seconds since the first."""
START_FAILED, INTERNAL_ERROR = "StartFailed", "InternalError"
RECONCILED = "Reconciled"
"""The condition of kinds without a phase ``Failed``."""
FIX = "The server's log has the whole error (`server.log` in its data directory). Mend the cause, then create it again."
_NOT_STARTED = (None, "Pending", "Queued", "Provisioning", "Starting")
_SHOWN_CHARS = 500


@dataclass(frozen=True, slots=True)
class Trouble:
    """What kept failing."""

    failures: Failures
    error: Exception
    """The newest one."""
    action: Action | None = None
    """What was to be done; None where the pass failed before that."""

    def message(self, now: datetime) -> str:
        """Say what failed, how often and how."""
        what = f"the server's step {self.action.name!r}" if self.action else "the server's work on it"
        for_s = (now - self.failures.since).total_seconds()
        return f"{what} failed {self.failures.times} times within {format_age(for_s)}: {_words(self.error)}"


def _words(error: Exception) -> str:
    if isinstance(error, NodusError):
        return error.message[:_SHOWN_CHARS]
    first = (str(error).splitlines() or [""])[0][:_SHOWN_CHARS]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def counts(error: Exception) -> bool:
    """Tell whether a failed pass counts against its object: what the database or the disk are to blame for doesn't."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return False
    return not isinstance(error, StoreError)


def is_due(failed: Failures, now: datetime) -> bool:
    """Tell whether it is time to give up."""
    return failed.times >= MOST_FAILURES and (now - failed.since).total_seconds() >= LEAST_S


def reason_of(kind: Kind, status: Mapping[str, Any]) -> str:
    """Return ``StartFailed`` for a run that never began, else ``InternalError``."""
    began = status.get("startTime") or (status.get("timings") or {}).get("commandStartedTime")
    not_started = "Running" in kind.phases and status.get("phase") in _NOT_STARTED
    return START_FAILED if not_started and not began else INTERNAL_ERROR


def ended(kind: Kind, obj: Object, trouble: Trouble, now: datetime) -> Outcome:
    """Return the end of an object that is given up: ``Failed``, or a condition for kinds that can't fail. Pure.

    Args:
        kind: Of the object.
        obj: As it is now.
        trouble: What kept failing.
        now: The present.
    """
    reason, message = reason_of(kind, obj.status), trouble.message(now)
    event = EventNote("Warning", reason, message)
    if "Failed" not in kind.phases:
        if _is_noted(obj):
            return NOTHING
        found = {"type": RECONCILED, "status": "False", "reason": reason, "message": f"{message}. {FIX}"}
        noted = {**found, "lastTransitionTime": rfc3339(now)}
        return Outcome(status={**obj.status, "conditions": [*_other_conditions(obj), noted]}, events=(event,))
    status = {**obj.status, "phase": "Failed", "reason": reason, "message": message, "fix": FIX}
    if "completion_time" in kind.status_model.model_fields:
        status["completionTime"] = rfc3339(now)
    return Outcome(status=status, events=(event,))


def is_over(outcome: Outcome) -> bool:
    """Tell whether what was decided ends the trouble; a condition only tells of it."""
    return (outcome.status or {}).get("phase") == "Failed" or bool(outcome.update or outcome.delete)


def _is_noted(obj: Object) -> bool:
    found = obj.status.get("conditions") or []
    return any(one.get("type") == RECONCILED and one.get("status") == "False" for one in found)


def _other_conditions(obj: Object) -> list[dict[str, Any]]:
    return [one for one in obj.status.get("conditions") or [] if one.get("type") != RECONCILED]


def _recover(conn: Connection, uid: str) -> None:
    failures.clear(conn, uid)
    obj = objects.find_by_uid(conn, uid)
    if obj is not None and _is_noted(obj):
        objects.update_status(conn, uid, {**obj.status, "conditions": _other_conditions(obj)})


class Patience:
    """Counts failed passes in a row, by uid; knows without asking the database which objects have any.

    Args:
        store: Where the counts are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failing: set[str] = set()

    def learn(self, uid: str, known: Failures | None) -> None:
        """Take over what is recorded of an object that this server just began to look after."""
        if known is None:
            self._failing.discard(uid)
        else:
            self._failing.add(uid)

    async def failed(self, uid: str, error: Exception) -> Failures | None:
        """Count a failed pass, if it counts; return all in a row, or None where it doesn't or can't be counted."""
        if not counts(error):
            return None
        try:
            noted = await self._store.write(failures.note, uid)
        except StoreError as trouble:
            log.warning("a failed pass over %s could not be counted: %s", uid, trouble.message)
            return None
        self.learn(uid, noted)
        return noted

    async def went_well(self, uid: str) -> None:
        """Forget what failed before."""
        if uid in self._failing:
            await self._store.write(_recover, uid)
            self._failing.discard(uid)

    def forget(self, uid: str) -> None:
        """The object is gone, and its row with it."""
        self._failing.discard(uid)
