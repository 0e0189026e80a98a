"""Volumes through the API: uploads whole and in pieces, revisions, limits, who may write."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from nodus.server.services import Services
from nodus.server.store import Object, objects, partials
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import V1, VOLUMES, causes

LARGE = bytes(range(256)) * 10_000
SHA256 = hashlib.sha256(LARGE).hexdigest()


async def volume(api: Api, name: str = "v", **spec: Any) -> str:
    await api.ok("POST", VOLUMES, json={"metadata": {"name": name}, "spec": spec})
    return f"{VOLUMES}/{name}"


async def write(api: Api, path: str, files: dict[str, bytes], removed: tuple[str, ...] = ()) -> int:
    begun = await api.ok("POST", f"{path}/uploads", json={"mode": "Write"})
    for name, data in files.items():
        await api.ok("PUT", f"{path}/uploads/{begun['id']}/files", params={"path": name}, content=data)
    for name in removed:
        await api.ok("DELETE", f"{path}/uploads/{begun['id']}/files", params={"path": name})
    revision: int = (await api.ok("PUT", f"{path}/uploads/{begun['id']}", json={"commit": {}}))["revision"]
    return revision


async def listed(api: Api, volume: str, **query: Any) -> dict[str, int]:
    return {item["path"]: item["size"] for item in (await api.ok("GET", f"{volume}/files", params=query))["items"]}


async def test_upload_is_seen_whole_and_only_once_committed(api: Api) -> None:
    path = await volume(api)
    begun = await api.ok("POST", f"{path}/uploads", json={"mode": "Write"})
    await api.ok("PUT", f"{path}/uploads/{begun['id']}/files", params={"path": "a/b.txt"}, content=b"12345")
    assert await listed(api, path) == {}
    assert (await api.ok("GET", path))["status"]["revision"] == 0

    assert (await api.ok("PUT", f"{path}/uploads/{begun['id']}", json={"commit": {}}))["revision"] == 1
    assert await listed(api, path) == {"a/b.txt": 5}
    status = (await api.ok("GET", path))["status"]
    assert (status["phase"], status["revision"], status["used"]) == ("Ready", 1, "5")


async def test_revisions_build_on_each_other_and_stay_readable(api: Api, anonymous: Api) -> None:
    path = await volume(api)
    assert await write(api, path, {"a": b"1", "d/b": b"22"}) == 1
    assert await write(api, path, {"a": b"333", "c": b""}, removed=("d",)) == 2

    assert await listed(api, path) == {"a": 3, "c": 0}
    assert await listed(api, path, revision=1) == {"a": 1, "d/b": 2}
    assert await listed(api, path, revision=1, path="d") == {"d/b": 2}
    answer = await api.call("GET", f"{path}/files", params={"path": "a", "revision": 1})
    assert answer.status_code == 302
    assert (await anonymous.call("GET", answer.headers["Location"])).content == b"1"
    revisions = (await api.ok("GET", f"{path}/revisions"))["items"]
    assert [(item["revision"], item["files"], item["bytes"]) for item in revisions] == [(2, 2, 3), (1, 2, 3)]
    await api.fails(404, "NotFound", "GET", f"{path}/files?revision=9")
    await api.fails(404, "NotFound", "GET", f"{path}/files?path=nope")


async def test_commit_repeated_gives_the_same_revision(api: Api) -> None:
    path = await volume(api)
    begun = await api.ok("POST", f"{path}/uploads", json={"mode": "Write"})
    for _ in range(2):
        assert (await api.ok("PUT", f"{path}/uploads/{begun['id']}", json={"commit": {}}))["revision"] == 1


async def test_uploads_at_the_same_time_keep_each_others_files(api: Api) -> None:
    path = await volume(api)
    first = await api.ok("POST", f"{path}/uploads", json={})
    second = await api.ok("POST", f"{path}/uploads", json={})

    async def put(upload: dict[str, Any], name: str) -> None:
        await api.ok("PUT", f"{path}/uploads/{upload['id']}/files", params={"path": name}, content=b"1")

    await asyncio.gather(
        *(put(upload, f"{name}/{n}") for upload, name in ((first, "a"), (second, "b")) for n in range(9))
    )
    for upload in (first, second):
        await api.ok("PUT", f"{path}/uploads/{upload['id']}", json={"commit": {}})
    assert len(await listed(api, path)) == 18


async def test_commit_answered_once_is_not_made_again_after_a_crash(api: Api, services: Services) -> None:
    path = await volume(api)
    begun = await api.ok("POST", f"{path}/uploads", json={})
    journal = services.settings.data_dir / "uploads" / begun["id"]
    before = journal.read_bytes()
    for _ in range(2):
        assert (await api.ok("PUT", f"{path}/uploads/{begun['id']}", json={"commit": {}}))["revision"] == 1
        journal.write_bytes(before)  # the server died before it dropped the journal
    assert (await api.ok("GET", path))["status"]["revision"] == 1


async def test_half_written_line_of_an_upload_is_skipped(api: Api, services: Services) -> None:
    path = await volume(api)
    begun = await api.ok("POST", f"{path}/uploads", json={})
    with (services.settings.data_dir / "uploads" / begun["id"]).open("ab") as journal:
        journal.write(b'\n{"file": ["lost", "00')
    await api.ok("PUT", f"{path}/uploads/{begun['id']}/files", params={"path": "kept"}, content=b"1")
    await api.ok("PUT", f"{path}/uploads/{begun['id']}", json={"commit": {}})
    assert await listed(api, path) == {"kept": 1}
    await api.fails(404, "NotFound", "PUT", f"{path}/uploads/{begun['id']}/files?path=late", content=b"1")


async def test_path_can_not_be_a_file_and_a_directory(api: Api) -> None:
    path = await volume(api)
    await write(api, path, {"a": b"1"})
    begun = await api.ok("POST", f"{path}/uploads", json={})
    await api.ok("PUT", f"{path}/uploads/{begun['id']}/files", params={"path": "a/b"}, content=b"1")
    await api.fails(400, "BadRequest", "PUT", f"{path}/uploads/{begun['id']}", json={"commit": {}})
    await api.ok("DELETE", f"{path}/uploads/{begun['id']}/files", params={"path": "a"})
    await api.ok("PUT", f"{path}/uploads/{begun['id']}/files", params={"path": "a/b"}, content=b"1")
    await api.ok("PUT", f"{path}/uploads/{begun['id']}", json={"commit": {}})
    assert await listed(api, path) == {"a/b": 1}


async def test_clear_with_a_key_is_done_once(api: Api) -> None:
    path = await volume(api)
    for _ in range(2):
        answer = await api.ok("POST", f"{path}/uploads", json={"mode": "Clear"}, headers={"Idempotency-Key": "k"})
        assert answer == {"revision": 1}


async def test_clear_commits_an_empty_revision(api: Api) -> None:
    path = await volume(api)
    await write(api, path, {"a": b"1"})
    assert (await api.ok("POST", f"{path}/uploads", json={"mode": "Clear"}))["revision"] == 2
    assert await listed(api, path) == {}


async def test_volume_holds_no_more_than_its_size(api: Api) -> None:
    path = await volume(api, size="1Ki")
    uploads, reason = f"{path}/uploads", "RequestEntityTooLarge"
    await api.fails(413, reason, "POST", uploads, json={"bytes": 1025})
    begun = await api.ok("POST", uploads, json={"mode": "Write"})
    files = f"{uploads}/{begun['id']}/files"
    await api.fails(413, reason, "PUT", files, params={"path": "a"}, content=b"x" * 1025)
    await api.fails(413, reason, "POST", files, json={"files": [declared("a", b"x" * 1025)]})
    query = {"path": "a", "sha256": SHA256, "size": 1025, "offset": 0}
    await api.fails(413, reason, "PUT", files, params=query, content=b"x")
    for name in "ab":
        await api.ok("PUT", files, params={"path": name}, content=b"x" * 600)
    refused = await api.fails(413, reason, "PUT", f"{uploads}/{begun['id']}", json={"commit": {}})
    assert "1200 bytes" in refused["message"]
    assert "spec.size is 1024 (1Ki)" in refused["message"]


async def test_read_only_volumes_and_foreign_uploads_are_refused(api: Api) -> None:
    readonly = await volume(api, "r", accessMode="ReadOnlyMany")
    await api.fails(409, "Conflict", "POST", f"{readonly}/uploads", json={"mode": "Write"})
    await api.fails(400, "BadRequest", "POST", f"{readonly}/uploads", json={"mode": "Sideways"})
    one, other = await volume(api, "one"), await volume(api, "other")
    begun = await api.ok("POST", f"{one}/uploads", json={})
    await api.fails(404, "NotFound", "PUT", f"{other}/uploads/{begun['id']}", json={"commit": {}})
    await api.fails(400, "BadRequest", "PUT", f"{one}/uploads/{begun['id']}", json={})


async def test_wrong_digest_of_a_file_is_refused(api: Api) -> None:
    path = await volume(api)
    begun = await api.ok("POST", f"{path}/uploads", json={})
    query = {"path": "a", "sha256": "0" * 64}
    await api.fails(412, "SHA256Mismatch", "PUT", f"{path}/uploads/{begun['id']}/files", params=query, content=b"x")


BAD_SOURCES: list[tuple[Any, str, str]] = [
    ({}, "spec.source", "is empty"),
    ({"url": "https://a/b", "git": {"repo": "https://a/b"}}, "spec.source", "one source is possible"),
    ({"url": "file:///etc/passwd"}, "spec.source.url.url", "is no address"),
    ({"url": "ftp://a/b"}, "spec.source.url.url", "is no address"),
    ({"url": "https://[::1"}, "spec.source.url.url", "is no address"),
    ({"url": "https:///b"}, "spec.source.url.url", "is no address"),
    ({"url": "https://user:pass-word@a/b"}, "spec.source.url.url", "must not hold a user name"),
    ({"url": {"url": "https://a/b", "sha256": "x"}}, "spec.source.url.sha256", "match"),
    ({"url": {"url": "https://a/b", "extract": "Perhaps"}}, "spec.source.url.extract", "None"),
    ({"git": {"repo": "git@github.com:a/b"}}, "spec.source.git.repo", "is no address"),
    ({"git": {"repo": "ssh://a/b"}}, "spec.source.git.repo", "is no address"),
    ({"git": {"repo": "ext::sh -c true"}}, "spec.source.git.repo", "is no address"),
    ({"git": {"repo": "https://a/b", "ref": "--upload-pack=x"}}, "spec.source.git.ref", "is no commit"),
    ({"git": {"repo": "https://a/b", "path": "a/../.."}}, "spec.source.git.path", "leads out"),
    ({"git": {"repo": "https://a/b", "secret": "absent"}}, "spec.source.git.secret", "no secret 'absent'"),
    ({"s3": {"uri": "https://a/b"}}, "spec.source.s3.uri", "match"),
    ({"s3": {"uri": "s3://UPPER/b"}}, "spec.source.s3.uri", "is no name of a bucket"),
    ({"s3": {"uri": "s3://bucket/b", "connection": "c"}}, "spec.source.s3.connection", "no Connections"),
    ({"huggingface": {"repo": "just-a-name"}}, "spec.source.huggingface.repo", "OWNER/NAME"),
    ({"huggingface": {"repo": "../../etc"}}, "spec.source.huggingface.repo", "OWNER/NAME"),
    ({"connectionQuery": {"connection": "c"}}, "spec.source.connectionQuery", "no Connections"),
]


async def test_sources_that_can_not_be_are_refused(api: Api) -> None:
    for source, field, words in BAD_SOURCES:
        body = {"metadata": {"name": "v"}, "spec": {"source": source}}
        status = await api.fails(422, "Invalid", "POST", VOLUMES, json=body)
        assert words in causes(status)[field]
        assert "pass-word" not in str(status)


async def test_sources_are_taken_in_every_form(api: Api) -> None:
    for number, source in enumerate(
        [
            {"url": "https://example.com/a.tar.gz"},
            {"url": {"url": "http://example.com/a", "sha256": "0" * 64, "extract": "None"}},
            {"git": {"repo": "https://example.com/a/b.git", "ref": "v1.0"}},
            {"s3": {"uri": "s3://bucket/prefix/", "endpoint": "http://minio:9000", "connection": None}},
            {"huggingface": {"repo": "datasets/acme/chats"}},
        ]
    ):
        body = {"metadata": {"name": f"v{number}"}, "spec": {"source": source}}
        created = await api.ok("POST", VOLUMES, json=body)
        assert created["status"]["phase"] == "Pending"
        assert created["spec"]["source"] == source
        path = f"{VOLUMES}/v{number}"
        await api.fails(409, "Conflict", "POST", f"{path}/uploads", json={})
        changed = await api.patch(path, {"spec": {"source": {"library": "x"}}})
        assert changed.json()["reason"] == "FieldImmutable"


async def test_size_never_falls_below_what_is_held(api: Api) -> None:
    path = await volume(api)
    await write(api, path, {"a": b"x" * 2000})
    refused = await api.patch(path, {"spec": {"size": "1Ki"}})
    assert (refused.status_code, "2000 bytes (2Ki)" in refused.text) == (422, True)
    assert (await api.patch(path, {"spec": {"size": "2Ki"}})).status_code == 200
    for size in ("0", "many", "-1Gi"):
        assert (await api.patch(path, {"spec": {"size": size}})).status_code == 422


# In pieces ----------------------------------------------------------------------------------------------------


def declared(path: str, data: bytes, **changes: Any) -> dict[str, Any]:
    return {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}


async def begin(api: Api, path: str) -> str:
    return f"{path}/uploads/{(await api.ok('POST', f'{path}/uploads', json={}))['id']}"


async def missing(api: Api, upload: str, *files: dict[str, Any]) -> list[tuple[str, int]]:
    answer = await api.ok("POST", f"{upload}/files", json={"files": list(files)})
    return [(item["path"], item["offset"]) for item in answer["items"]]


async def piece(api: Api, upload: str, offset: int, content: Any, path: str = "large", **changes: Any) -> Any:
    query = {"path": path, "sha256": SHA256, "size": len(LARGE), "offset": offset, **changes}
    return await api.call("PUT", f"{upload}/files", params=query, content=content)


async def test_file_arrives_in_pieces_over_several_uploads(api: Api, anonymous: Api) -> None:
    path = await volume(api)
    first = await begin(api, path)
    assert await missing(api, first, declared("large", LARGE)) == [("large", 0)]
    answer = await piece(api, first, 0, LARGE[:1_000_000])
    assert (answer.status_code, answer.json()["offset"]) == (202, 1_000_000)

    second = await begin(api, path)  # of a client that knows nothing of the first
    assert await missing(api, second, declared("d/large", LARGE, mode="755")) == [("d/large", 1_000_000)]
    assert (await piece(api, second, 900_000, LARGE[900_000:2_000_000])).json()["offset"] == 2_000_000
    for _ in range(2):  # as when the answer was lost
        answer = await piece(api, second, 2_000_000, LARGE[2_000_000:], path="d/large", mode="755")
        assert (answer.status_code, answer.json()["offset"]) == (201, len(LARGE))
    await api.ok("PUT", second, json={"commit": {}})
    assert await listed(api, path) == {"d/large": len(LARGE)}
    got = await api.call("GET", f"{path}/files", params={"path": "d/large"})
    assert (await anonymous.call("GET", got.headers["Location"])).content == LARGE
    assert await missing(api, first, declared("large", LARGE)) == []
    await api.ok("PUT", first, json={"commit": {}})
    assert sorted(await listed(api, path)) == ["d/large", "large"]


async def test_what_arrived_before_the_client_went_away_is_kept(api: Api, services: Services) -> None:
    path = await volume(api)
    upload = await begin(api, path)

    async def breaking() -> AsyncIterator[bytes]:
        yield LARGE[:1_500_000]
        raise ConnectionError

    assert (await piece(api, upload, 0, breaking())).status_code >= 400
    services.store.blobs.sweep()  # as a restart does
    assert await missing(api, upload, declared("large", LARGE)) == [("large", 1_500_000)]


async def test_altered_pieces_are_dropped_and_sent_again(api: Api, services: Services) -> None:
    path = await volume(api)
    upload = await begin(api, path)
    await piece(api, upload, 0, b"?" * 1000)
    answer = await piece(api, upload, 1000, LARGE[1000:])
    assert (answer.status_code, answer.json()["reason"]) == (412, "SHA256Mismatch")
    assert await missing(api, upload, declared("large", LARGE)) == [("large", 0)]
    assert (await piece(api, upload, 0, LARGE)).status_code == 201


async def test_piece_past_the_end_or_past_what_arrived_is_refused(api: Api) -> None:
    upload = await begin(api, await volume(api))
    gap = await piece(api, upload, 5, LARGE[5:])
    assert (gap.status_code, gap.json()["reason"], gap.json()["details"]["offset"]) == (409, "Conflict", 0)
    long = await piece(api, upload, 0, LARGE + b"x")
    assert (long.status_code, long.json()["reason"]) == (400, "BadRequest")
    for query in ({"sha256": "x"}, {"size": -1}, {"size": "x"}):
        assert (await piece(api, upload, 0, b"", **query)).status_code == 400


async def test_pieces_are_dropped_when_nobody_goes_on(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await volume(api)
    upload = await begin(api, path)
    await piece(api, upload, 0, LARGE[:10])
    monkeypatch.setattr(partials, "KEPT_S", -1)
    await begin(api, path)
    assert await missing(api, upload, declared("large", LARGE)) == [("large", 0)]


async def test_pieces_of_another_volume_are_not_found(api: Api) -> None:
    one, other = await begin(api, await volume(api, "one")), await begin(api, await volume(api, "other"))
    await piece(api, one, 0, LARGE[:10])
    assert await missing(api, other, declared("large", LARGE)) == [("large", 0)]


BAD_PATHS = [
    "",
    "/",
    "..",
    "a/../b",
    "./a",
    "a//b",
    "a/./b",
    "a\nb",
    "x" * 1025,
    "a/" + "y" * 256,
    "a\x00b",
    "a/é" * 300,
]


async def test_paths_that_are_none_are_refused(api: Api) -> None:
    upload = await begin(api, await volume(api))
    for path in BAD_PATHS:
        await api.fails(400, "BadRequest", "PUT", f"{upload}/files", params={"path": path}, content=b"1")
        answer = await api.call("POST", f"{upload}/files", json={"files": [declared(path, b"1")]})
        assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")


async def test_declarations_that_are_none_are_refused(api: Api) -> None:
    upload = await begin(api, await volume(api))
    bad: list[Any] = [
        {},
        {"files": []},
        {"files": {}},
        {"files": [{}] * 1001},
        {"files": ["a"]},
        {"files": [{"path": "a"}]},
    ]
    for change in ({"size": "1"}, {"size": -1}, {"sha256": "A"}, {"mode": 9}, {"path": 5}):
        bad.append({"files": [declared("a", b"1") | change]})
    for body in bad:
        assert (await api.call("POST", f"{upload}/files", json=body)).status_code in (400, 422)


async def test_known_bytes_of_another_project_have_to_be_sent(api: Api, with_key: Callable[..., Api]) -> None:
    await api.ok("POST", f"{V1}/projects", json={"metadata": {"name": "other"}})
    await write(api, await volume(api), {"a": b"secret"})
    theirs = with_key("*", projects=["other"])
    path = f"{V1}/namespaces/other/volumes"
    await theirs.ok("POST", path, json={"metadata": {"name": "v"}, "spec": {}})
    upload = await begin(theirs, f"{path}/v")
    assert await missing(theirs, upload, declared("a", b"secret")) == [("a", 0)]


async def test_upload_that_was_given_up_is_gone(api: Api) -> None:
    path = await volume(api)
    upload = await begin(api, path)
    await api.ok("DELETE", upload)
    await api.fails(404, "NotFound", "PUT", upload, json={"commit": {}})
    await api.fails(404, "NotFound", "DELETE", upload)


async def test_small_files_come_in_bundles(api: Api) -> None:
    path = await volume(api)
    upload = await begin(api, path)
    files = {"a": b"1", "d/b": b"", "c": b"333"}
    head = json.dumps({"files": [declared(name, data) for name, data in files.items()]}).encode()
    body = head + b"\n" + b"".join(files.values())
    assert await api.ok("POST", f"{upload}/bundle", content=body) == {"files": 3}
    assert await missing(api, upload, declared("x", b"333")) == []
    await api.ok("PUT", upload, json={"commit": {}})
    assert await listed(api, path) == {"a": 1, "d/b": 0, "c": 3, "x": 3}

    upload = await begin(api, path)
    for status, reason, bad in (
        (400, "BadRequest", body + b"x"),
        (400, "BadRequest", body[:-1]),
        (400, "BadRequest", head),
        (400, "BadRequest", b"[]\n"),
        (400, "BadRequest", b"{\n"),
        (412, "SHA256Mismatch", body[:-1] + b"4"),
        (413, "RequestEntityTooLarge", body + bytes(20 << 20)),
    ):
        await api.fails(status, reason, "POST", f"{upload}/bundle", content=bad)


# Revisions ----------------------------------------------------------------------------------------------------


async def test_earlier_revision_is_restored_as_the_newest(api: Api) -> None:
    path = await volume(api)
    await write(api, path, {"a": b"1", "b": b"22"})
    await write(api, path, {"a": b"333"}, removed=("b",))
    assert await api.ok("POST", f"{path}/uploads", json={"mode": "Restore", "revision": 1}) == {"revision": 3}
    assert await listed(api, path) == {"a": 1, "b": 2}
    await api.fails(404, "NotFound", "POST", f"{path}/uploads", json={"mode": "Restore", "revision": 9})
    await api.fails(400, "BadRequest", "POST", f"{path}/uploads", json={"mode": "Restore"})


async def test_files_come_in_pages(api: Api) -> None:
    path = await volume(api)
    await write(api, path, dict.fromkeys("abcde", b"1"))
    first = await api.ok("GET", f"{path}/files", params={"limit": 2})
    assert ([item["path"] for item in first["items"]], first["continue"]) == (["a", "b"], "b")
    last = await api.ok("GET", f"{path}/files", params={"limit": 3, "after": "b"})
    assert ([item["path"] for item in last["items"]], last.get("continue")) == (["c", "d", "e"], None)


async def test_listing_may_give_links_to_the_bytes(api: Api, anonymous: Api) -> None:
    path = await volume(api)
    await write(api, path, {"a": b"1", "d/b": b"22"})
    found = (await api.ok("GET", f"{path}/files", params={"links": "true"}))["items"]
    assert [(await anonymous.call("GET", item["url"])).content for item in found] == [b"1", b"22"]
    assert all("url" not in item for item in (await api.ok("GET", f"{path}/files"))["items"])


async def test_removing_what_is_not_there_is_refused(api: Api) -> None:
    path = await volume(api)
    await write(api, path, {"d/a": b"1"})
    upload = await begin(api, path)
    await api.ok("DELETE", f"{upload}/files", params={"path": "d/b"})
    refused = await api.fails(404, "NotFound", "PUT", upload, json={"commit": {}})
    assert "'d/b'" in refused["message"]


# Who writes ---------------------------------------------------------------------------------------------------


def held(put: Callable[..., Object], phase: str) -> dict[str, Any]:
    job = put("Job", "writer", status={"phase": phase})
    return {"kind": "Job", "name": "writer", "uid": job.uid, "attempt": "writer-1", "epoch": 1}


async def test_volume_that_a_job_writes_to_is_busy(api: Api, put: Callable[..., Object]) -> None:
    holder = held(put, "Running")
    for name, mode in (("once", "ReadWriteOnce"), ("many", "ReadWriteMany")):
        put("Volume", name, {"accessMode": mode, "size": "1Gi"}, status={"phase": "Ready", "holder": holder})
    for body in ({"mode": "Write"}, {"mode": "Clear"}, {"mode": "Restore", "revision": 1}):
        busy = await api.fails(409, "VolumeBusy", "POST", f"{VOLUMES}/once/uploads", json=body)
    assert busy["details"]["holder"] == {"kind": "Job", "name": "writer", "attempt": "writer-1", "epoch": 1}
    assert "job/writer writes to it" in busy["message"]
    await api.ok("POST", f"{VOLUMES}/once/uploads", json={"mode": "Read"})
    await api.ok("POST", f"{VOLUMES}/many/uploads", json={"mode": "Write"})


async def test_upload_that_began_before_the_job_is_refused_at_its_commit(
    api: Api, put: Callable[..., Object], services: Services
) -> None:
    path = await volume(api)
    upload = await begin(api, path)
    await api.ok("PUT", f"{upload}/files", params={"path": "a"}, content=b"1")
    uid = (await api.ok("GET", path))["metadata"]["uid"]
    status = {"phase": "Ready", "revision": 0, "holder": held(put, "Running")}
    services.store.write_sync(objects.update_status, uid, status)
    await api.fails(409, "VolumeBusy", "PUT", upload, json={"commit": {}})


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Cancelled"])
async def test_finished_job_holds_nothing(api: Api, put: Callable[..., Object], phase: str) -> None:
    put("Volume", "v", {"size": "1Gi"}, status={"phase": "Ready", "holder": held(put, phase)})
    assert await write(api, f"{VOLUMES}/v", {"a": b"1"}) == 1
