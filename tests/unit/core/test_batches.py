"""Lists cut into requests."""

from __future__ import annotations

from itertools import zip_longest

from hypothesis import given
from hypothesis import strategies as st

from nodus.core.batches import batches


@given(st.lists(st.integers(min_value=0, max_value=30)), st.integers(1, 50), st.none() | st.integers(1, 5))
def test_batches_have_every_item_in_order_and_end_where_the_next_item_would_be_too_much(
    sizes: list[int], most_bytes: int, most: int | None
) -> None:
    found = list(batches(sizes, lambda size: size, most_bytes=most_bytes, most=most))
    assert [size for batch in found for size in batch] == sizes
    for batch, following in zip_longest(found, found[1:]):
        assert batch
        assert sum(batch) <= most_bytes or len(batch) == 1
        assert most is None or len(batch) <= most
        if following is not None:
            assert len(batch) == most or sum(batch) + following[0] > most_bytes
