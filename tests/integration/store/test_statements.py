"""Lines of the books by time, and sums over them, on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.money import NANO
from nodus.server.store import Store, books, ledger, statements
from nodus.server.store.codec import to_us
from nodus.server.store.ledger import Charge, HoldRequest, Owner
from nodus.server.store.statements import Spent

HOUR_S = 3600


def _spend(conn: Any, number: int) -> None:
    ledger.hold(conn, HoldRequest(f"r{number}", 10, Owner("Attempt", "a", "a", "p"), "o"))
    ledger.settle(conn, f"r{number}", [Charge("compute/x", 10, unit="us", quantity=1)])


@pytest.fixture
def spread(store: Store, clock: FakeClock) -> Store:
    """A grant, then a charge every twelve hours for twenty days."""
    store.write_sync(ledger.grant, NANO, "start")
    for number in range(40):
        clock.advance(12 * HOUR_S)
        store.write_sync(_spend, number)
    return store


@pytest.mark.parametrize("back_h", [0, 1, 12, 13, 24, 100, 479, 480, 481, 10_000])
def test_since_finds_what_reading_everything_finds(spread: Store, clock: FakeClock, back_h: int) -> None:
    since_us = to_us(clock.now()) - back_h * HOUR_S * 1_000_000
    everything = spread.read_sync(books.transactions).items
    wanted = [line.seq for line in everything if line.at_us >= since_us]
    assert [
        line.seq for line in spread.read_sync(lambda conn: books.transactions(conn, since_us=since_us)).items
    ] == wanted
    charges = sum(line.amount for line in everything if line.type == "Charge" and line.at_us >= since_us)
    assert spread.read_sync(statements.spent, since_us) == Spent(charges, 0)


def test_few_lines_are_looked_at_to_find_a_time(spread: Store, clock: FakeClock) -> None:
    newest = spread.read_sync(books.transactions).items[0]
    first = spread.read_sync(books.first_since, to_us(clock.now()))
    assert 0 < newest.seq - first < 12  # a day of lines, for clocks that differ
    assert spread.read_sync(books.first_since, 0) <= 1


def test_there_may_be_no_lines_at_all(store: Store) -> None:
    assert store.read_sync(books.first_since, 0) <= 1
    assert store.read_sync(statements.spent, 0) == Spent(0, 0)
    assert store.read_sync(lambda conn: statements.sums(conn, by_object=True, by_day=True)) == []
    assert store.read_sync(statements.left_after, []) == {}


def test_what_is_left_after_lines_far_apart(spread: Store) -> None:
    lines = spread.read_sync(books.transactions).items
    some = [line.seq for line in lines if line.type in ("Charge", "Grant")][::13]
    left = spread.read_sync(statements.left_after, some)
    spent = {line.seq: sum(o.amount for o in lines if o.type == "Charge" and o.seq <= line.seq) for line in lines}
    assert left == {seq: NANO - spent[seq] for seq in some}
