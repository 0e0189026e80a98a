"""From time to money, exactly.

A price is what an hour costs, an integer of nano-dollars, times the share of the machine that is used, a fraction. The
amount for a time is rounded up once, to a nano-dollar; a thing that is charged in pieces pays the rounded total less
what it has paid, so that many pieces cost what one would.
"""

from __future__ import annotations

from fractions import Fraction

HOUR_US = 3_600_000_000
"""Microseconds of an hour."""


def rate_of(price: int, share: Fraction) -> int:
    """Return what an hour of a share of a machine costs, rounded up to a nano-dollar.

    Args:
        price: Nano-dollars for an hour of the whole.
        share: Which part of it is used, 0 to 1.
    """
    return _ceil(price * share)


def amount_of(rate: int, time_us: int) -> int:
    """Return what a time costs in nano-dollars, rounded up.

    Args:
        rate: Nano-dollars an hour.
        time_us: Microseconds.
    """
    return _ceil(Fraction(rate * time_us, HOUR_US))


def time_for(rate: int, amount: int) -> int:
    """Return the longest time in microseconds that costs no more than ``amount``; the rate is above zero."""
    return amount * HOUR_US // rate


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
