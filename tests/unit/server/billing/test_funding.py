"""A run is charged for the time it ran and never more than was held, whatever the passes between."""

from hypothesis import given
from hypothesis import strategies as st

from nodus.server.billing.funding import (
    PACE,
    Paid,
    Roll,
    Stop,
    Wait,
    close,
    funded_us,
    opening,
    refused,
    step,
)
from nodus.server.billing.metering import HOUR_US, amount_of

RATE = 3_600_000_000
"""A microsecond costs one nano-dollar."""


def test_the_first_slice_pays_for_a_slice_or_at_least_for_a_stop():
    assert opening(RATE) == (PACE.slice_us, PACE.reserve_us + PACE.least_us)


def test_nothing_is_due_while_enough_is_in_hand():
    assert step(RATE, Paid(0, PACE.slice_us), 0) == Wait(PACE.slice_us - PACE.renew_us)


def test_the_next_slice_is_taken_before_the_last_one_ends():
    due = step(RATE, Paid(0, PACE.slice_us), PACE.slice_us - PACE.renew_us)
    assert due == Roll(used=PACE.slice_us - PACE.renew_us, next=(PACE.slice_us, PACE.renew_us + PACE.least_us))


def test_a_run_that_gets_no_more_goes_on_to_the_reserve():
    paid = Paid(0, PACE.renew_us)
    assert isinstance(refused(RATE, paid, PACE.renew_us - PACE.reserve_us - 1), Wait)
    assert refused(RATE, paid, PACE.renew_us - PACE.reserve_us) == Stop()


def test_time_beyond_the_hold_is_not_charged():
    assert close(RATE, Paid(5, 10), 20) == (10, 5)


def test_a_clock_that_was_set_back_charges_nothing():
    assert close(RATE, Paid(100, 50), 20) == (0, 0)


RATES = st.integers(1, 10**12)


@given(RATES, st.lists(st.integers(0, HOUR_US), max_size=30), st.integers(0, 10**12))
def test_a_history_of_passes_costs_the_time_run_and_stays_within_its_cap(rate, gaps, cap):
    wanted = opening(rate)
    if cap < wanted.least:
        return
    charged, held, ran = 0, min(wanted.amount, cap), 0
    for gap in gaps:
        # The supervisor pauses it where its money ends.
        ran = min(ran + gap, funded_us(rate, Paid(charged, held)))
        due = step(rate, Paid(charged, held), ran)
        if isinstance(due, Roll):
            room = cap - charged - due.used
            assert due.next.least <= due.next.amount
            if room >= due.next.least:
                charged, held = charged + due.used, min(due.next.amount, room)
        assert charged + held <= cap
    end = close(rate, Paid(charged, held), ran)
    assert end.beyond == 0
    assert charged + end.used == amount_of(rate, ran)
