"""Following the changes of a collection, each exactly once, whatever happens to the connection.

```
list ──every page──▶ stream from the list's version ──ends or breaks──▶ stream again from the last version seen
  ▲                                                                        │
  └───────────── 410: the server no longer keeps that version ◀────────────┘
```

A list and the stream after it overlap, and so do a broken stream and the next: what a watcher was shown is known by
uid and version, and only what is newer is passed on. After a 410 the new list is compared with it, so that what
changed, came and went meanwhile is passed on as ``MODIFIED``, ``ADDED`` and ``DELETED``.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from nodus.client.http import Api, ConnectionFailed, RequestOptions
from nodus.client.kinds import KindInfo
from nodus.client.transport import Exchange, pause
from nodus.core.errors import Expired, from_status

JsonObject = dict[str, Any]
PAGE = 500
SILENCE_S = 120.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 30.0
LEAST_S = 0.02
"""Less time than this is none: a silence that was waited for to its end may end a little early."""


class Change(NamedTuple):
    """One change of one object.

    Example::

        type_, job = next(client.watch("jobs"))
    """

    type: str
    """``ADDED``, ``MODIFIED`` or ``DELETED``; with selectors, what begins to match is added, what stops is deleted."""
    object: Any
    """The object after the change; its last state when it was deleted."""


class Collection(NamedTuple):
    """Objects of one kind in one place."""

    info: KindInfo
    path: str
    """URL path."""
    selectors: Mapping[str, object]
    """``labelSelector`` and ``fieldSelector``; None values are left out."""


class _BrokenOff(Exception):
    """The stream ended in a way that the next one mends."""


class _Shown(NamedTuple):
    """What is kept of an object that was passed on: enough to say later that it is gone."""

    version: str
    head: JsonObject


class Watch:
    """One watch. Iterate `changes` once.

    Args:
        api: The server.
        collection: What is watched.
        since: Pass on what changed after this resourceVersion; None begins with what is there, as ``ADDED``.
        deadline: End at this time of the monotonic clock; never when None.
    """

    def __init__(self, api: Api, collection: Collection, *, since: str | None, deadline: float | None = None) -> None:
        self._api, self._collection = api, collection
        self._since, self._deadline = since, deadline
        # Begun from a version, what was there before it is not known.
        self._knows_all = since is None
        self._shown: dict[str, _Shown] = {}
        self._failing_since: float | None = None
        self._pause_s = FIRST_PAUSE_S

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yield every change, until the deadline.

        Raises:
            Expired: When ``since`` is too old for the server to say what changed after it.
            NodusError: When the server refuses, or stayed away for longer than the client goes on trying.
        """
        while not self._over():
            try:
                if self._since is None:
                    for change in await self._listed():
                        yield change
                exchange = await self._open()
                async with aclosing(self._read(exchange)) as read:
                    async for change in read:
                        yield change
            except Expired as error:
                if not self._knows_all:
                    error.fix = "List again, and watch from the list's version; or watch without one."
                    raise
                self._since = None
            except _BrokenOff:
                pass  # what it did not say any more is asked for again
            except ConnectionFailed:
                if not self._over():
                    raise  # it stayed away for longer than the client goes on trying
            await self._rest()

    # ---------------------------------------------------------------------------------------------------- listing
    async def _listed(self) -> list[Change]:
        """List everything and return how it differs from what was shown; the stream goes on from there."""
        listed, self._since = await list_all(self._api, self._collection, left_s=self._left_s())
        found = [change for item in listed if (change := self._news("ADDED", item)) is not None]
        here = {_identity(item) for item in listed}
        gone = [Change("DELETED", self._shown.pop(uid).head) for uid in list(self._shown) if uid not in here]
        # What is gone comes first: its name may be another object's by now.
        return gone + found

    # ------------------------------------------------------------------------------------------------- streaming
    async def _open(self) -> Exchange:
        left_s = self._left_s()
        query = {
            **self._collection.selectors,
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": self._since,
            "timeoutSeconds": None if left_s is None else max(1, math.ceil(left_s)),
        }
        options: RequestOptions = {"query": query, "timeout_s": SILENCE_S} | _within(left_s, SILENCE_S)
        return await self._api.stream("GET", self._collection.path, **options)

    async def _read(self, exchange: Exchange) -> AsyncGenerator[Change, None]:
        try:
            async with aclosing(self._api.lines_of(exchange)) as lines:
                async for line in lines:
                    type_, item = self._decoded(line)
                    change = None if type_ == "BOOKMARK" else self._news(type_, item)
                    # Only when this version was passed on may the next stream begin behind it.
                    if change is not None:
                        yield change
                    self._since = _version(item) or self._since
                    if self._over():
                        return
        except ConnectionFailed as error:
            raise _BrokenOff from error

    def _decoded(self, line: bytes) -> tuple[str, JsonObject]:
        """Return an event's type and object.

        Raises:
            NodusError: What an ERROR event says, if trying again is of no use.
            _BrokenOff: When it is, or when the line is no whole event: the stream ended within it.
        """
        try:
            event = json.loads(line)
            type_, item = str(event["type"]), dict(event["object"])
        except (ValueError, KeyError, TypeError) as error:
            raise _BrokenOff from error
        if type_ == "ERROR":
            failure = from_status(item, int(item.get("code") or 500))
            if not failure.retryable or self._out_of_patience():
                raise failure
            raise _BrokenOff from failure
        self._failing_since, self._pause_s = None, FIRST_PAUSE_S
        return type_, item

    def _news(self, type_: str, item: JsonObject) -> Change | None:
        """Return the change as the watcher should see it; None when it was shown that or something newer."""
        uid, version = _identity(item), _version(item)
        shown = self._shown.get(uid)
        if type_ == "DELETED":
            if shown is None:
                return None if self._knows_all else Change(type_, item)
            if _newer(shown.version, version):
                return None
            del self._shown[uid]
            return Change(type_, item)
        if shown is not None and not _newer(version, shown.version):
            return None
        self._shown[uid] = _Shown(version, _head(item))
        if shown is not None:
            return Change("MODIFIED", item)
        return Change("ADDED" if self._knows_all else type_, item)

    # -------------------------------------------------------------------------------------------------- patience
    def _left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _over(self) -> bool:
        left_s = self._left_s()
        return left_s is not None and left_s < LEAST_S

    def _out_of_patience(self) -> bool:
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        return now - self._failing_since > self._api.retry.budget_s

    async def _rest(self) -> None:
        """Wait before the next try, longer each time that nothing came."""
        left_s = self._left_s()
        await pause(self._pause_s if left_s is None else min(self._pause_s, left_s))
        self._pause_s = min(LAST_PAUSE_S, self._pause_s * 2)


