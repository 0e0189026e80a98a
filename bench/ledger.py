"""Pairs of hold and settlement a second, each under four limits (credits, Budget, object, group), by 128 tasks at once.

Ours is the store's ledger as the server calls it, on SQLite (WAL, synchronous=FULL, grouped commits), in one process.
The peer is a bare prototype on the same tables: one sqlite3 connection on the event loop that runs the plain statements
of whatever waits and commits them together. It has no store around it and answers nothing but yes or no. Both wait for
the disk before they answer.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench._harness import Figure, measure
from nodus.core.clock import SystemClock
from nodus.core.ids import new_uid
from nodus.core.money import NANO
from nodus.server.store import Store, ledger, reconcile
from nodus.server.store.ledger import Charge, HoldRequest, Limit, Owner

FIGURE = Figure(name="ledger", unit="pairs/s", goal=2500, better="higher", goal_of="ours")
CLIENTS = 128
IN_A_GROUP = 8
PAIRS = 12_800
AMOUNT, USED = 2_000_000, 1_234_567
ITEM = "tokens/some-model/output"

Pair = Callable[[str], Awaitable[None]]


async def rate(client: Callable[[int], Pair], total: int) -> float:
    """Return pairs a second over all clients."""

    async def run(pair: Pair, name: str) -> None:
        for number in range(total // CLIENTS):
            await pair(f"request/{name}/{number}")

    pairs = [(client(number), new_uid()) for number in range(CLIENTS)]
    start = time.perf_counter()
    await asyncio.gather(*(run(pair, name) for pair, name in pairs))
    return total / (time.perf_counter() - start)


async def ours(path: Path) -> float:
    """The store's ledger."""
    store = Store.open(f"sqlite:///{path}", SystemClock())
    await store.write(ledger.grant, 1_000_000 * NANO, "bench")
    budget = Limit("Budget", new_uid(), "team", cap=1_000_000 * NANO, period="2026-11")
    groups = [
        Limit("Group", new_uid(), f"agentgroup/{n}", cap=100_000 * NANO) for n in range(-(-CLIENTS // IN_A_GROUP))
    ]

    def client(number: int) -> Pair:
        uid = new_uid()
        owner = Owner("Request", uid, "req", "default")
        limits = (Limit("Object", uid, "agentrun/x", cap=10_000 * NANO), groups[number // IN_A_GROUP], budget)

        async def pair(reference: str) -> None:
            await store.write(ledger.hold, HoldRequest(reference, AMOUNT, owner, uid, limits, pricebook="2026-11-01"))
            await store.write(ledger.settle, reference, [Charge(ITEM, USED, quantity=100, unit="tokens")])

        return pair

    try:
        found = await rate(client, PAIRS)
        assert await store.read(reconcile.verify) == []
        return found
    finally:
        store.close()


class Prototype:
    """Plain statements, committed together."""

    def __init__(self, path: Path) -> None:
        store = Store.open(f"sqlite:///{path}", SystemClock())
        self.org = store.org
        store.close()
        self.conn = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-16000"):
            self.conn.execute(f"PRAGMA {pragma}")
        self.waiting: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []

    def limit(self, kind: str) -> int:
        """Make a limit and return its number."""
        row = (self.org, kind, new_uid(), "", kind, 1_000_000 * NANO, 0, 0, 0, "")
        return int(self.conn.execute(f"INSERT INTO limits VALUES (NULL{', ?' * len(row)})", row).lastrowid or 0)

    async def run(self, work: Callable[[], bool]) -> bool:
        """Do it with the next commit."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        if not self.waiting:
            # Behind everybody who is ready.
            loop.call_soon(self._commit)
        self.waiting.append((work, future))
        return await future

    def _commit(self) -> None:
        work, self.waiting = self.waiting, []
        self.conn.execute("BEGIN IMMEDIATE")
        done = [(one(), future) for one, future in work]
        self.conn.execute("COMMIT")
        for answer, future in done:
            future.set_result(answer)

    def hold(self, reference: str, uid: str, limits: list[int]) -> bool:
        """Hold under all limits."""
        execute = self.conn.execute
        for limit in limits:
            fits = execute(
                "UPDATE limits SET held_nanos = held_nanos + ? "
                "WHERE id = ? AND cap_nanos - held_nanos - spent_nanos >= ?",
                (AMOUNT, limit, AMOUNT),
            )
            assert fits.rowcount == 1
        now = time.time_ns() // 1000
        number = execute(
            "INSERT INTO holds (org, reference, amount_nanos, settled_nanos, covered_nanos, state, owner_kind, owner, "
            "owner_name, project, object, reason, pricebook, limits, created_us) "
            "VALUES (?, ?, ?, 0, 0, 'Held', 'Request', ?, 'req', 'default', ?, '', '2026-11-01', ?, ?)",
            (self.org, reference, AMOUNT, uid, uid, " ".join(map(str, limits)), now),
        ).lastrowid
        self._transfer("Hold", "credits", "held", AMOUNT, number, now)
        return True

    def settle(self, reference: str) -> bool:
        """Settle it."""
        execute = self.conn.execute
        number, amount, limits = execute(
            "SELECT id, amount_nanos, limits FROM holds WHERE org = ? AND reference = ? AND state = 'Held'",
            (self.org, reference),
        ).fetchone()
        for limit in map(int, limits.split()):
            execute(
                "UPDATE limits SET held_nanos = held_nanos - ?, spent_nanos = spent_nanos + ? WHERE id = ?",
                (amount, USED, limit),
            )
        now = time.time_ns() // 1000
        execute("UPDATE holds SET state = 'Settled', settled_nanos = ?, ended_us = ? WHERE id = ?", (USED, now, number))
        self._transfer("Charge", "held", "usage", USED, number, now)
        self._transfer("Release", "held", "credits", amount - USED, number, now)
        return True

    def _transfer(self, type_: str, debit: str, credit: str, amount: int, hold: int | None, now: int) -> None:
        self.conn.execute(
            "INSERT INTO transfers (org, at_us, type, debit, credit, amount_nanos, hold, reason, item, segment, "
            "quantity, unit) VALUES (?, ?, ?, ?, ?, ?, ?, '', ?, '', 100, 'tokens')",
            (self.org, now, type_, debit, credit, amount, hold, ITEM),
        )


async def peer(path: Path) -> float:
    """The bare prototype."""
    prototype = Prototype(path)
    shared = [prototype.limit("Credits"), prototype.limit("Budget")]
    groups = [prototype.limit("Group") for _ in range(-(-CLIENTS // IN_A_GROUP))]

    def client(number: int) -> Pair:
        uid = new_uid()
        limits = [*shared, groups[number // IN_A_GROUP], prototype.limit("Object")]

        async def pair(reference: str) -> None:
            await prototype.run(lambda: prototype.hold(reference, uid, limits))
            await prototype.run(lambda: prototype.settle(reference))

        return pair

    try:
        return await rate(client, PAIRS)
    finally:
        prototype.conn.close()


def _fresh(side: Callable[[Path], Awaitable[float]]) -> float:
    async def run(path: Path) -> float:
        return await side(path)

    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as directory:
        return asyncio.run(run(Path(directory) / "bench.db"))


if __name__ == "__main__":
    sys.exit(measure(FIGURE, ours=lambda: _fresh(ours), peer=lambda: _fresh(peer)))
