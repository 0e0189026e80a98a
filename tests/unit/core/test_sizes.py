"""Amounts: read as Kubernetes writes them, shown for people."""

from __future__ import annotations

import pytest

from nodus.core.sizes import quantity, size_text


@pytest.mark.parametrize(
    ("text", "number"),
    [("4", 4), (2, 2), (0.5, 0.5), ("500m", 0.5), ("1Ki", 1024), ("16Gi", 16 << 30), ("1.5Gi", 3 << 29), ("2M", 2e6)],
)
def test_quantity_is_read(text: str | float, number: float) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "4x", "Gi", "-1", "1 Gi", "1gi", "two", "1e3", "\u0664Gi", "9" * 400])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        quantity(text)


def test_the_largest_quantity_is_a_number() -> None:
    assert int(quantity("9" * 18 + "." + "9" * 9 + "Ti")) > 0


def test_sizes_are_shown_with_one_decimal_place_at_most() -> None:
    assert [size_text(size) for size in (0, 1023, 1536, 5 << 30)] == ["0", "1023", "1.5Ki", "5Gi"]
