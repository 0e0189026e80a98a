"""The controllers of one server process, wired and running. Called by the server's start."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodus.core.durations import parse_duration
from nodus.core.ids import new_uid
from nodus.core.kinds import ATTEMPT
from nodus.server.billing import gradingbill
from nodus.server.billing.funding import SECOND_US, Pace
from nodus.server.compute.local.backend import LocalBackend
from nodus.server.controllers.attempt import AttemptController
from nodus.server.controllers.funding import Terms
from nodus.server.controllers.gitsource import GitSources
from nodus.server.controllers.job import JobController
from nodus.server.controllers.lookups import Lookups
from nodus.server.controllers.runtime import Controller, Manager
from nodus.server.controllers.sandbox import SandboxController
from nodus.server.files import replace_file
from nodus.server.store import nodes, objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store import Store

log = logging.getLogger(__name__)

NODE_FILE = "node"
SETTLE_INTERVAL_S = 30.0
NODE_TTL_S = 300.0
"""A host that wasn't heard of for so long is lost, and its attempts with it."""


def node_id(data_dir: Path) -> str:
    """Return this host's id: random, made once per data directory and kept in it."""
    path = data_dir / NODE_FILE
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        replace_file(path, new_uid() + "\n")
        return path.read_text(encoding="ascii").strip()


def make_backend(data_dir: Path, store: Store) -> LocalBackend:
    """Return the local backend over a data directory and the store's blobs."""

    def put_file(path: Path) -> tuple[str, int]:
        return store.blobs.put_file(path), path.stat().st_size

    return LocalBackend(data_dir, store.blobs.path, put_file)


@contextlib.asynccontextmanager
async def running(services: Services, others: Sequence[Controller[Any]] = ()) -> AsyncIterator[Manager]:
    """Run the controllers of Jobs and Attempts, and ``others``, for the length of the context.

    Members that run already are found first. At the end controllers stop and give their leases back; members go on.

    Args:
        services: The server's parts; ``backend`` and ``manager`` are set here where they aren't yet.
        others: Controllers of further kinds.
    """
    data_dir = services.settings.data_dir
    if services.backend is None:
        services.backend = make_backend(data_dir, services.store)
    backend: LocalBackend = services.backend
    node = node_id(data_dir)
    lookups = Lookups(services)
    prices = services.prices
    pace = Pace(round(parse_duration(services.settings.funding_slice) * SECOND_US))
    terms = Terms(prices.version, pace, prices.grading)
    attempts = AttemptController(services.store, backend, lookups, node, services.clock, terms)
    jobs = JobController(
        node, backend, services.clock, services.store, lookups, GitSources(services), terms, services.low_disk
    )
    sandboxes = SandboxController(node, backend, services.low_disk, terms)
    controllers: list[Controller[Any]] = [jobs, attempts, sandboxes, *others]
    manager = Manager(services.store, controllers, owner=node, clock=services.clock)
    services.manager = manager
    attempts.wake = lambda uid: manager.wake("Attempt", uid)
    for uid in await attempts.attach():
        manager.wake("Attempt", uid)
    await sandboxes.attach(services.store)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_forever("controllers", manager.run)),
            group.create_task(_forever("members", lambda: _follow_members(backend, manager, sandboxes))),
            group.create_task(_forever("heartbeat", lambda: _heartbeat(services, node))),
            group.create_task(_forever("left-over-holds", lambda: _settle_left_over(services.store, attempts))),
            group.create_task(_warm(backend)),
        ]
        try:
            yield manager
        finally:
            for task in tasks:
                task.cancel()
    await backend.close()


async def _forever(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run what never ends by itself, and again after a fault: it must not take the API down with it."""
    while True:
        try:
            await work()
        except Exception:  # a loop top: whatever it is, it is logged and the work begins anew
            log.exception("%s ended by a fault; it is started again", name)
        await asyncio.sleep(1.0)


async def _warm(backend: LocalBackend) -> None:
    try:
        await backend.warm()
    except OSError:
        log.exception("no process could be started; the next attempt tries again")


async def _follow_members(backend: LocalBackend, manager: Manager, sandboxes: SandboxController) -> None:
    async for key in backend.events():
        manager.wake("Attempt", key)
        if (sandbox := sandboxes.sandbox_of(key)) is not None:
            manager.wake("Sandbox", sandbox)  # one of its processes ended


async def _heartbeat(services: Services, node: str) -> None:
    """Tell the other servers that this host is there, and what it has."""
    while True:
        capacity = await services.backend.capacity()
        known = {"cpu": capacity.cpu, "memoryBytes": capacity.memory_bytes}
        try:
            await services.store.write(nodes.heartbeat, node, socket.gethostname(), known, NODE_TTL_S)
            await services.store.write(end_lost_attempts)
        except Exception:  # a store that is away for now is no reason to stop the controllers
            log.exception("the node's heartbeat could not be written")
        await asyncio.sleep(NODE_TTL_S / 10)


async def _settle_left_over(store: Store, attempts: AttemptController) -> None:
    """Now and then, end the holds that nothing else will end."""
    while True:
        await asyncio.sleep(SETTLE_INTERVAL_S)
        await attempts.settle_left_over()
        await store.write(gradingbill.release_left)


def end_lost_attempts(conn: Connection) -> int:
    """Say of the unfinished attempts of hosts that are lost that they are lost too; return how many there were."""
    lost = {node.id for node in nodes.list_(conn) if not node.alive}
    if not lost:
        return 0
    live = objects.list_(conn, ATTEMPT, None, fields="status.phase in (Pending,Starting,Running)").items
    found = [attempt for attempt in live if attempt.spec.get("node") in lost]
    for attempt in found:
        gone = {"phase": "Lost", "reason": "NodeLost", "message": "the host it ran on was not heard of for 5 minutes"}
        objects.update_status(conn, attempt.uid, {**attempt.status, **gone})
    return len(found)
