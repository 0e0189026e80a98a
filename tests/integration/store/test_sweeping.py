"""Which blobs and revisions go, and which stay whatever happens meanwhile."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import KINDS, PROJECT
from nodus.server import retention
from nodus.server.settings import Settings
from nodus.server.store import Object, Store, blobs, objects, sweeping, versions, volumes
from nodus.server.store.volumes import FileEntry


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, retain_revisions=2)


@pytest.fixture
def put(store: Store) -> Callable[[bytes], str]:
    """Stores a blob of the project ``p``."""
    store.write_sync(objects.create, PROJECT, None, "p", {})

    def make(content: bytes) -> str:
        digest = store.blobs.put_bytes(content)
        store.write_sync(blobs.index, "p", digest, len(content))
        return digest

    return make


def create(store: Store, kind: str, name: str, spec: object = None, status: object = None) -> Object:
    return store.write_sync(objects.create, KINDS[kind], "p", name, spec or {}, status=status or {})  # type: ignore[arg-type]


def sweep(store: Store, settings: Settings, clock: FakeClock, days: float = 8) -> retention.Swept:
    clock.advance(days * 86_400)
    return retention.sweep(store, settings, keep_s=0.0)


def test_what_nothing_names_goes_with_its_file(
    store: Store, settings: Settings, clock: FakeClock, put: Callable[[bytes], str]
) -> None:
    digest = put(b"garbage")
    done = sweep(store, settings, clock)
    assert (done.blobs, done.files, done.bytes) == (1, 1, 7)
    assert store.read_sync(blobs.find, "p", digest) is None
    assert not store.blobs.exists(digest)
    assert sweep(store, settings, clock) == retention.Swept()


def test_every_place_that_names_a_blob_keeps_it(
    store: Store, settings: Settings, clock: FakeClock, put: Callable[[bytes], str], tmp_path: Path
) -> None:
    names = ("spec", "status", "annotation", "version", "revision", "older", "upload", "listed")
    kept = {name: put(name.encode()) for name in names}
    whole = put(zlib.compress(json.dumps([{"sha256": kept["listed"]}]).encode()))
    create(store, "Job", "a", {"source": {"blob": f"sha256:{kept['spec']}"}})
    create(store, "Job", "b", status={"outputs": [{"sha256": kept["status"]}], "outputsTotal": {"digest": whole}})
    job = create(store, "Job", "c")
    store.write_sync(objects.update, job, annotations={"note": kept["annotation"]})
    environment = create(store, "Environment", "e", {"package": kept["version"]})
    store.write_sync(versions.put, environment.uid, "1.0.0", environment.spec)
    store.write_sync(objects.update, environment, spec={"package": "other"})
    volume = create(store, "Volume", "v")
    for name in ("older", "revision"):
        store.write_sync(volumes.commit, volume.uid, [FileEntry("f", kept[name], 1)])
    (tmp_path / "uploads").mkdir()
    (tmp_path / "uploads" / "up_1").write_text(json.dumps({"file": ["f", kept["upload"], 1, 420]}))
    assert sweep(store, settings, clock).blobs == 0
    assert all(store.blobs.exists(digest) for digest in (*kept.values(), whole))
    store.write_sync(objects.delete, objects_named(store, "Job", "a"))
    assert sweep(store, settings, clock).blobs == 1
    assert not store.blobs.exists(kept["spec"])


def objects_named(store: Store, kind: str, name: str) -> Object:
    return store.read_sync(objects.get, KINDS[kind], "p", name)


def test_a_blob_is_kept_for_days_after_its_last_use(
    store: Store, settings: Settings, clock: FakeClock, put: Callable[[bytes], str]
) -> None:
    digest = put(b"fresh")
    clock.advance(6 * 86_400)
    assert retention.sweep(store, settings).blobs == 0
    store.write_sync(blobs.touch, "p", digest)
    clock.advance(6 * 86_400)
    assert retention.sweep(store, settings).blobs == 0
    clock.advance(2 * 86_400)
    done = retention.sweep(store, settings)
    assert (done.blobs, done.files) == (1, 0), "the file was written today"


def test_what_is_named_while_it_is_looked_for_stays(
    store: Store, settings: Settings, clock: FakeClock, put: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = put(b"1"), put(b"2"), put(b"3")
    volume = create(store, "Volume", "v")
    clock.advance(86_400)
    look = sweeping.named

    def named(conn: object, candidates: set[str]) -> tuple[set[str], set[str]]:
        found = look(conn, candidates)  # type: ignore[arg-type]
        clock.advance(1)
        create(store, "Job", "late", {"source": {"blob": one}})
        store.write_sync(volumes.commit, volume.uid, [FileEntry("f", two, 1)])
        return found

    monkeypatch.setattr(sweeping, "named", named)
    assert retention.sweep(store, settings, keep_s=0.0).blobs == 1
    assert [store.blobs.exists(digest) for digest in (one, two, three)] == [True, True, False]


def test_files_without_rows_go_unless_they_were_claimed(
    store: Store, settings: Settings, clock: FakeClock, put: Callable[[bytes], str]
) -> None:
    digest = put(b"of a deleted project")
    store.write_sync(objects.delete, store.read_sync(objects.get, PROJECT, None, "p"))
    assert retention.sweep(store, settings, keep_s=3600.0).files == 0, "it was put in place an hour ago at most"
    assert store.blobs.discard(digest, 3600.0) is None
    assert sweep(store, settings, clock).files == 1
    assert store.blobs.claim(digest) is False


def test_a_backup_keeps_everything_for_its_time(
    store: Store, settings: Settings, clock: FakeClock, put: Callable[[bytes], str]
) -> None:
    put(b"garbage")
    with store.blobs.kept() as mine:
        assert mine
        assert sweep(store, settings, clock) == retention.Swept(busy=True)
    assert sweep(store, settings, clock).files == 1


def test_older_revisions_go_but_for_those_that_objects_name(
    store: Store, settings: Settings, clock: FakeClock, put: Callable[[bytes], str], tmp_path: Path
) -> None:
    volume = create(store, "Volume", "v")
    digests = [put(b"%d" % number) for number in range(6)]
    for digest in digests:
        store.write_sync(volumes.commit, volume.uid, [FileEntry("f", digest, 1)])
    create(store, "Job", "by-spec", {"volumes": [{"volume": "v", "mountPath": "/v", "revision": 1}]})
    create(
        store, "Job", "by-pin", {"volumes": [{"volume": "v"}]}, {"phase": "Succeeded", "pinned": {"volumes": {"v": 3}}}
    )
    create(store, "Job", "of-another", {"volumes": [{"volume": "w", "revision": 2}]})
    (tmp_path / "volumes" / volume.uid / "2").mkdir(parents=True)
    done = sweep(store, settings, clock)
    assert [item.revision for item in store.read_sync(volumes.list_, volume.uid)] == [1, 3, 5, 6]
    assert (done.revisions, done.blobs) == (2, 2)
    assert not (tmp_path / "volumes" / volume.uid / "2").exists()
    store.write_sync(objects.delete, objects_named(store, "Job", "by-spec"))
    assert sweep(store, settings, clock).revisions == 1
    unlimited = settings.model_copy(update={"retain_revisions": 0})
    store.write_sync(volumes.commit, volume.uid, [])
    assert sweep(store, unlimited, clock).revisions == 0
