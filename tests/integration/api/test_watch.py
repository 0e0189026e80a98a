"""Watches: replay, resume, selectors, bookmarks, and what is too old."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from nodus.core.errors import AlreadyExists, NotFound
from nodus.core.kinds import JOB
from nodus.server.api import watch
from nodus.server.services import Services
from nodus.server.store import Object, changes, events, objects
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, TABLE, V1, job


def name(event: tuple[str, dict[str, Any]]) -> tuple[str, str]:
    return event[0], event[1]["metadata"]["name"]


async def test_without_a_version_what_is_there_comes_first(api: Api, put: Callable[..., Object]) -> None:
    put("Job", "a")
    async with api.stream(f"{JOBS}?watch=true") as stream:
        assert stream.status == 200
        assert name(await stream.event()) == ("ADDED", "a")
        put("Job", "b")
        assert name(await stream.event()) == ("ADDED", "b")
        await api.patch(f"{JOBS}/b", {"metadata": {"labels": {"x": "y"}}})
        assert name(await stream.event()) == ("MODIFIED", "b")
        await api.ok("DELETE", f"{JOBS}/b")
        assert name(await stream.event()) == ("DELETED", "b")


async def test_from_a_version_every_later_change_comes(api: Api, put: Callable[..., Object]) -> None:
    put("Job", "before")
    since = (await api.ok("GET", JOBS))["metadata"]["resourceVersion"]
    put("Job", "between")
    async with api.stream(f"{JOBS}?watch=true&resourceVersion={since}") as stream:
        assert name(await stream.event()) == ("ADDED", "between")
        put("Job", "after")
        assert name(await stream.event()) == ("ADDED", "after")


async def test_single_object_is_watched_by_its_name(api: Api, put: Callable[..., Object]) -> None:
    since = put("Job", "a").resource_version
    put("Job", "b")
    async with api.stream(f"{JOBS}?watch=true&resourceVersion={since}&fieldSelector=metadata.name=a") as stream:
        await api.patch(f"{JOBS}/b", {"metadata": {"labels": {"x": "y"}}})
        await api.patch(f"{JOBS}/a", {"metadata": {"labels": {"x": "y"}}})
        assert name(await stream.event()) == ("MODIFIED", "a")


async def test_object_that_stops_matching_is_deleted_for_the_watcher(api: Api, put: Callable[..., Object]) -> None:
    put("Job", "a", labels={"team": "x"})
    async with api.stream(f"{JOBS}?watch=true&labelSelector=team=x") as stream:
        assert name(await stream.event()) == ("ADDED", "a")
        await api.patch(f"{JOBS}/a", {"metadata": {"labels": {"team": "y"}}})
        assert name(await stream.event()) == ("DELETED", "a")
        await api.patch(f"{JOBS}/a", {"metadata": {"labels": {"team": "x"}}})
        assert name(await stream.event()) == ("ADDED", "a")


async def test_field_selector_follows_the_status(api: Api, services: Services, put: Callable[..., Object]) -> None:
    uid = put("Job", "a", status={"phase": "Queued"}).uid
    async with api.stream(f"{JOBS}?watch=true&fieldSelector=status.phase=Running") as stream:
        assert await stream.silent()
        services.store.write_sync(objects.update_status, uid, {"phase": "Running"})
        assert name(await stream.event()) == ("ADDED", "a")
        services.store.write_sync(objects.update_status, uid, {"phase": "Succeeded"})
        assert name(await stream.event()) == ("DELETED", "a")


async def test_bookmarks_come_only_when_asked_for(
    api: Api, put: Callable[..., Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BOOKMARK_INTERVAL_S", 0.05)
    version = str(put("Job", "a").resource_version)
    async with api.stream(f"{JOBS}?watch=true") as stream:
        await stream.event()
        assert await stream.silent(0.3)
    async with api.stream(f"{JOBS}?watch=true&allowWatchBookmarks=true") as stream:
        await stream.event()
        type_, shown = await stream.event()
        assert (type_, shown["kind"], shown["apiVersion"]) == ("BOOKMARK", "Job", "nodus.dev/v1")
        assert int(shown["metadata"]["resourceVersion"]) >= int(version)


async def test_bookmarks_come_while_other_kinds_change(
    api: Api, put: Callable[..., Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BOOKMARK_INTERVAL_S", 0.1)
    async with api.stream(f"{JOBS}?watch=true&allowWatchBookmarks=true") as stream:
        event = asyncio.create_task(stream.event())
        for number in range(200):
            put("Volume", f"v{number}")
            await asyncio.sleep(0.01)  # steadily, so that there never is a quiet moment of the interval's length
            if event.done():
                break
        assert (await event)[0] == "BOOKMARK"


async def test_what_is_there_comes_page_by_page_and_each_change_once(
    api: Api, services: Services, put: Callable[..., Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "REPLAY_ITEMS", 2)
    uids = [put("Job", f"j{number:02}").uid for number in range(0, 60, 2)]

    async def write() -> None:
        chosen = random.Random(7)
        for step in range(150):
            action, at = chosen.choice(("touch", "touch", "add", "remove")), chosen.randrange(60)
            if action == "touch":
                with contextlib.suppress(NotFound):
                    await services.store.write(objects.update_status, chosen.choice(uids), {"step": step})
            elif action == "add":
                with contextlib.suppress(AlreadyExists):
                    await services.store.write(objects.create, JOB, "default", f"j{at:02}", {"command": ["true"]})
            else:
                await api.call("DELETE", f"{JOBS}/j{at:02}")

    writing = asyncio.create_task(write())
    streams = [api.stream(f"{JOBS}?watch=true") for _ in range(5)]
    opened = [await stream.__aenter__() for stream in streams]
    await writing
    put("Job", "z-last")
    there = {item["metadata"]["uid"]: item for item in (await api.ok("GET", JOBS))["items"]}
    for stream in opened:
        seen: dict[str, Any] = {}
        newest: dict[str, int] = {}
        while True:
            type_, obj = await stream.event()
            uid, version = obj["metadata"]["uid"], int(obj["metadata"]["resourceVersion"])
            assert version > newest.get(uid, 0), "a change came twice, or an older one after a newer"
            newest[uid] = version
            assert (type_ == "ADDED") == (uid not in seen) or type_ == "DELETED"
            if type_ == "DELETED":
                seen.pop(uid, None)
            else:
                seen[uid] = obj
            if obj["metadata"]["name"] == "z-last":
                break
        assert seen == there
    for stream in streams:
        await stream.__aexit__(None, None, None)


async def test_change_is_encoded_once_for_all_watchers(
    api: Api, put: Callable[..., Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    shown = watch._Watch.shown

    def counted(self: Any, obj: Object, now: Any) -> bytes:
        made.append(obj.name)
        return shown(self, obj, now)

    monkeypatch.setattr(watch._Watch, "shown", counted)
    queries = ["", "&labelSelector=a=b", "&fieldSelector=metadata.name=x", ""]
    streams = [api.stream(f"{JOBS}?watch=true{query}") for query in queries]
    opened = [await stream.__aenter__() for stream in streams]
    put("Job", "x", labels={"a": "b"})
    assert {name(await stream.event()) for stream in opened} == {("ADDED", "x")}
    assert made == ["x"]
    for stream in streams:
        await stream.__aexit__(None, None, None)


async def test_resuming_with_a_selector_over_any_field_sees_what_stopped_matching(
    api: Api, services: Services, put: Callable[..., Object]
) -> None:
    job = put("Job", "a", status={"attempts": 1})
    services.store.write_sync(objects.update_status, job.uid, {"attempts": 2})
    query = f"watch=true&resourceVersion={job.resource_version}&fieldSelector=status.attempts=1"
    async with api.stream(f"{JOBS}?{query}") as stream:
        assert name(await stream.event()) == ("DELETED", "a")


async def test_version_that_is_no_longer_kept_is_an_error_inside_the_stream(
    api: Api, services: Services, put: Callable[..., Object]
) -> None:
    first = put("Job", "a").resource_version
    for number in range(5):
        put("Job", f"b{number}")

    def forget(conn: Any) -> int:
        return changes.prune(conn, keep_s=10**6, keep_rows=1)

    services.store.write_sync(forget)
    async with api.stream(f"{JOBS}?watch=true&resourceVersion={first}") as stream:
        assert stream.status == 200
        type_, shown = await stream.event()
        assert (type_, shown["code"], shown["reason"], shown["kind"]) == ("ERROR", 410, "Expired", "Status")
        assert await stream.line() == b""


async def test_table_watch_sends_one_row_a_change(api: Api, put: Callable[..., Object]) -> None:
    put("Job", "a", status={"phase": "Running"})
    async with api.stream(f"{JOBS}?watch=true", **TABLE) as stream:
        type_, table = await stream.event()
    assert (type_, table["kind"], len(table["rows"])) == ("ADDED", "Table", 1)
    assert table["rows"][0]["cells"][:2] == ["a", "Running"]


async def test_events_are_replayed_and_followed(api: Api, services: Services, put: Callable[..., Object]) -> None:
    found = put("Job", "a")
    services.store.write_sync(events.record, found, "Normal", "Started", "it runs")
    selector = "involvedObject.kind=Job,involvedObject.name=a,involvedObject.namespace=default"
    async with api.stream(f"{V1}/events?watch=true&fieldSelector={selector}") as stream:
        type_, event = await stream.event()
        assert (type_, event["reason"], event["count"], event["involvedObject"]["name"]) == ("ADDED", "Started", 1, "a")
        services.store.write_sync(events.record, found, "Normal", "Started", "it runs")
        type_, event = await stream.event()
        assert (type_, event["count"]) == ("MODIFIED", 2)
        assert event["lastTime"]


async def test_timeout_ends_the_stream_cleanly(api: Api, put: Callable[..., Object]) -> None:
    put("Job", "a")
    async with api.stream(f"{JOBS}?watch=true&timeoutSeconds=0") as stream:
        await stream.event()
        assert await stream.line() == b""


async def test_client_that_leaves_is_noticed_while_nothing_happens(api: Api, services: Services) -> None:
    async with api.stream(f"{JOBS}?watch=true"):
        await asyncio.sleep(0)
    assert services.metrics.watches._value.get() == 0


async def test_stop_of_the_server_ends_the_stream_cleanly(api: Api, services: Services) -> None:
    async with api.stream(f"{JOBS}?watch=true") as stream:
        services.stopping.set()
        assert await stream.line() == b""
        assert stream.ended


async def test_hundred_watchers_see_every_change_in_order(api: Api, put: Callable[..., Object]) -> None:
    streams = [api.stream(f"{JOBS}?watch=true") for _ in range(100)]
    opened = [await stream.__aenter__() for stream in streams]
    try:
        for number in range(20):
            put("Job", f"j{number:02}")
        for stream in opened:
            assert [name(await stream.event())[1] for _ in range(20)] == [f"j{number:02}" for number in range(20)]
    finally:
        for stream in streams:
            await stream.__aexit__(None, None, None)


async def test_get_then_watch_misses_nothing_under_load(api: Api, services: Services) -> None:
    async def write() -> None:
        for number in range(60):
            await services.store.write(objects.create, JOB, "default", f"w{number:02}", {"command": ["true"]})

    writing = asyncio.create_task(write())
    listed = await api.ok("GET", JOBS)
    seen = [item["metadata"]["name"] for item in listed["items"]]
    async with api.stream(f"{JOBS}?watch=true&resourceVersion={listed['metadata']['resourceVersion']}") as stream:
        while len(seen) < 60:
            seen.append(name(await stream.event())[1])
    await writing
    assert seen == [f"w{number:02}" for number in range(60)]


async def test_lines_are_json_objects_one_each(api: Api) -> None:
    await api.ok("POST", JOBS, json=job(command=["two\nlines"]))
    async with api.stream(f"{JOBS}?watch=true") as stream:
        assert json.loads(await stream.line())["object"]["spec"]["command"] == ["two\nlines"]
