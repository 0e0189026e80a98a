"""A watch shows every change once, in order, whatever happens to its list and its streams."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from nodus import errors
from nodus.client import watching
from nodus.client.blocking import iterate_blocking, run_blocking
from nodus.client.resources import Resources
from tests.unit.client.fake_server import Asked, FakeServer, Reply, status

Seen = list[tuple[str, str, int]]


def job(name: str, version: int, uid: str | None = None, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "nodus.dev/v1", "kind": "Job", "spec": {},
        "metadata": {"name": name, "namespace": "default", "uid": uid or name, "resourceVersion": str(version)}
        | ({"labels": labels} if labels else {}),
    }  # fmt: skip


def event(type_: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"


@dataclass
class Store:
    """A collection with its changes, behind a server that breaks off, forgets and repeats."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes: list[tuple[int, bytes]] = field(default_factory=list)
    version: int = 0
    horizon: int = 0
    page: int = 500
    stream_limit: int | None = None
    """Events of one stream before it ends."""
    cut: bool = False
    """Streams end in the middle of a line."""
    uids: Any = field(default_factory=itertools.count)

    def put(self, name: str) -> None:
        """Create or change an object."""
        self.version += 1
        known = self.objects.get(name)
        uid = known["metadata"]["uid"] if known else f"u{next(self.uids)}"
        self.objects[name] = job(name, self.version, uid)
        self.changes.append((self.version, event("MODIFIED" if known else "ADDED", self.objects[name])))

    def remove(self, name: str) -> None:
        """Delete an object."""
        self.version += 1
        gone = self.objects.pop(name)
        gone = job(name, self.version, gone["metadata"]["uid"])
        self.changes.append((self.version, event("DELETED", gone)))

    def __call__(self, asked: Asked) -> Reply:
        return self.stream(asked) if asked.query.get("watch") else self.list(asked)

    def list(self, asked: Asked) -> Reply:
        """Answer with a page; every page carries the first one's version, and shows what is there when it is read."""
        version, after = asked.query.get("continue", f"{self.version}:").split(":")
        names = sorted(name for name in self.objects if name > after)
        metadata = {"resourceVersion": version}
        if len(names) > self.page:
            metadata["continue"] = f"{version}:{names[self.page - 1]}"
        return Reply({"metadata": metadata, "items": [self.objects[name] for name in names[: self.page]]})

    def stream(self, asked: Asked) -> Reply:
        """Answer with the changes after a version, or with the error that they are gone."""
        since = int(asked.query["resourceVersion"])
        if since < self.horizon:
            gone = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"}
            return Reply(event("ERROR", gone))
        lines = [line for version, line in self.changes if version > since]
        if self.stream_limit is None or len(lines) <= self.stream_limit:
            return Reply(b"".join(lines) + event("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}))
        whole = b"".join(lines[: self.stream_limit])
        return Reply(whole + lines[self.stream_limit][:20], cut=True) if self.cut else Reply(whole)


async def take(found: Resources, until: int, **options: Any) -> Seen:
    """Return what a watch shows up to the change of that version."""
    seen: Seen = []
    async with aclosing(found.watch("job", **options)) as changes:
        async for kind, obj in changes:
            seen.append((kind, obj["metadata"]["name"], int(obj["metadata"]["resourceVersion"])))
            if seen[-1][2] >= until:
                return seen
    return seen


def test_present_objects_come_first_and_then_the_stream_from_the_lists_version(server: FakeServer) -> None:
    server.replies = [
        Reply({"metadata": {"resourceVersion": "5"}, "items": [job("a", 3)]}),
        Reply(event("MODIFIED", job("a", 6)) + event("BOOKMARK", {"metadata": {"resourceVersion": "9"}})),
        Reply(event("ADDED", job("b", 12))),
    ]
    seen = run_blocking(take(server.client().resources, 12, labels={"team": "x"}, fields="spec.a=b"))
    assert seen == [("ADDED", "a", 3), ("MODIFIED", "a", 6), ("ADDED", "b", 12)]
    listed, *streams = (asked.query for asked in server.asked)
    assert listed == {"limit": "500", "labelSelector": "team=x", "fieldSelector": "spec.a=b"}
    assert [query["resourceVersion"] for query in streams] == ["5", "9"]
    assert all(query["allowWatchBookmarks"] == "true" for query in streams)


def test_stream_that_breaks_within_a_line_goes_on_behind_the_last_whole_one(server: FakeServer) -> None:
    store = Store(stream_limit=1, cut=True)
    server.script = store
    for name in "abc":
        store.put(name)
    seen = run_blocking(take(server.client().resources, 3, resource_version="0"))
    assert seen == [("ADDED", "a", 1), ("ADDED", "b", 2), ("ADDED", "c", 3)]


async def test_the_same_awaited(server: FakeServer) -> None:
    store = Store(stream_limit=1, cut=True)
    server.script = store
    for name in "abc":
        store.put(name)
    assert [change[1] for change in await take(server.client().resources, 3)] == ["a", "b", "c"]


def test_after_a_410_only_what_changed_is_shown(server: FakeServer) -> None:
    store = Store()
    for name in "abcd":
        store.put(name)
    server.script = store
    source = iterate_blocking(server.client().resources.watch("job"))
    assert [next(source)[1]["metadata"]["name"] for _ in range(4)] == list("abcd")
    store.put("b")
    store.remove("c")
    store.remove("d")
    store.put("d")
    store.put("e")
    store.changes.clear()
    store.horizon = store.version
    seen = [next(source) for _ in range(5)]
    assert [(type_, obj["metadata"]["name"]) for type_, obj in seen] == [
        ("DELETED", "c"), ("DELETED", "d"), ("MODIFIED", "b"), ("ADDED", "d"), ("ADDED", "e"),
    ]  # fmt: skip
    assert seen[0].object["kind"] == "Job"
    source.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("in_stream", [True, False])
def test_version_that_the_caller_gave_and_is_too_old_is_the_callers_to_mend(
    server: FakeServer, in_stream: bool
) -> None:
    gone = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"}
    server.replies = [Reply(event("ERROR", gone)) if in_stream else status("Expired", 410)]
    with pytest.raises(errors.Expired) as raised:
        run_blocking(take(server.client().resources, 1, resource_version="3"))
    assert "List again" in str(raised.value.fix)


def test_refusal_ends_a_watch(server: FakeServer) -> None:
    server.replies = [status("Forbidden", 403)]
    with pytest.raises(errors.Forbidden):
        run_blocking(take(server.client().resources, 1))


def test_timeout_ends_a_quiet_watch(server: FakeServer) -> None:
    server.script = Store()
    assert run_blocking(take(server.client().resources, 1, timeout_s=0.3)) == []
    assert server.asked[-1].query["timeoutSeconds"] == "1"


@pytest.mark.parametrize("part", ["list", "stream"])
def test_timeout_ends_a_watch_whose_server_says_nothing(server: FakeServer, part: str) -> None:
    store, silent = Store(), threading.Event()

    def script(asked: Asked) -> Reply:
        if bool(asked.query.get("watch")) == (part == "stream"):
            silent.wait(5)
        return store(asked)

    server.script = script
    begun = time.monotonic()
    assert run_blocking(take(server.client().resources, 1, timeout_s=0.3)) == []
    assert time.monotonic() - begun < 2
    silent.set()


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_are_told_once_and_in_order(
    server: FakeServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "FIRST_PAUSE_S", 0.0)
    chance = random.Random(seed)
    store = Store(page=3, stream_limit=3, cut=bool(seed % 2))
    names = [f"j{number:02}" for number in range(12)]

    def churn(asked: Asked) -> Reply:
        # Between any two requests of the client the world goes on, and sometimes the server forgets.
        for _ in range(chance.randrange(4)):
            if store.version < 80:
                name = chance.choice(names)
                store.remove(name) if name in store.objects and chance.random() < 0.3 else store.put(name)
        if chance.random() < 0.15 and store.version < 70:
            store.horizon = store.version
            store.changes.clear()
        return store(asked)

    server.script = churn
    told: dict[str, int] = {}
    client = server.client()
    source = iterate_blocking(client.resources.watch("job"))
    while store.version < 80 or told != current(store):
        type_, obj = next(source)
        uid, version = obj["metadata"]["uid"], int(obj["metadata"]["resourceVersion"])
        if type_ == "DELETED":
            assert version >= told.pop(uid)  # what was never shown is never taken away
        else:
            assert (type_ == "MODIFIED") == (uid in told)
            assert version > told.get(uid, 0), "a change came twice or out of order"
            told[uid] = version
    source.close()  # type: ignore[attr-defined]


def current(store: Store) -> dict[str, int]:
    """Return the version of every object by uid."""
    return {o["metadata"]["uid"]: int(o["metadata"]["resourceVersion"]) for o in store.objects.values()}
