"""When a running thing needs its next money, how much, and when to stop it for want of it. Pure.

A run is funded in slices: a hold pays for the next while, and before it ends it is settled for what was used and the
next one is taken. So a run holds little, and one that is paused, killed or forgotten owes no more than it held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nodus.server.billing.metering import amount_of, time_for

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How far ahead runs are funded, in microseconds. Everything follows from the length of a slice."""

    slice_us: int = 600 * SECOND_US
    """What a slice pays for, where there is enough."""

    @property
    def renew_us(self) -> int:
        """The next slice is taken when less than this is left: a server may be away for so long and no run notices."""
        return self.slice_us // 2

    @property
    def reserve_us(self) -> int:
        """Left when a run without further money is asked for a checkpoint and stopped."""
        return self.slice_us // 10

    @property
    def least_us(self) -> int:
        """A slice that pays for less, beyond what is in hand, is not worth taking."""
        return self.slice_us // 20

    @property
    def ask_again_us(self) -> int:
        """How often a run that was refused asks again while it can go on."""
        return self.slice_us // 60


PACE = Pace()


class Paid(NamedTuple):
    """What the books say of a run, in nano-dollars."""

    charged: int
    """Settled so far."""
    held: int
    """In its open hold; zero where there is none."""


class Wanted(NamedTuple):
    """A slice to take, in nano-dollars: ``amount``, or less where a limit leaves less, but not below ``least``."""

    amount: int
    least: int


class Roll(NamedTuple):
    """Settle the open hold for ``used`` and take the next slice."""

    used: int
    next: Wanted


class Wait(NamedTuple):
    """Nothing to do for so long."""

    time_us: int


class Stop(NamedTuple):
    """No money is left but what the stop needs."""


class Closing(NamedTuple):
    """The end of a run: what it is charged from its hold, and what it used beyond it, in nano-dollars."""

    used: int
    beyond: int


def opening(rate: int, pace: Pace = PACE) -> Wanted:
    """Return the slice to take before a run begins.

    Args:
        rate: Nano-dollars an hour, above zero.
        pace: How far ahead runs are funded.
    """
    return Wanted(amount_of(rate, pace.slice_us), amount_of(rate, pace.reserve_us + pace.least_us))


def funded_us(rate: int, paid: Paid) -> int:
    """Return how long a run may run in all, in microseconds, with what it was charged and holds."""
    return time_for(rate, paid.charged + paid.held)


def step(rate: int, paid: Paid, ran_us: int, pace: Pace = PACE) -> Roll | Wait:
    """Return what is due for a run that has run for so long."""
    left_us = funded_us(rate, paid) - ran_us
    if left_us > pace.renew_us:
        return Wait(left_us - pace.renew_us)
    used = _used(rate, paid, ran_us)
    free = paid.held - used
    amount = amount_of(rate, ran_us + pace.slice_us) - paid.charged - used
    return Roll(used, Wanted(max(amount, free), free + amount_of(rate, pace.least_us)))


def refused(rate: int, paid: Paid, ran_us: int, pace: Pace = PACE) -> Wait | Stop:
    """Return what to do when the next slice was refused."""
    left_us = funded_us(rate, paid) - ran_us - pace.reserve_us
    return Stop() if left_us <= 0 else Wait(min(left_us, pace.ask_again_us))


def close(rate: int, paid: Paid, ran_us: int) -> Closing:
    """Return what a run that ended after so long is charged."""
    used = _used(rate, paid, ran_us)
    return Closing(used, max(0, amount_of(rate, ran_us) - paid.charged - used))


def _used(rate: int, paid: Paid, ran_us: int) -> int:
    """What was used since the last charge, at most what is held. A clock that was set back takes nothing back."""
    return min(max(0, amount_of(rate, ran_us) - paid.charged), paid.held)
