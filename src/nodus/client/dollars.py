"""Dollars that callers give as numbers, as the wire writes them."""

from __future__ import annotations

from nodus.core.errors import Invalid


def usd(amount: float | str | None) -> str | None:
    """Return dollars as the wire writes them: two places where they are exact, else up to nine.

    Args:
        amount: such as 2, 0.5 or ``"2.50"``; what a float has beyond nine places is rounded off.

    Raises:
        Invalid: When the amount is no number above zero.
    """
    if amount is None:
        return None
    from decimal import Decimal, InvalidOperation

    try:
        given = Decimal(str(amount))
        value = given.quantize(Decimal("0.000000001")) if given.is_finite() else given
    except InvalidOperation as error:
        raise Invalid(f"max_cost is {amount!r}; give dollars, such as 2 or '2.50'") from error
    if not value.is_finite() or value <= 0:
        raise Invalid(f"max_cost is {amount}; give dollars above zero, of a billionth at least")
    whole, _, fraction = f"{value:f}".partition(".")
    return f"{whole}.{fraction.rstrip('0').ljust(2, '0')}"
