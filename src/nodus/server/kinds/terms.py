"""On what terms a plan is priced now: the price book, the time, and the limits that it would be paid under."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from nodus.core.durations import parse_duration
from nodus.server.billing import budgets
from nodus.server.billing.estimates import Terms
from nodus.server.billing.funding import SECOND_US, Pace
from nodus.server.store import limits
from nodus.server.store.codec import from_us
from nodus.server.store.context import now_us, org_of
from nodus.server.store.limits import CREDITS, Counted, Limit

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.kinds.base import Draft
    from nodus.server.services import Services


def terms(conn: Connection, services: Services, draft: Draft) -> Terms:
    """Return the terms of a plan made in this transaction.

    Args:
        conn: a transaction.
        services: the server's.
        draft: the object that is planned; Budgets count it by its project and labels.
    """
    pace = Pace(round(parse_duration(services.settings.funding_slice) * SECOND_US))
    return Terms(services.prices, services.clock.now(), pace, partial(_limits, conn, draft))


def _limits(conn: Connection, draft: Draft) -> Iterator[Counted]:
    """The credits and Budgets with what they have counted; its own cap is the estimate's affair."""
    now = from_us(now_us(conn))
    yield _counted(conn, Limit(CREDITS, org_of(conn), "credits", cap=0))
    for rule in budgets.rules(conn):
        if rule.counts(draft.project, draft.labels):
            yield _counted(conn, rule.limit(now))


def _counted(conn: Connection, limit: Limit) -> Counted:
    """What a limit has counted; nothing where nothing ever stood under it."""
    found = limits.read(conn, limit.kind, limit.subject, limit.period)
    return found or Counted(limit.kind, limit.subject, limit.period, limit.name, limit.cap, held=0, spent=0, covered=0)
