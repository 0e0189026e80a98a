"""Volumes from a URL: archives, redirects, limits, broken connections, addresses that are not public."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from typing import Any

import pytest

from nodus.server.sources.base import ImportFailed
from nodus.server.sources.url import at_pace
from tests.integration.sources.conftest import FileServer, Import

DATA = bytes(range(256)) * 400


def tar(*members: tuple[str, bytes] | tarfile.TarInfo, mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size, info.mode = len(member[1]), 0o755 if member[0].endswith(".sh") else 0o600
            archive.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_file_is_kept_as_it_is(server: FileServer, run_import: Import) -> None:
    server.files["/d/train data.jsonl"] = DATA
    found = run_import(url={"url": f"{server.url}/d/train%20data.jsonl?token=private"})
    assert found["content"] == {"train data.jsonl": DATA}
    assert found["files"][0]["sha256"] == hashlib.sha256(DATA).hexdigest()
    assert found["provenance"]["url"] == f"{server.url}/d/train%20data.jsonl"


def test_archives_are_unpacked_unless_they_are_to_be_kept(server: FileServer, run_import: Import) -> None:
    body = tar(("./a/x.txt", b"1"), special("a", tarfile.DIRTYPE), ("a/run.sh", b"2"))
    server.files["/a.tar.gz"] = body
    server.headers["Content-Encoding"] = "gzip"  # as servers that are set up carelessly say
    found = run_import(url={"url": f"{server.url}/a.tar.gz"})
    assert found["content"] == {"a/x.txt": b"1", "a/run.sh": b"2"}
    assert found["modes"] == {"a/x.txt": "0o644", "a/run.sh": "0o755"}
    assert run_import(url={"url": f"{server.url}/a.tar.gz", "extract": "None"})["content"] == {"a.tar.gz": body}


def test_zip_is_unpacked(server: FileServer, run_import: Import) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/", "")
        archive.writestr("a/x.txt", DATA)
    server.files["/a.ZIP"] = buffer.getvalue()
    assert run_import(url={"url": f"{server.url}/a.ZIP"})["content"] == {"a/x.txt": DATA}


def test_links_to_files_become_copies(server: FileServer, run_import: Import) -> None:
    server.files["/a.tar"] = tar(
        ("d/a", b"1"), special("d/b", tarfile.SYMTYPE, "a"), special("c", tarfile.SYMTYPE, "d/b"),
        special("e/h", tarfile.LNKTYPE, "d/a"), mode="w",
    )  # fmt: skip
    assert run_import(url={"url": f"{server.url}/a.tar"})["content"] == dict.fromkeys(("d/a", "d/b", "c", "e/h"), b"1")


@pytest.mark.parametrize(
    "member",
    [
        ("../escape", b"1"),
        ("/etc/passwd", b"1"),
        ("a/../../b", b"1"),
        ("a\nb", b"1"),
        ("x" * 300, b"1"),
        special("out", tarfile.SYMTYPE, "/etc/passwd"),
        special("up", tarfile.SYMTYPE, "../../etc/passwd"),
        special("loop", tarfile.SYMTYPE, "loop"),
        special("hard", tarfile.LNKTYPE, "../../etc/passwd"),
        special("pipe", tarfile.FIFOTYPE),
        special("device", tarfile.CHRTYPE),
    ],
    ids=str,
)
def test_archives_with_what_no_volume_holds_are_refused(server: FileServer, run_import: Import, member: Any) -> None:
    server.files["/a.tgz"] = tar(("fine", b"1"), member)
    failed = run_import(url={"url": f"{server.url}/a.tgz"})
    assert (failed["ok"], failed["reason"], failed["transient"]) == (False, "SourcePathRefused", False)
    assert failed["fix"]


def test_same_path_twice_is_refused(server: FileServer, run_import: Import) -> None:
    server.files["/a.tar"] = tar(("a", b"1"), ("a/b", b"1"), mode="w")
    assert "a file and a directory" in run_import(url={"url": f"{server.url}/a.tar"})["message"]


def test_bombs_stop_at_the_volumes_size(server: FileServer, run_import: Import) -> None:
    server.files["/bomb.tar.xz"] = tar(("zeros", bytes(4 << 20)), mode="w:xz")
    failed = run_import(url={"url": f"{server.url}/bomb.tar.xz"})
    assert (failed["reason"], "spec.size is 1048576 (1Mi)" in failed["message"]) == ("SourceTooLarge", True)
    server.files["/large"] = bytes(2 << 20)
    assert run_import(url={"url": f"{server.url}/large"})["reason"] == "SourceTooLarge"


@pytest.mark.parametrize(
    ("name", "body"), [("a.tar.gz", b"nothing"), ("a.zip", b"PK\3\4"), ("b.tgz", tar(("a", DATA))[:-30])]
)
def test_broken_archives_are_said_to_be(server: FileServer, run_import: Import, name: str, body: bytes) -> None:
    server.files[f"/{name}"] = body
    assert run_import(url={"url": f"{server.url}/{name}"})["reason"] == "SourceArchiveBroken"


def test_digest_is_checked(server: FileServer, run_import: Import) -> None:
    server.files["/a"] = DATA
    source = {"url": f"{server.url}/a", "sha256": hashlib.sha256(DATA).hexdigest()}
    assert run_import(url=source)["content"] == {"a": DATA}
    failed = run_import(url=source | {"sha256": "0" * 64})
    assert (failed["reason"], failed["transient"]) == ("SourceChecksumMismatch", False)


def test_broken_download_goes_on_where_it_was(server: FileServer, run_import: Import) -> None:
    server.files["/a"], server.cut_after["/a"] = DATA, 70_000
    source = {"url": f"{server.url}/a"}
    failed = run_import(url=source)
    assert (failed["reason"], failed["transient"]) == ("SourceUnavailable", True)
    assert run_import(url=source)["content"] == {"a": DATA}
    assert server.asked[-1][1]["Range"] == "bytes=70000-"


def test_changed_file_is_fetched_anew(server: FileServer, run_import: Import) -> None:
    server.files["/a"], server.cut_after["/a"] = DATA, 70_000
    run_import(url={"url": f"{server.url}/a"})
    server.files["/a"], server.headers["ETag"] = b"another", '"2"'
    assert run_import(url={"url": f"{server.url}/a"})["content"] == {"a": b"another"}


@pytest.mark.parametrize(
    ("status", "reason", "transient"),
    [(404, "SourceNotFound", False), (403, "SourceAccessDenied", False), (503, "SourceUnavailable", True)],
)
def test_answers_become_reasons(
    server: FileServer, run_import: Import, status: int, reason: str, transient: bool
) -> None:
    server.statuses["/a"] = status
    failed = run_import(url={"url": f"{server.url}/a"})
    assert (failed["reason"], failed["transient"]) == (reason, transient)


def test_import_runs_in_a_process_of_its_own(server: FileServer, run_process: Import) -> None:
    server.files["/a"] = DATA
    assert [file["path"] for file in run_process(url={"url": f"{server.url}/a"})["files"]] == ["a"]
    assert run_process(url={"url": f"{server.url}/a"}, allowed=())["reason"] == "SourceAddressRefused"


def test_redirects_are_followed_a_few_times(server: FileServer, run_import: Import) -> None:
    server.redirects |= {"/1": "/2", "/2": f"{server.url}/a", "/r": "/r"}
    server.files["/a"] = DATA
    assert run_import(url={"url": f"{server.url}/1"})["content"] == {"1": DATA}
    assert run_import(url={"url": f"{server.url}/r"})["reason"] == "SourceUnavailable"


@pytest.mark.parametrize(
    "address",
    ["http://localhost:1/a", "http://127.1:1/a", "http://0x7f000001:1/", "http://[::1]:1/", "http://[::ffff:127.0.0.1]:1/",
     "http://169.254.169.254/latest/meta-data", "http://10.0.0.1/", "http://[fd00::1]/", "http://0.0.0.0:1/"],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused(run_import: Import, address: str) -> None:
    failed = run_import(url={"url": address}, allowed=())
    assert (failed["reason"], failed["transient"]) == ("SourceAddressRefused", False)
    assert "NODUS_SERVER_SOURCE_HOSTS" in failed["fix"]


@pytest.mark.parametrize("target", ["http://169.254.169.254/latest", "http://[::1]:1/", "file:///etc/passwd"])
def test_redirects_to_such_addresses_are_refused(server: FileServer, run_import: Import, target: str) -> None:
    server.redirects["/a"] = target
    assert run_import(url={"url": f"{server.url}/a"})["reason"] == "SourceAddressRefused"


def test_trickle_does_not_keep_its_place() -> None:
    def trickle(chunk: bytes, times: list[float]) -> list[bytes]:
        return list(at_pace([chunk] * (len(times) - 1), "x", iter([*times, *times[-1:] * 9]).__next__))

    assert len(trickle(b"a" * 70_000, [0.0, 61.0, 61.0, 130.0, 130.0, 140.0])) == 5
    with pytest.raises(ImportFailed, match="too slow") as slow:
        trickle(b"a", [0.0, 30.0, 61.0])
    assert slow.value.transient
