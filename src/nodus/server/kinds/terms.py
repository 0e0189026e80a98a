"""On what terms a plan is priced now: the price book, the time, and the limits that it would be paid under."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodus.server.billing.estimates import Terms
from nodus.server.store import limits
from nodus.server.store.context import org_of
from nodus.server.store.limits import CREDITS, Counted

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services


def terms(conn: Connection, services: Services) -> Terms:
    """Return the terms of a plan made in this transaction."""
    return Terms(services.prices, services.clock.now(), (_credits(conn),))


def _credits(conn: Connection) -> Counted:
    org = org_of(conn)
    found = limits.read(conn, CREDITS, org)
    return found or Counted(CREDITS, org, "", "credits", cap=0, held=0, spent=0, covered=0)
