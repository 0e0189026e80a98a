"""Time becomes money exactly: rounded up once, however many pieces it comes in."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from nodus.server.billing.metering import HOUR_US, amount_of, rate_of, time_for

RATES = st.integers(1, 100_000_000_000)
TIMES = st.integers(0, 400 * 24 * HOUR_US)


def test_an_hour_costs_its_price():
    assert amount_of(2_500_000_000, HOUR_US) == 2_500_000_000


def test_the_smallest_time_costs_something():
    assert amount_of(1, 1) == 1


def test_a_share_of_a_machine_costs_its_share():
    assert rate_of(400, Fraction(1, 4)) == 100
    assert rate_of(100, Fraction(1, 3)) == 34


@given(RATES, TIMES)
def test_what_an_amount_pays_for_costs_no_more(rate, amount):
    assert amount_of(rate, time_for(rate, amount)) <= amount < amount_of(rate, time_for(rate, amount) + 1)


@given(RATES, st.lists(TIMES, max_size=20))
def test_pieces_cost_what_the_whole_does(rate, pieces):
    paid = passed = 0
    for piece in pieces:
        passed += piece
        paid += amount_of(rate, passed) - paid
    assert paid == amount_of(rate, sum(pieces))