def _within(left_s: float | None, silence_s: float) -> RequestOptions:
    """Return the options that end a request when the time is up."""
    return {} if left_s is None else {"timeout_s": max(LEAST_S, min(silence_s, left_s)), "budget_s": left_s}


async def list_all(api: Api, collection: Collection, *, limit: int | None = None, left_s: float | None = None) -> Any:
    """Return every object of a collection, following pages, and the version to watch from.

    Args:
        api: The server.
        collection: What is listed.
        limit: Stop after this many.
        left_s: Give up after so many seconds.
    """
    info = collection.info
    query: dict[str, object] = {**collection.selectors, "limit": min(PAGE, limit or PAGE)}
    items: list[JsonObject] = []
    version: str | None = None
    while True:
        options: RequestOptions = {"query": query} | _within(left_s, api.timeout_s)
        page = await api.call("GET", collection.path, **options)
        metadata = page.get("metadata") or {}
        # The first page's: what changed on it while the others were read comes after it.
        version = version or str(metadata.get("resourceVersion") or "") or None
        for item in page.get("items") or []:
            # Kubernetes lists leave kind and apiVersion to the list; a lone object needs its own.
            items.append({"apiVersion": info.api_version, "kind": info.kind} | item)
        query["continue"] = metadata.get("continue")
        if not query["continue"] or (limit is not None and len(items) >= limit):
            return items[:limit], version


def _identity(item: JsonObject) -> str:
    metadata = item.get("metadata") or {}
    return str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}")


def _version(item: JsonObject) -> str:
    return str((item.get("metadata") or {}).get("resourceVersion") or "")


def _newer(version: str, than: str) -> bool:
    """Return whether a version comes after another: ours are numbers, a stranger's are only known to differ."""
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than


def _head(item: JsonObject) -> JsonObject:
    metadata = item.get("metadata") or {}
    kept = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion") if key in metadata}
    return {"apiVersion": item.get("apiVersion"), "kind": item.get("kind"), "metadata": kept}
