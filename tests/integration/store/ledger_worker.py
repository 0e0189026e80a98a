"""A server process of the ledger's tests: it opens the database, waits for a line, and does what it is told.

    python ledger_worker.py URL race NAME COUNT   # holds that share one cap; prints how many it got
    python ledger_worker.py URL churn NAME SEED   # holds, settles, rolls and releases until it is killed

`churn` prints each answer once it has it: what was printed happened.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from pathlib import Path

from nodus.core.clock import SystemClock
from nodus.core.errors import BudgetExceeded, InsufficientCredits
from nodus.core.money import NANO
from nodus.server.store import Store, ledger
from nodus.server.store.ledger import Charge, Hold, HoldRequest, Limit, Owner

RACE = (Limit("Object", "o-race", "job/race", cap=10 * NANO), Limit("Budget", "b-race", "race"))
CLIENTS = 8


def churned(name: str) -> tuple[Limit, ...]:
    """The limits of a process that churns: together its clients want more than any of them leaves."""
    return (
        Limit("Object", f"o-{name}", f"job/{name}", cap=60),
        Limit("Group", f"g-{name}", f"agentgroup/{name}", cap=70),
        Limit("Budget", f"b-{name}", name, cap=80),
    )


async def race(store: Store, name: str, count: int) -> None:
    """Ask for so many holds at once."""

    async def one(number: int) -> bool:
        request = HoldRequest(f"{name}/{number}", NANO, Owner("Request", name, name), "o-race", RACE)
        try:
            await store.write(ledger.hold, request)
        except BudgetExceeded:
            return False
        return True

    print(sum(await asyncio.gather(*(one(number) for number in range(count)))), flush=True)


async def churn(store: Store, name: str, seed: int) -> None:
    """Spend as a run does, slice by slice, with several at once; never ends by itself."""

    under = churned(name)

    async def client(number: int) -> None:
        dice = random.Random(f"{seed} {number}")
        owner, count = Owner("Attempt", f"{name}-{number}", name), 0
        while True:
            count += 1
            amount = dice.randint(1, 9)
            reference = f"{name}/{number}/{count}"
            request = HoldRequest(reference, amount, owner, f"o-{name}", under, minimum=1)
            try:
                held = await store.write(ledger.hold, request)
            except (BudgetExceeded, InsufficientCredits):
                await store.write(ledger.grant, 1, reference)
                continue
            print(f"Held {reference} {held.amount}", flush=True)
            charges = [Charge("compute", dice.choice((0, 0, 0, 1)), quantity=5, unit="us", segment="running")]
            if dice.random() < 0.3:
                await store.write(ledger.release, reference)
                print(f"Released {reference} 0", flush=True)
            elif dice.random() < 0.5:
                done = await store.write(ledger.settle, reference, charges)
                print(f"Settled {reference} {done.paid}", flush=True)
            else:
                count += 1
                following = HoldRequest(f"{name}/{number}/{count}", amount, owner, f"o-{name}", under, minimum=1)
                rolled = await store.write(ledger.roll, reference, charges, following)
                print(f"Settled {reference} {rolled.settled.paid}", flush=True)
                if isinstance(rolled.next, Hold):
                    print(f"Held {following.reference} {rolled.next.amount}", flush=True)
                    await store.write(ledger.release, following.reference)
                    print(f"Released {following.reference} 0", flush=True)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))


def main(url: str, task: str, name: str, number: str) -> None:
    """Open the store, say so, and begin when told."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(url, SystemClock(), data_dir=Path(folder))
        print("ready", flush=True)
        sys.stdin.readline()
        asyncio.run({"race": race, "churn": churn}[task](store, name, int(number)))
        store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
