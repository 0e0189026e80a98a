"""The feed of changes: one thread a process reads the ``changes`` table and wakes whoever waits for it.

Subscribers share the latest changes in memory, bounded by number and by bytes; one that falls behind, or resumes from
an older resourceVersion, reads what it lacks from the database, a little at a time. Nothing is queued per subscriber,
so a slow watcher costs nothing. A change wakes an event loop once, however many of its tasks wait.

    async for change in store.feed.subscribe(["Job"], since=page.resource_version):
        ...

The thread wakes on a commit of this process at once, on PostgreSQL also on the NOTIFY of another server, and looks once
a second anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from sqlalchemy.engine import URL

from nodus.core.errors import Expired, StoreError
from nodus.server.files import readable
from nodus.server.store import changes
from nodus.server.store.changes import Change
from nodus.server.store.context import rv_now
from nodus.server.store.errors import StoreClosed

log = logging.getLogger(__name__)

_POLL_S = 1.0
_KEEP = 2_000
_KEEP_BYTES = 4 * 1024 * 1024
"""Of images; what watchers make of them (objects, lines) takes some times that."""
_CHUNK = 500
_CHUNK_BYTES = 256 * 1024
"""Of what is read from the database at a time for one subscriber that is behind."""
_CHANNEL = "nodus_changes"


class Feed:
    """See the module. States: idle (no subscriber yet, no thread) -> reading -> closed.

    Args:
        read: runs a function of a connection on a snapshot; blocks.
    """

    def __init__(self, read: Callable[..., Any]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._recent: list[Change] = []
        # Changes above _floor and up to _cursor are all in _recent.
        self._floor = self._cursor = 0
        self._recent_bytes = 0
        self._bells: dict[asyncio.AbstractEventLoop, _Bell] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)

    def wake(self) -> None:
        """Say that this process committed changes. Cheap; called from writer threads."""
        if self._thread is not None:
            # A full pipe or a closed one: the thread is awake, or gone.
            with contextlib.suppress(OSError):
                os.write(self._wake_w, b"!")

    def close(self) -> None:
        """Stop the thread; subscribers get StoreClosed."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self.wake()
        if thread is not None:
            thread.join()
        self._thread = None
        self._wake_all()
        os.close(self._wake_r)
        os.close(self._wake_w)

    async def subscribe(self, kinds: Collection[str] | None = None, since: int | None = None) -> AsyncIterator[Change]:
        """Yield changes in order, for ever.

        Args:
            kinds: names of the kinds wanted; None means all.
            since: yield changes above this resourceVersion; None starts with what is committed from now on.

        Raises:
            Expired: changes above ``since`` were dropped already, at the start or because the reader fell far behind.
            StoreClosed: the store was closed.
        """
        position = since if since is not None else await self.position()
        wanted = None if kinds is None else frozenset(kinds)
        while True:
            found, position = await self.after(position, wanted)
            for change in found:
                yield change
            if not found:
                await self.wait(position)

    async def position(self) -> int:
        """Return the newest resourceVersion; subscribing since it misses nothing that is committed later."""
        return int(await asyncio.to_thread(self._start))

    async def after(self, rv: int, kinds: Collection[str] | None = None) -> tuple[list[Change], int]:
        """Return the next changes above ``rv`` (at most some hundred) and the number up to which they are complete.

        Raises:
            Expired: as for :meth:`subscribe`.
            StoreClosed: the store was closed.
        """
        if self._thread is None:
            await asyncio.to_thread(self._start)
        with self._lock:
            if self._closed:
                raise StoreClosed("the store is closed")
            if self._floor <= rv <= self._cursor:
                tail = self._recent[bisect_right(self._recent, rv, key=_number) :][:_CHUNK]
                reached = tail[-1].rv if len(tail) == _CHUNK else self._cursor
                return [c for c in tail if kinds is None or c.kind in kinds], reached
        return await asyncio.to_thread(self._read_after, rv, kinds)

    async def wait(self, rv: int, timeout_s: float | None = None) -> bool:
        """Wait until there are changes above ``rv``; False when ``timeout_s`` passed first.

        Raises:
            StoreClosed: the store was closed.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            bell = self._bells.get(loop)
            if bell is None:
                bell = self._bells[loop] = _Bell(loop)
            ready = self._cursor > rv or self._closed
        if not ready and not await bell.wait(timeout_s):
            return False
        if self._closed:
            raise StoreClosed("the store is closed")
        return True

    def _read_after(self, rv: int, kinds: Collection[str] | None) -> tuple[list[Change], int]:
        found, reached = self._read(changes.read_after, rv, kinds=kinds, limit=_CHUNK, most_bytes=_CHUNK_BYTES)
        return found, reached

    def _start(self) -> int:
        """Start the thread when there is none; return the newest resourceVersion."""
        newest = int(self._read(rv_now))
        with self._lock:
            if self._closed:
                raise StoreClosed("the store is closed")
            if self._thread is None:
                self._floor = self._cursor = newest
                self._thread = threading.Thread(target=self._work, name="nodus-store-feed", daemon=True)
                self._thread.start()
        return newest

    def _work(self) -> None:
        while not self._closed:
            try:
                self._catch_up()
                self._wait_for_news()
            except StoreError as error:
                log.warning("the feed of changes can't be read: %s", error.message)
                self._pause()
            except Exception:  # a loop's top: without this thread no watcher would ever wake again
                log.exception("reading the feed of changes failed")
                self._pause()
        self._end()

    def _catch_up(self) -> None:
        while not self._closed:
            try:
                found, reached = self._read_after(self._cursor, None)
            except Expired:
                self._skip()
                return
            if reached == self._cursor:
                return
            whole = len(found) < _CHUNK and sum(change.size for change in found) < _CHUNK_BYTES
            with self._lock:
                self._recent.extend(found)
                self._recent_bytes += sum(change.size for change in found)
                self._cursor = reached
                if len(self._recent) > 2 * _KEEP or self._recent_bytes > 2 * _KEEP_BYTES:
                    self._trim()
            self._wake_all()
            if whole:
                return  # a later commit has woken this thread again

    def _trim(self) -> None:
        """Drop the oldest until what is kept is small enough again."""
        kept, first = 0, len(self._recent)
        while first > 0 and len(self._recent) - first < _KEEP and kept < _KEEP_BYTES:
            first -= 1
            kept += self._recent[first].size
        if first > 0:
            self._floor = self._recent[first - 1].rv
            del self._recent[:first]
        self._recent_bytes = kept

    def _skip(self) -> None:
        """Start over at the newest change, after more went by than is retained; subscribers find out by themselves."""
        newest = int(self._read(rv_now))
        with self._lock:
            self._recent.clear()
            self._recent_bytes = 0
            self._floor = self._cursor = newest
        self._wake_all()

    def _wake_all(self) -> None:
        with self._lock:
            bells = [bell for bell in self._bells.values() if not bell.pending]
            for bell in bells:
                bell.pending = True
        for bell in bells:
            try:
                bell.loop.call_soon_threadsafe(self._ring, bell)
            except RuntimeError:
                # Its loop was closed; nobody waits any more.
                with self._lock:
                    self._bells.pop(bell.loop, None)

    def _ring(self, bell: _Bell) -> None:
        """Wake everybody who waits in this loop; runs there."""
        with self._lock:
            bell.pending = False
        bell.ring()

    def _wait_for_news(self) -> None:
        self._pause()

    def _pause(self) -> None:
        readable(_POLL_S, self._wake_r)
        self._drain()

    def _drain(self) -> bool:
        woken = False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_r, 4096):
                woken = True
        return woken

    def _end(self) -> None:
        """Let go of what the thread holds."""


class PostgresFeed(Feed):
    """A feed that also tells other servers of this one's commits, and hears of theirs, over one connection.

    The NOTIFY is sent after the commit and not within it: PostgreSQL takes a global lock for one in a transaction. Many
    commits make one NOTIFY.
    """

    def __init__(self, read: Callable[..., Any], url: URL) -> None:
        super().__init__(read)
        self._url = url
        self._conn: Any = None

    def _wait_for_news(self) -> None:
        import psycopg  # late: an extra

        try:
            if self._conn is None:
                self._conn = psycopg.connect(self._conninfo(), autocommit=True)
                self._conn.execute(f"LISTEN {_CHANNEL}")
                # What was committed before LISTEN took effect is found by one more look.
                return
            readable(_POLL_S, self._wake_r, self._conn.fileno())
            if self._drain():
                self._conn.execute(f"NOTIFY {_CHANNEL}")
            for _ in self._conn.notifies(timeout=0):
                pass
        except psycopg.Error as error:
            log.warning("the connection that listens for changes was lost: %s", str(error).strip())
            self._end()
            self._pause()

    def _conninfo(self) -> str:
        return self._url.set(drivername="postgresql").render_as_string(hide_password=False)

    def _end(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


class _Bell:
    """What all tasks of one event loop wait for."""

    __slots__ = ("_waiting", "loop", "pending")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.pending = False
        """It will ring in a moment; once is enough."""
        self._waiting: set[asyncio.Future[bool]] = set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait until it rings; False when ``timeout_s`` passed first."""
        waiter: asyncio.Future[bool] = self.loop.create_future()
        self._waiting.add(waiter)
        timer = None if timeout_s is None else self.loop.call_later(timeout_s, _tell, waiter, False)
        try:
            return await waiter
        finally:
            self._waiting.discard(waiter)
            if timer is not None:
                timer.cancel()

    def ring(self) -> None:
        """Wake everybody."""
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            _tell(waiter, True)


def _tell(waiter: asyncio.Future[bool], rung: bool) -> None:
    if not waiter.done():
        waiter.set_result(rung)


def _number(change: Change) -> int:
    return change.rv


def make_feed(url: URL, read: Callable[..., Any]) -> Feed:
    """Return the feed for a database."""
    return PostgresFeed(read, url) if url.get_backend_name() == "postgresql" else Feed(read)
