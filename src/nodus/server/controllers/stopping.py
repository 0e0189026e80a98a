"""Why an attempt is stopped, and what follows from it: one list for all controllers. Pure.

A stop for one of :data:`PAUSES` is no end: the run goes on later with what it kept, and its command is asked for a
checkpoint before it is told to end. Every other stop tells it to end at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodus.server.billing.refusals import UNFUNDED
from nodus.server.controllers.outcome import Update

if TYPE_CHECKING:
    from nodus.server.store.objects import Object

SUSPENDED = "Suspended"
SIBLING_FAILED = "JobFailed"
"""Why attempts are stopped whose Job fails with another index."""
LOW_DISK = "LowDisk"
"""The disk is almost full: what runs may write is stopped before that fails everybody."""
PAUSES = UNFUNDED | {SUSPENDED, LOW_DISK}
"""Reasons after which the run goes on later."""
STOP_REASONS = PAUSES | {"Cancelled", "Deleted", "Stopped", "Idle", "MaxLifetime", SIBLING_FAILED}
"""Reasons of a stop that is no failure of the command."""
CHECKPOINT_S = 45.0
"""How long a command may take to save a checkpoint before a pause. With the grace period after it, less than a minute:
that is what is kept in hand for it of a run's money."""


def stop(attempt: Object, reason: str) -> Update | None:
    """Return the update that stops an attempt, or None when it is being stopped already.

    A pause under way, which may wait for a checkpoint, gives way to any other stop.

    Args:
        attempt: A live attempt.
        reason: Why; one of :data:`PAUSES` has a checkpoint saved first.
    """
    spec = attempt.spec
    if spec.get("state") == "Stopped" and (spec.get("stopReason") not in PAUSES or reason in PAUSES):
        return None
    return Update(attempt, spec={**spec, "state": "Stopped", "stopReason": reason})


def checkpoint_s(reason: str) -> float:
    """Return how many seconds a stop for a reason waits for a checkpoint."""
    return CHECKPOINT_S if reason in PAUSES else 0.0
