"""Carrying out an outcome in one transaction: all of it or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nodus.core.errors import Conflict
from nodus.server.billing.limits import limits_for
from nodus.server.controllers.outcome import NewObject, Outcome, Payment, Update
from nodus.server.store import Fence, events, leases, ledger, objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object


def apply(
    conn: Connection, obj: Object, outcome: Outcome, status: dict[str, Any] | None, fence: Fence, *, last: bool
) -> None:
    """Write what an outcome says, while the lease is held and the object is as it was read.

    Args:
        conn: A write transaction.
        obj: The object the outcome is about, as it was read.
        outcome: What to do.
        status: The status to write now; the outcome's own may have to wait.
        fence: The lease of the pass.
        last: Whether the object needs no further pass; its lease is given back.

    Raises:
        StaleLease: Another server took the object over.
        Conflict: The object or one of its children changed since it was read.
        AlreadyExists: A child's name is taken by an object of somebody else.
        InsufficientCredits: The hold that the outcome depends on is refused.
        BudgetExceeded: Likewise.
    """
    leases.check(conn, fence.key, fence.token)
    if outcome.payment is not None:
        _pay(conn, outcome.payment)
    for child in outcome.create:
        _create(conn, obj, child)
    for update in outcome.update:
        _update(conn, update)
    for gone in outcome.delete:
        objects.delete(conn, gone, "Background")
    for event in outcome.events:
        events.record(conn, obj, event.type, event.reason, event.message)
    if status is not None:
        objects.update_status(conn, obj.uid, status, expect_rv=obj.resource_version)
    if last:
        leases.release(conn, fence.key, fence.token)


def _pay(conn: Connection, payment: Payment) -> None:
    hold = payment.hold
    if hold is not None and payment.spender is not None:
        hold = replace(hold, limits=(*hold.limits, *limits_for(conn, payment.spender)))
    try:
        if payment.settle is not None and hold is not None:
            rolled = ledger.roll(conn, payment.settle, payment.charges, hold)
            if rolled.refused is not None:
                raise rolled.refused  # The hold that is there stays: it pays for the end.
        elif payment.settle is not None:
            ledger.settle(conn, payment.settle, payment.charges)
        elif hold is not None:
            ledger.hold(conn, hold)
    except Conflict as error:
        # Not one that another decision mends: the object is as it was read, and its books are not.
        raise RuntimeError(f"the books say otherwise: {error.message}") from error


def _create(conn: Connection, owner: Object, child: NewObject) -> None:
    there = objects.find(conn, child.kind, owner.project, child.name)
    if there is not None and owner.uid in there.controllers:
        return
    objects.create(
        conn,
        child.kind,
        owner.project,
        child.name,
        child.spec,
        labels=child.labels,
        annotations=child.annotations,
        owner=owner if child.owned else None,
        status=child.status,
    )


def _update(conn: Connection, update: Update) -> None:
    names = ("spec", "labels", "annotations", "finalizers", "status")
    changes = {name: value for name in names if (value := getattr(update, name)) is not None}
    objects.update(conn, update.obj, **changes)
