"""How often a stranger may try: token buckets by address and for all, and the pace of device polls.

Kept in memory, a server process each, and bounded: they slow down guessing, they are no quota.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from starlette.requests import Request

from nodus.core.clock import Clock
from nodus.core.errors import TooManyRequests

INTERVAL_S = 5.0
_SLOW_DOWN_S = 5.0
_TOLERANCE_S = 0.5
_MOST = 10_000


class Bucket:
    """Tokens by key that refill with time.

    Args:
        clock: for the time.
        burst: tokens of a full bucket.
        per_s: tokens that come back in a second.
    """

    def __init__(self, clock: Clock, burst: float, per_s: float) -> None:
        self._clock, self._burst, self._per_s = clock, burst, per_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        """Take a token.

        Raises:
            TooManyRequests: there is none left; with the time until there is.
        """
        now_s = self._clock.monotonic()
        left, at_s = self._left.pop(key, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._per_s)
        self._left[key] = (max(0.0, left - 1), now_s) if left >= 1 else (left, now_s)
        while len(self._left) > _MOST:
            self._left.popitem(last=False)
        if left < 1:
            wait_s = (1 - left) / self._per_s
            raise TooManyRequests("too many tries", fix=f"Try again in {wait_s:.0f} s.", retry_after_s=wait_s)


class Pace:
    """Whether device polls keep to their interval; each that comes too early lengthens it, as RFC 8628 says."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def too_fast(self, key: str) -> bool:
        """Note a poll and tell whether it came too early."""
        now_s = self._clock.monotonic()
        last_s, interval_s = self._seen.pop(key, (now_s - INTERVAL_S, INTERVAL_S))
        early = now_s - last_s < interval_s - _TOLERANCE_S
        self._seen[key] = (now_s, interval_s + _SLOW_DOWN_S if early else interval_s)
        while len(self._seen) > _MOST:
            self._seen.popitem(last=False)
        return early


class Limits:
    """Every limit on what may be tried without a key."""

    def __init__(self, clock: Clock) -> None:
        self.starts = Bucket(clock, burst=10, per_s=1 / 6)
        """Device logins begun, by address."""
        self.tries = Bucket(clock, burst=10, per_s=1 / 6)
        """Credentials and codes tried on the approval pages, by address."""
        self.all_tries = Bucket(clock, burst=1000, per_s=50)
        """The same for all addresses together: what an address says of itself behind a proxy can be made up. Generous,
        since whoever uses it up keeps everybody from logging in, and what is guessed has 192 bits."""
        self.redeems = Bucket(clock, burst=20, per_s=1)
        """Codes redeemed, by address."""
        self.polls = Bucket(clock, burst=60, per_s=2)
        """Device polls, by address."""
        self.pace = Pace(clock)


def address_of(request: Request) -> str:
    """What counts as one stranger: the IPv4 address, or the /64 of an IPv6 address."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))
