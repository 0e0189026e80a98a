"""Events, manifests, the blob index, volume revisions, API keys, versions and secret values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from nodus.core.clock import FakeClock
from nodus.core.errors import NotFound
from nodus.core.kinds import EVENT, KINDS, PROJECT
from nodus.server.store import (
    Object,
    Store,
    blobs,
    changes,
    events,
    failures,
    keys,
    manifests,
    objects,
    secret_values,
    sweeping,
    versions,
    volumes,
)
from nodus.server.store.volumes import FileEntry

MakeJob = Callable[..., Object]


def test_a_repeated_event_is_counted(store: Store, make_job: MakeJob, clock: FakeClock) -> None:
    job = make_job("j")
    store.write_sync(events.record, job, "Warning", "Failed", "no space")
    clock.advance(60)
    again = store.write_sync(events.record, job, "Warning", "Failed", "no space")
    store.write_sync(events.record, job, "Normal", "Started", "it runs")
    found = store.read_sync(objects.list_, EVENT, None, fields="involvedObject.name=j,involvedObject.kind=Job").items
    assert len(found) == 2
    assert again.to_wire() == {
        "apiVersion": "nodus.dev/v1",
        "kind": "Event",
        "metadata": again.to_wire()["metadata"],
        "type": "Warning",
        "reason": "Failed",
        "message": "no space",
        "count": 2,
        "firstTime": "2026-01-01T00:00:00Z",
        "lastTime": "2026-01-01T00:01:00Z",
        "involvedObject": {
            "apiVersion": "nodus.dev/v1",
            "kind": "Job",
            "name": "j",
            "namespace": "default",
            "uid": job.uid,
        },
    }


def test_events_of_a_reused_name_are_told_apart(store: Store, make_job: MakeJob) -> None:
    first = make_job("j")
    store.write_sync(events.record, first, "Normal", "Started", "x")
    store.write_sync(objects.delete, first)
    assert store.write_sync(events.record, make_job("j"), "Normal", "Started", "x").spec["count"] == 1


def test_old_events_go_and_repeated_ones_stay(store: Store, make_job: MakeJob, clock: FakeClock) -> None:
    job = make_job("j")
    for number in range(6):
        store.write_sync(events.record, job, "Normal", "Step", str(number))
    clock.advance(events.RETAIN_S + 1)
    store.write_sync(events.record, job, "Normal", "Step", "0")
    assert [store.write_sync(events.prune, batch=4) for _ in range(3)] == [4, 1, 0]
    assert [event.spec["message"] for event in store.read_sync(objects.list_, EVENT, None).items] == ["0"]


def test_events_are_bounded_by_rows(store: Store, make_job: MakeJob) -> None:
    job = make_job("j")
    for number in range(6):
        store.write_sync(events.record, job, "Normal", "Step", str(number))
    store.write_sync(events.prune, keep_rows=2)
    left = {event.spec["message"] for event in store.read_sync(objects.list_, EVENT, None).items}
    assert left == {"4", "5"}


def test_the_first_manifest_stays(store: Store) -> None:
    first = {"tasks": [{"id": "t1", "prompt": "é\0", "answer": 4}]}
    assert store.read_sync(manifests.get, "sha256:e", "train", 42) is None
    assert store.write_sync(manifests.put, "sha256:e", "train", 42, first) == first
    assert store.write_sync(manifests.put, "sha256:e", "train", 42, {"tasks": []}) == first
    assert store.write_sync(manifests.put, "sha256:e", "train", 43, {"tasks": []}) == {"tasks": []}
    assert store.read_sync(manifests.get, "sha256:e", "train", 42) == first


def test_two_servers_that_list_tasks_at_once_agree(open_store: Callable[[], Store]) -> None:
    stores = [open_store(), open_store()]

    def put(pair: tuple[int, Store]) -> list[object]:
        return [pair[1].write_sync(manifests.put, "sha256:e", "train", seed, pair[0]) for seed in range(30)]

    with ThreadPoolExecutor(2) as threads:
        ours, theirs = threads.map(put, enumerate(stores))
    assert ours == theirs


def test_the_blob_index_knows_what_was_used_when(store: Store, clock: FakeClock) -> None:
    digests = [store.blobs.put_bytes(data) for data in (b"old", b"used")]
    store.write_sync(objects.create, PROJECT, None, "p", {})
    for digest in digests:
        store.write_sync(blobs.index, "p", digest, 4, "text/plain")
    clock.advance(100)
    store.write_sync(blobs.touch, "p", "sha256:" + digests[1])
    assert store.read_sync(blobs.find, "p", digests[0]) == blobs.BlobInfo(digests[0], 4, "text/plain")
    assert store.read_sync(sweeping.unused, 50, 10) == [digests[0]]
    store.write_sync(blobs.index, "p", digests[0], 4)
    assert store.read_sync(sweeping.unused, 50, 10) == []


def test_a_blob_of_two_projects_is_one_file_and_belongs_to_both(store: Store, clock: FakeClock) -> None:
    one, two = (store.write_sync(objects.create, PROJECT, None, name, {}) for name in ("one", "two"))
    digest = store.blobs.put_bytes(b"same")
    store.write_sync(blobs.index, "one", digest, 4)
    assert store.read_sync(blobs.find, "two", digest) is None
    clock.advance(100)
    store.write_sync(blobs.index, two.name, digest, 4)
    assert store.read_sync(sweeping.unused, 50, 10) == [], "one of them used it lately"

    store.write_sync(objects.delete, one)
    store.write_sync(objects.create, PROJECT, None, "one", {})
    assert store.read_sync(blobs.find, "one", digest) is None, "a name that is given again inherits nothing"
    assert store.read_sync(blobs.find, "two", digest) is not None
    with pytest.raises(NotFound):
        store.write_sync(blobs.index, "three", digest, 4)


def test_the_horizon_of_changes_never_goes_back(store: Store, clock: FakeClock) -> None:
    for number in range(3):
        store.write_sync(objects.create, PROJECT, None, f"p{number}", {})

    def prune_after_another_server_did(conn: Connection) -> int:
        conn.execute(text("UPDATE sequences SET value = 99 WHERE name = 'pruned'"))
        changes.prune(conn, keep_rows=1)
        return changes.horizon(conn)

    assert store.write_sync(prune_after_another_server_did) == 99


def test_volume_revisions_count_up_and_never_change(store: Store) -> None:
    volume = store.write_sync(objects.create, KINDS["Volume"], "default", "data", {})
    assert store.read_sync(volumes.latest, volume.uid) is None
    files = [FileEntry("b.txt", "2" * 64, 20), FileEntry("a.txt", "1" * 64, 10, 0o755)]
    first = store.write_sync(volumes.commit, volume.uid, files)
    second = store.write_sync(volumes.commit, volume.uid, [])
    same = store.write_sync(volumes.commit, volume.uid, reversed(files))
    assert (first.revision, first.files, first.size_bytes) == (1, 2, 30)
    assert (second.revision, second.files) == (2, 0)
    assert (same.revision, same.snapshot) == (3, first.snapshot)
    assert store.read_sync(volumes.list_, volume.uid) == [first, second, same]
    assert store.read_sync(volumes.latest, volume.uid) == same
    assert store.read_sync(volumes.tree, volume.uid, 1) == sorted(files)
    with pytest.raises(NotFound, match="no revision 9"):
        store.read_sync(volumes.tree, volume.uid, 9)
    with pytest.raises(NotFound):
        store.read_sync(volumes.tree, volume.uid, 2**40)


def test_an_api_key_is_found_by_its_hash_until_it_goes(store: Store, clock: FakeClock) -> None:
    member = store.write_sync(objects.create, KINDS["Member"], None, "ada", {"role": "Owner"})
    key = store.write_sync(objects.create, KINDS["APIKey"], None, "ci", {"scopes": ["*"]})
    later = clock.now() + timedelta(hours=1)
    store.write_sync(keys.add, key.uid, "d1", 1, member.uid, later)
    found = store.read_sync(keys.find, ["d2", "d1"])
    assert found == (key, keys.KeyRecord("d1", 1, member.uid, later, None))
    assert not found[1].expired(clock.now())
    assert found[1].expired(later)
    store.write_sync(keys.rehash, key.uid, "d2", 2)
    store.write_sync(keys.used, key.uid)
    assert store.read_sync(keys.find, ["d1"]) is None
    assert store.read_sync(keys.find, ["d2"]) == (key, keys.KeyRecord("d2", 2, member.uid, later, clock.now()))
    store.write_sync(keys.expire, key.uid, clock.now())
    found = store.read_sync(keys.find, ["d2"])
    assert found is not None
    assert found[1].expired(clock.now())
    store.write_sync(objects.delete, key)
    assert store.read_sync(keys.find, ["d2"]) is None


async def test_an_answer_is_remembered_until_anything_is_committed(open_store: Callable[[], Store]) -> None:
    here, there = open_store(), open_store()
    reads: list[str] = []

    def names(conn: Connection, prefix: str) -> list[str]:
        reads.append(prefix)
        return [obj.name for obj in objects.list_(conn, KINDS["Project"], None).items if obj.name.startswith(prefix)]

    async def ask() -> list[str]:
        return await here.read_memo(names, "p")

    assert await asyncio.gather(*(ask() for _ in range(10))) == [[]] * 10
    once = len(reads)
    await here.write(objects.create, KINDS["Project"], None, "p1", {})
    assert await ask() == ["p1"]
    # Another process counts as well.
    await there.write(objects.create, KINDS["Project"], None, "p2", {})
    assert await ask() == ["p1", "p2"]
    if here.dialect == "sqlite":
        assert await ask() == ["p1", "p2"]
        assert (once, len(reads)) == (1, 3)


async def test_a_failed_answer_is_not_remembered(store: Store) -> None:
    tries: list[int] = []

    def fail_once(conn: Connection) -> int:
        tries.append(1)
        if len(tries) == 1:
            raise NotFound("not yet")
        return len(tries)

    with pytest.raises(NotFound):
        await store.read_memo(fail_once)
    assert await store.read_memo(fail_once) == 2


def test_versions_stay_resolvable(store: Store) -> None:
    env = store.write_sync(objects.create, KINDS["Environment"], "default", "arith", {"version": "1.0.0"})
    store.write_sync(versions.put, env.uid, "1.0.0", {"a": 1})
    store.write_sync(versions.put, env.uid, "1.1.0", {"a": 2})
    assert store.read_sync(versions.find, env.uid, "1.0.0") == {"a": 1}
    assert store.read_sync(versions.find, env.uid, "9") is None
    assert store.read_sync(versions.list_, env.uid) == ["1.0.0", "1.1.0"]


def test_secret_values_have_versions(store: Store) -> None:
    secret = store.write_sync(objects.create, KINDS["Secret"], "default", "hf", {})
    for version in (1, 2, 3):
        store.write_sync(secret_values.put, secret.uid, version, f"sealed {version}")
    assert store.read_sync(secret_values.get, secret.uid) == (3, "sealed 3")
    assert store.read_sync(secret_values.get, secret.uid, 1) == (1, "sealed 1")
    store.write_sync(secret_values.prune, secret.uid, 2)
    assert [version for version, _ in store.read_sync(secret_values.versions, secret.uid)] == [2, 3]
    with pytest.raises(NotFound):
        store.read_sync(secret_values.get, secret.uid, 1)


def test_failed_passes_are_counted_until_one_goes_well_or_the_object_goes(
    store: Store, make_job: MakeJob, clock: FakeClock
) -> None:
    job, since = make_job("j"), clock.now()
    store.write_sync(failures.note, job.uid)
    clock.advance(60)
    assert store.write_sync(failures.note, job.uid) == store.read_sync(failures.find, job.uid) == (2, since)
    store.write_sync(failures.clear, job.uid)
    assert store.read_sync(failures.find, job.uid) is None
    store.write_sync(failures.note, job.uid)
    store.write_sync(objects.delete, job)
    assert store.write_sync(failures.note, job.uid) is None
    assert store.read_sync(failures.find, job.uid) is None
