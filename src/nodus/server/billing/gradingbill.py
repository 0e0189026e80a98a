"""What grading costs: a hold before a batch, the time that its graders worked after it.

Held is what the batch can take at most, or what a limit leaves; were that less than one completion's, nothing is
graded. What a batch takes beyond its hold is covered by Nodus: no cap is exceeded.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nodus.core.kinds import ATTEMPT
from nodus.server.billing.funding import SECOND_US
from nodus.server.billing.limits import limits_for
from nodus.server.billing.metering import amount_of
from nodus.server.billing.pricebook import PriceBook
from nodus.server.store import holds, ledger, objects
from nodus.server.store.context import now_us
from nodus.server.store.ledger import Charge, HoldRequest, Owner

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.grading.verdicts import Answer
    from nodus.server.store.holds import Hold
    from nodus.server.store.objects import Object

KIND = "Grading"
"""Of a hold's owner: a batch, which ends with the process that grades it."""
ITEM = "grading"
_TRIES = 2
_EXPIRES_US = 3600 * SECOND_US


def hold(
    conn: Connection, run: Object, attempt: str, keys: Sequence[object], timeout_s: float, prices: PriceBook
) -> str | None:
    """Hold what a batch may cost; return the hold's reference, or None where grading costs nothing.

    Args:
        conn: a write transaction.
        run: the TrainingJob whose bill it is on.
        attempt: name of the attempt that submits.
        keys: what tells the batch's completions from all others of the attempt.
        timeout_s: what a completion may take.
        prices: in force.

    Raises:
        InsufficientCredits: not even one completion is covered.
        BudgetExceeded: likewise, by a Budget or by the run's cap.
    """
    if prices.grading == 0:
        return None
    one_us = round(timeout_s * SECOND_US)
    most_us = one_us * _TRIES * len(keys)
    request = HoldRequest(
        reference=_reference(conn, run, attempt, keys),
        amount=amount_of(prices.grading, most_us),
        minimum=amount_of(prices.grading, one_us),
        owner=Owner(KIND, run.uid, run.name, run.project or ""),
        object=run.uid,
        limits=limits_for(conn, run),
        reason=f"grading {len(keys)} completions",
        pricebook=prices.version,
        expires_us=now_us(conn) + most_us + _EXPIRES_US,
    )
    return ledger.hold(conn, request).reference


def _reference(conn: Connection, run: Object, attempt: str, keys: Sequence[object]) -> str:
    """Return the batch's reference: that of a hold which is open from before the server was killed, else a new one."""
    batch = hashlib.sha256(repr(list(keys)).encode()).hexdigest()[:32]
    for number in itertools.count():
        reference = f"grading/{run.uid}/{attempt}/{batch}/{number}"
        before = holds.find(conn, reference)
        if before is None or before.state == "Held":
            return reference
    raise AssertionError("numbers do not end")


def settle(conn: Connection, reference: str | None, answers: Sequence[Answer], prices: PriceBook) -> None:
    """Charge a batch for the time that its graders worked on it; what Nodus failed to grade is covered.

    Args:
        conn: the transaction that records the verdicts.
        reference: from :func:`hold`.
        answers: of the batch: verdicts, or replies of an environment.
        prices: in force.
    """
    if reference is None:
        return
    paid_us = sum(_worked_us(answer) for answer in answers if answer.outcome != "Error")
    covered_us = sum(_worked_us(answer) for answer in answers if answer.outcome == "Error")
    charge = Charge(
        ITEM,
        amount_of(prices.grading, paid_us),
        covered=amount_of(prices.grading, covered_us),
        quantity=paid_us,
        covered_quantity=covered_us,
        unit="us",
    )
    found = holds.find(conn, reference)
    if found is not None and found.state == "Released":
        return  # Its attempt ended meanwhile, and with it what the hold was for: the work is Nodus's.
    ledger.settle(conn, reference, [charge])


def release_left(conn: Connection) -> int:
    """Release the holds of batches whose process or attempt ended before them; return how many.

    Those of an attempt that ended would be in the way of the next one, under the same cap.
    """
    ended = [held for held in holds.open_holds(conn, kind=KIND) if _is_over(conn, held)]
    found = {held.reference for held in [*ended, *ledger.expired(conn)] if held.owner.kind == KIND}
    for reference in sorted(found):
        ledger.release(conn, reference)
    return len(found)


def _is_over(conn: Connection, held: Hold) -> bool:
    attempt = objects.find(conn, ATTEMPT, held.owner.project, held.reference.split("/")[2])
    return attempt is None or ATTEMPT.is_terminal(attempt.status.get("phase"))


def _worked_us(answer: Answer) -> int:
    return max(0, round(float(answer.evidence.get("durationMs") or 0) * 1000))
