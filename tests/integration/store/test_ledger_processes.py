"""The ledger with server processes of their own: several at one cap, and some that are killed while they write."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodus.core.money import NANO
from nodus.server.store import Store, books, holds, ledger, limits, reconcile
from nodus.server.store.ledger import Charge
from nodus.testing.eventually import eventually

from .ledger_worker import CLIENTS, churned

WORKER = Path(__file__).parent / "ledger_worker.py"
OpenStore = Callable[[], Store]


class Worker:
    """A process; what it printed is read as it comes."""

    def __init__(self, url: str, *task: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), url, *task], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        # A line that was cut off by a kill was not answered.
        for line in self.process.stdout:
            if line.endswith("\n"):
                self.lines.append(line.rstrip("\n"))

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, *, kill: bool) -> list[str]:
        if kill:
            self.process.kill()
        self.process.wait(60)
        self._reading.join(60)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            # What it no longer reads is of no use.
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        return self.lines[1:]


@contextlib.contextmanager
def working(url: str, *tasks: tuple[str, ...]) -> Iterator[list[Worker]]:
    """Processes that are ready and begin at the same time."""
    workers = [Worker(url, *task) for task in tasks]
    try:
        for worker in workers:
            eventually(lambda worker=worker: worker.lines[:1] == ["ready"], timeout_s=60)  # type: ignore[misc]
        for worker in workers:
            worker.begin()
        yield workers
    finally:
        for worker in workers:
            worker.end(kill=True)


def test_two_servers_admit_ten_of_200_at_a_cap_for_ten(store_url: str, open_store: OpenStore) -> None:
    store = open_store()
    store.write_sync(ledger.grant, 1000 * NANO, "start")
    with working(store_url, ("race", "one", "100"), ("race", "two", "100")) as workers:
        admitted = [int(worker.end(kill=False)[0]) for worker in workers]
    assert sum(admitted) == 10
    found = store.read_sync(limits.read, "Object", "o-race")
    assert found is not None
    assert (found.held, found.left) == (10 * NANO, 0)
    assert store.read_sync(reconcile.verify) == []


def _killed_often(store_url: str, open_store: OpenStore, kills: int) -> None:
    store = open_store()
    store.write_sync(ledger.grant, 100, "start")
    dice = random.Random(7)
    answered: dict[str, tuple[str, int]] = {}
    for kill in range(kills):
        enough = dice.randint(1, 150)
        with working(store_url, ("churn", f"w{kill}", str(kill))) as (worker,):
            eventually(lambda: len(worker.lines) > enough, timeout_s=60)  # noqa: B023 - it is called at once
            for line in worker.end(kill=True):
                state, reference, amount = line.split()
                answered[reference] = (state, int(amount))
        _check(store, f"w{kill}", answered)
        # What a start does: an owner's holds are found and ended.
        for client in range(CLIENTS):
            for one in store.read_sync(ledger.open_holds, owner=f"w{kill}-{client}"):
                store.write_sync(ledger.settle, one.reference, [Charge("compute", 0)])
                answered[one.reference] = ("Settled", 0)
        assert store.read_sync(ledger.open_holds) == []
        _check(store, f"w{kill}", answered)
    assert {line.type for line in store.read_sync(books.transactions, limit=100_000).items} >= {"Charge", "Release"}


def _check(store: Store, name: str, answered: dict[str, tuple[str, int]]) -> None:
    """What was answered is there, no cap is exceeded, and the books balance."""
    for reference, (state, amount) in answered.items():
        found = store.read_sync(holds.find, reference)
        assert found is not None
        # It may have gone on after the last answer, but not back.
        assert state in ("Held", found.state), reference
        assert amount == (found.amount if state == "Held" else found.settled), reference
    for limit in churned(name):
        count = store.read_sync(limits.read, limit.kind, limit.subject)
        assert count is not None
        assert count.cap is not None
        assert 0 <= count.held + count.spent <= count.cap
    assert store.read_sync(ledger.balance).available >= 0
    assert store.read_sync(reconcile.verify) == []


def test_a_server_that_is_killed_leaves_books_that_balance(store_url: str, open_store: OpenStore) -> None:
    _killed_often(store_url, open_store, 1)


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_server_that_is_killed_often_leaves_books_that_balance(store_url: str, open_store: OpenStore) -> None:
    _killed_often(store_url, open_store, 40)
