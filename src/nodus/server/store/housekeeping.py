"""Keeping tables bounded: every kind of row that is not needed for good goes in small batches, now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from nodus.core.errors import NodusError
from nodus.server.store import audit, changes, events, idempotency, keys, leases, logins

if TYPE_CHECKING:
    from nodus.server.store.engine import Store

log = logging.getLogger(__name__)

EVERY_S = 60.0
_MAX_BATCHES = 200


@dataclass(frozen=True, slots=True)
class Retention:
    """How long rows are kept, in seconds."""

    changes_s: float = changes.RETAIN_S
    events_s: float = events.RETAIN_S
    audit_s: float = audit.RETAIN_S

    def pruners(self) -> tuple[Callable[[Connection], int], ...]:
        """Functions of a write transaction that each drop a batch and return how many rows went."""
        return (
            partial(changes.prune, keep_s=self.changes_s), idempotency.prune,
            partial(events.prune, keep_s=self.events_s), leases.prune, logins.prune,
            partial(audit.prune, keep_s=self.audit_s), keys.mark_expired,
        )  # fmt: skip


async def keep_house(store: Store, retention: Retention | None = None, *, every_s: float = EVERY_S) -> None:
    """Prune until cancelled."""
    while True:
        try:
            await prune_once(store, retention)
        except NodusError as error:
            # A full or unreachable database is reported by whoever needs it; pruning simply comes again.
            log.warning("old rows could not be pruned: %s", error.message)
        except Exception:
            # A fault in one round must not end pruning for as long as the server runs.
            log.exception("old rows could not be pruned")
        await asyncio.sleep(every_s)


async def prune_once(store: Store, retention: Retention | None = None) -> int:
    """Drop what is beyond its retention; each batch is a transaction of its own, so that nobody waits long.

    Returns:
        How many rows went.
    """
    total = 0
    for prune in (retention or Retention()).pruners():
        for _ in range(_MAX_BATCHES):
            gone = await store.write(prune)
            total += gone
            if gone == 0:
                break
    return total
