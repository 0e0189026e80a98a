"""A server without an API: store, controllers and backend over a data directory. Run and killed by the tests.

``python -m tests.integration.compute.server_process DATA_DIR`` prints ``ready`` and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from nodus.core.clock import SystemClock
from nodus.server.bootstrap import ensure_projects
from nodus.server.controllers.service import running
from nodus.server.metrics import Metrics
from nodus.server.services import Services
from nodus.server.settings import Settings
from nodus.server.signing import Signer
from nodus.server.store import Store


def open_services(data_dir: Path) -> Services:
    """Return the parts that the controllers need."""
    clock = SystemClock()
    store = Store.open(f"sqlite:///{data_dir / 'nodus.db'}", clock, data_dir=data_dir, sync=False)
    store.write_sync(ensure_projects)
    settings = Settings(data_dir=data_dir)
    return Services(
        settings=settings, store=store, clock=clock, signer=Signer.open(data_dir / "keys"), metrics=Metrics()
    )


async def main(data_dir: Path) -> None:
    """Run until killed."""
    async with running(open_services(data_dir)):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
