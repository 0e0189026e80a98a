"""Durable steps a second: a journal's step is two transactions of two statements each, by 50 clients at once.

Ours is the store on SQLite (WAL, synchronous=FULL, grouped commits); the peer is the same statements through
SQLAlchemy over aiosqlite with a connection a client, as an asyncio program usually does it. Both wait for the disk at
every commit that is acknowledged.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, Text, bindparam, event, insert, update

from bench._harness import Figure, measure
from nodus.core.clock import SystemClock
from nodus.server.store import Store

CLIENTS = 50
OUR_STEPS = 10_000
PEER_STEPS = 1_000

metadata = MetaData()
runs = Table("bench_runs", metadata, Column("id", String, primary_key=True), Column("step", BigInteger))
journal = Table(
    "bench_journal",
    metadata,
    Column("run", String, primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("name", String),
    Column("outcome", Text),
)
INTENT = insert(journal)
ADVANCE = update(runs).where(runs.c.id == bindparam("run")).values(step=bindparam("to"))
OUTCOME = (
    update(journal)
    .where(journal.c.run == bindparam("of"), journal.c.step == bindparam("at"))
    .values(outcome=bindparam("text"))
)


def intent(conn: Connection, run: str, step: int) -> None:
    """First transaction of a step: what is about to be done."""
    conn.execute(INTENT, {"run": run, "step": step, "name": "model"})
    conn.execute(ADVANCE, {"run": run, "to": step})


def outcome(conn: Connection, run: str, step: int) -> None:
    """Second transaction: what came of it."""
    conn.execute(OUTCOME, {"of": run, "at": step, "text": '{"text": "done"}'})
    conn.execute(ADVANCE, {"run": run, "to": step})


def prepare(conn: Connection) -> None:
    """Make the tables and a run for each client."""
    metadata.create_all(conn)
    conn.execute(insert(runs), [{"id": f"run-{number}", "step": 0} for number in range(CLIENTS)])


async def rate(step: Callable[[str, int], Awaitable[None]], total: int) -> float:
    """Return steps a second over all clients."""

    async def client(run: str) -> None:
        for number in range(total // CLIENTS):
            await step(run, number)

    start = time.perf_counter()
    await asyncio.gather(*(client(f"run-{number}") for number in range(CLIENTS)))
    return total / (time.perf_counter() - start)


async def _ours(path: Path) -> float:
    store = Store.open(f"sqlite:///{path}", SystemClock())

    async def step(run: str, number: int) -> None:
        await store.write(intent, run, number)
        await store.write(outcome, run, number)

    try:
        await store.write(prepare)
        return await rate(step, OUR_STEPS)
    finally:
        store.close()


async def _peer(path: Path) -> float:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", pool_size=CLIENTS, connect_args={"timeout": 60})

    @event.listens_for(engine.sync_engine, "connect")
    def _connect(driver: Any, record: Any) -> None:
        cursor = driver.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    async def step(run: str, number: int) -> None:
        for transaction in (intent, outcome):
            async with engine.begin() as conn:
                await conn.run_sync(transaction, run, number)

    try:
        async with engine.begin() as conn:
            await conn.run_sync(prepare)
        return await rate(step, PEER_STEPS)
    finally:
        await engine.dispose()


def _fresh(side: Callable[[Path], Any]) -> float:
    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as directory:
        return float(asyncio.run(side(Path(directory) / "bench.db")))


if __name__ == "__main__":
    figure = Figure(name="store", unit="steps/s", goal=20, better="higher")
    has_peer = find_spec("aiosqlite") is not None and find_spec("greenlet") is not None
    raise SystemExit(measure(figure, ours=lambda: _fresh(_ours), peer=(lambda: _fresh(_peer)) if has_peer else None))
