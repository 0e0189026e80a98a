"""The leases this server holds on objects, so that a pass needs no lease write of its own most of the time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from nodus.core.clock import Clock
from nodus.core.errors import NodusError
from nodus.server.store import leases

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.controllers.runtime import Key
    from nodus.server.store import Store

log = logging.getLogger(__name__)


class _Held(NamedTuple):
    token: int
    until: float


class LeaseKeeper:
    """Takes, renews and releases leases named ``<Kind>/<uid>``.

    A lease is kept between passes and renewed in one transaction for all keys; a server that dies loses its objects
    to others after ``ttl_s``, a server of the same name gets them at once, with a new token.

    Args:
        store: Where leases are kept.
        owner: This server's name.
        clock: Only for deciding when to renew; the database's clock decides who holds a lease.
        ttl_s: How long a lease lasts.
    """

    def __init__(self, store: Store, owner: str, clock: Clock, ttl_s: float) -> None:
        self._store = store
        self._owner = owner
        self._clock = clock
        self._ttl_s = ttl_s
        self._held: dict[Key, _Held] = {}

    def has(self, key: Key) -> bool:
        """Tell whether a lease on ``key`` is kept, current or not."""
        return key in self._held

    async def hold(self, key: Key) -> int | None:
        """Return the fencing token of a lease that lasts at least half its time, or None when another has it."""
        held = self._held.get(key)
        now = self._clock.monotonic()
        if held is not None and held.until - now > self._ttl_s / 2:
            return held.token
        token = await self._store.write(leases.acquire, _name(key), self._owner, self._ttl_s)
        if token is None:
            self._held.pop(key, None)
            return None
        self._held[key] = _Held(token, now + self._ttl_s)
        return token

    def lost(self, key: Key) -> None:
        """Forget a lease that another server took."""
        self._held.pop(key, None)

    async def release(self, key: Key) -> None:
        """Give one lease back."""
        held = self._held.pop(key, None)
        if held is not None:
            await self._store.write(_release, [(_name(key), held.token)])

    async def release_all(self) -> None:
        """Give all leases back, so that another server need not wait for them to run out."""
        held, self._held = self._held, {}
        if held:
            await self._store.write(_release, [(_name(key), lease.token) for key, lease in held.items()])

    async def renew_forever(self) -> None:
        """Renew what is held, in time, until cancelled. A pass that acts for minutes keeps its object this way."""
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            try:
                await self.renew()
            except NodusError as error:
                log.warning("leases could not be renewed: %s", error.message)

    async def renew(self) -> None:
        """Renew all leases that are held; forget those that were lost."""
        now = self._clock.monotonic()
        before = dict(self._held)
        pairs = [(_name(key), lease.token) for key, lease in before.items()]
        if not pairs:
            return
        alive = await self._store.write(_renew, pairs, self._ttl_s)
        for (key, lease), ok in zip(before.items(), alive, strict=True):
            if self._held.get(key) != lease:
                continue
            if ok:
                self._held[key] = _Held(lease.token, now + self._ttl_s)
            else:
                self.lost(key)


def _name(key: Key) -> str:
    return f"{key.kind}/{key.uid}"


def _renew(conn: Connection, pairs: list[tuple[str, int]], ttl_s: float) -> list[bool]:
    return [leases.renew(conn, name, token, ttl_s) for name, token in pairs]


def _release(conn: Connection, pairs: list[tuple[str, int]]) -> None:
    for name, token in pairs:
        leases.release(conn, name, token)
