"""Under which limits an object spends.

Besides the org's credits, under which every hold stands, those are: the object's own cap, the caps of the objects that
made it, and every Budget that counts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodus.core.kinds import KINDS
from nodus.core.money import MAX_NANOS, parse_usd
from nodus.server.billing import budgets
from nodus.server.store import objects
from nodus.server.store.codec import from_us
from nodus.server.store.context import now_us
from nodus.server.store.limits import Limit

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.object import Object

_BILLED = frozenset(name for name, kind in KINDS.items() if "cost" in kind.status_model.model_fields)
"""Kinds whose objects have a bill of their own."""
_MOST_OWNERS = 8


def limits_for(conn: Connection, obj: Object) -> list[Limit]:
    """Return the limits of a hold for an object, most specific first; the credits, which every hold has, left out.

    Call it in the transaction that takes the hold: what Budgets there are and how much they allow is read here. An
    object counts with its own labels and those of the objects that made it, whose values win: a Job has few labels of
    its own, and what it spends is its TrainingJob's.

    Args:
        conn: a transaction.
        obj: what the money is for, such as a Job; a TrainingJob that made it counts too.
    """
    chain = [obj, *makers(conn, obj)]
    labels: dict[str, str] = {}
    for one in chain:
        labels |= one.labels
    now = from_us(now_us(conn))
    counting = [rule.limit(now) for rule in budgets.rules(conn) if rule.counts(obj.project, labels)]
    return [*(own_limit(one) for one in chain if one.kind in _BILLED), *counting]


def own_limit(obj: Object) -> Limit:
    """Return the limit of an object's own cap, or one that only counts where it has none."""
    text = obj.spec.get("maxCostUSD")
    cap = None if text is None else min(parse_usd(text), MAX_NANOS)
    return Limit("Object", obj.uid, f"{KINDS[obj.kind].singular}/{obj.name}", cap)


def makers(conn: Connection, obj: Object) -> list[Object]:
    """Return the objects that made an object, from the one right above it."""
    found: list[Object] = []
    while len(found) < _MOST_OWNERS:
        above = (objects.find_by_uid(conn, uid) for uid in sorted((found[-1] if found else obj).controllers))
        owner = next((one for one in above if one is not None), None)
        if owner is None or owner.uid in {obj.uid, *(one.uid for one in found)}:
            break
        found.append(owner)
    return found
