"""Reckoning the ledger anew: it finds nothing in books that balance, and names whatever was changed behind its back."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Connection, text

from nodus.cli.commands.admin import command as admin
from nodus.core.clock import FakeClock, SystemClock
from nodus.core.money import NANO
from nodus.server.store import Store, StoreTooNew, StoreUnreachable, ledger, reconcile
from nodus.server.store.ledger import Charge, HoldRequest, Limit, Owner
from nodus.server.store.reading import reading

OWNER = Owner("Attempt", "a-1", "train-1", "default")
LIMITS = (
    Limit("Object", "o-1", "job/train", cap=50 * NANO),
    Limit("Budget", "b-1", "team", cap=60 * NANO, period="2026-11"),
)


def wanted(reference: str, usd: int = 1) -> HoldRequest:
    return HoldRequest(reference, usd * NANO, OWNER, "o-1", LIMITS)


def fill(conn: Connection) -> None:
    """A hold of each state, and every type of transfer."""
    ledger.grant(conn, 100 * NANO, "start")
    for number in range(3):
        ledger.hold(conn, wanted(f"slice/{number}", 2))
    part = Charge("compute/local-cpu", NANO, covered=5, quantity=60, covered_quantity=1, unit="us", segment="running")
    ledger.settle(conn, "slice/0", [part])
    ledger.release(conn, "slice/1")


@pytest.fixture
def filled(store: Store) -> Store:
    store.write_sync(fill)
    return store


def run(store: Store, *statements: str) -> None:
    def change(conn: Connection) -> None:
        for statement in statements:
            conn.execute(text(statement))

    store.write_sync(change)


def found(store: Store) -> list[tuple[str, str, str, str]]:
    return [(one.what, one.field, one.recorded, one.reckoned) for one in store.read_sync(reconcile.verify)]


def test_an_empty_ledger_and_a_used_one_balance(store: Store) -> None:
    assert found(store) == []
    store.write_sync(fill)
    assert found(store) == []


CHANGES = """
UPDATE limits SET held_nanos = 1 WHERE kind = 'Budget'     | Budget team 2026-11 | held | $0.000000001 | $2.00
UPDATE limits SET spent_nanos = 0 WHERE kind = 'Object'    | Object job/train | spent | $0.00 | $1.00
UPDATE limits SET covered_nanos = 0 WHERE kind = 'Object'  | Object job/train | covered | $0.00 | $0.000000005
UPDATE limits SET cap_nanos = 0 WHERE kind = 'Credits'     | account | granted | $0.00 | $100.00
UPDATE limit_segments SET time_us = 9                      | Object job/train, running | time | 9 µs | 60 µs
UPDATE limit_segments SET covered_nanos = 0                | Budget team 2026-11, running | covered | $0.00 | $0.000000005
DELETE FROM limit_segments                                 | Budget team 2026-11, running | segment | none | some
UPDATE holds SET settled_nanos = 0 WHERE id = 1            | hold slice/0 | settled | $0.00 | $1.00
UPDATE holds SET amount_nanos = 0 WHERE id = 3             | hold slice/2 | amount | $0.00 | $2.00
UPDATE holds SET state = 'Held' WHERE id = 1               | hold slice/0 | state | Held | Settled
UPDATE holds SET state = 'Lost' WHERE id = 3               | hold slice/2 | state | Lost | Settled
UPDATE holds SET limits = '1 99 3' WHERE id = 3            | hold slice/2 | limits | limit 99 | no such limit
DELETE FROM transfers WHERE type = 'Release' AND hold = 2  | hold slice/1 | given back | $2.00 | $0.00
DELETE FROM transfers WHERE type = 'Hold' AND hold = 3     | hold slice/2 | transfers of type Hold | 1 | 0
UPDATE transfers SET amount_nanos = 0 WHERE type = 'Cover' | hold slice/0 | covered | $0.000000005 | $0.00
UPDATE transfers SET debit = 'usage' WHERE seq = 2         | transfer 2 | accounts | Hold of $2.00 from usage to held | no such transfer
UPDATE transfers SET hold = NULL WHERE seq = 2             | transfer 2 | accounts | Hold of $2.00 from credits to held | no such transfer
DELETE FROM transfers WHERE type = 'Grant'                 | account | granted | $100.00 | $0.00
"""  # noqa: E501 - a table


class Undone(Exception):
    """Raised to undo a transaction."""


def test_whatever_was_changed_is_named(filled: Store) -> None:
    def change(conn: Connection, statement: str, named: tuple[str, ...]) -> None:
        conn.execute(text(statement))
        assert named in [(one.what, one.field, one.recorded, one.reckoned) for one in reconcile.verify(conn)], statement
        raise Undone

    for line in CHANGES.strip().splitlines():
        statement, *named = (part.strip() for part in line.split("|"))
        with pytest.raises(Undone):
            filled.write_sync(change, statement, tuple(named))
    assert found(filled) == []


def test_transfers_whose_hold_is_gone_are_named(filled: Store) -> None:
    gone = "DELETE FROM holds WHERE id IN (1, 3)"
    if filled.dialect == "sqlite":
        # A connection that checks no foreign keys.
        with sqlite3.connect(str(filled.url.database)) as conn:
            conn.execute(gone)
    else:
        run(filled, "ALTER TABLE transfers DROP CONSTRAINT fk_transfers_hold", gone)
    named = {("transfer 2", "hold", "hold 1", "no such hold"), ("transfer 4", "hold", "hold 3", "no such hold")}
    assert named <= set(found(filled))


def test_pages_and_portions_agree_however_small(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        filled.write_sync(ledger.hold, wanted(f"more/{number}"))
    for page, portion in ((1, 1), (2, 2), (3, 200_000)):
        monkeypatch.setattr(reconcile, "_PAGE", page)
        monkeypatch.setattr(reconcile, "_LIMITS_AT_ONCE", portion)
        assert found(filled) == []
    monkeypatch.setattr(reconcile, "MOST", 2)
    run(filled, "UPDATE holds SET amount_nanos = 3")
    assert len(found(filled)) == 2


def test_the_command_says_what_differs_and_fails(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'nodus.db'}", SystemClock(), sync=False)
    store.write_sync(fill)

    def verify(*flags: str) -> tuple[int, str]:
        done = CliRunner().invoke(admin, ["ledger", "verify", "--data-dir", str(tmp_path), *flags])
        return done.exit_code, done.stdout

    assert verify() == (0, "The books balance: every limit, hold and account is what its transfers say.\n")
    assert verify("-o", "json") == (0, "[]\n")
    run(store, "UPDATE limits SET held_nanos = 0 WHERE kind = 'Budget'")
    status, shown = verify()
    assert status == 1
    assert shown.splitlines()[0].split() == ["WHAT", "FIELD", "RECORDED", "RECKONED"]
    assert shown.splitlines()[1].split() == ["Budget", "team", "2026-11", "held", "$0.00", "$2.00"]
    status, shown = verify("-o", "json")
    assert (status, json.loads(shown)[0]["what"]) == (1, "Budget team 2026-11")
    store.close()


def test_a_database_is_read_as_it_is_or_not_at_all(store_url: str, filled: Store, clock: FakeClock) -> None:
    with reading(store_url, clock) as conn:
        assert reconcile.verify(conn) == []
        assert ledger.balance(conn).granted == 100 * NANO
    run(filled, "UPDATE alembic_version SET version_num = '0001'")
    with pytest.raises(StoreUnreachable, match="of an older version"), reading(store_url, clock):
        pass
    run(filled, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreTooNew, match="9999"), reading(store_url, clock):
        pass


def test_where_there_is_no_database_none_is_made(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "none.db"
    with pytest.raises(StoreUnreachable, match="there is no database"), reading(f"sqlite:///{path}", clock):
        pass
    assert not path.exists()
