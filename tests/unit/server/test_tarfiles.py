"""Archives made to exhaust whoever opens them."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import zipfile
from pathlib import Path

import pytest

from nodus.server.compute.base import MemberSpec, StartRefused
from nodus.server.compute.local.attemptdir import AttemptDir
from nodus.server.compute.local.capacity import Share
from nodus.server.compute.local.prepare import prepare
from nodus.server.compute.local.prepare import unpack as unpack_source
from nodus.server.grading.compiled import BadBundle
from nodus.server.grading.environments import unpack_bundle
from nodus.server.sources import archives
from nodus.server.sources.base import Collector, ImportFailed, Order
from nodus.server.tarfiles import ArchiveRefused, open_tar

MIB = 1 << 20


def bomb(path: Path, kind: bytes) -> Path:
    """A member whose header is 8 MiB long."""
    info = tarfile.TarInfo("long")
    info.type, info.size = kind, 8 * MIB
    with gzip.open(path, "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT) + b"a" * (8 * MIB))
        file.write(tarfile.TarInfo("x").tobuf() + bytes(1024))
    return path


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"X", b"S"])
def test_headers_are_not_taken_into_memory_whole(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(ArchiveRefused):
        open_tar(bomb(tmp_path / "a.tar.gz", kind))


@pytest.mark.parametrize(
    "pax",
    [
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x"},
        {"GNU.sparse.map": "0,1"},
        {"GNU.sparse.size": "9"},
    ],
)
def test_sparse_files_are_refused(tmp_path: Path, pax: dict[str, str]) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("x")
        info.pax_headers, info.size = pax, 1024
        tar.addfile(info, io.BytesIO(b"0" * 1024))
    (tmp_path / "a.tar").write_bytes(buffer.getvalue())
    with pytest.raises(ArchiveRefused, match="sparse"):
        open_tar(tmp_path / "a.tar")


def test_long_names_are_read(tmp_path: Path) -> None:
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=form) as tar:
            tar.addfile(tarfile.TarInfo("d/" * 100 + "ü"))
        with open_tar(tmp_path / "a.tar") as tar:
            assert tar.getnames() == ["d/" * 100 + "ü"]


def test_sources_nested_deeper_than_any_walk_goes_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("d/" * 1800 + "f"))
    (tmp_path / "target").mkdir()
    with pytest.raises(ValueError, match="deep"):
        unpack_source(tmp_path / "a.tar", tmp_path / "target")


@pytest.mark.parametrize("kind", ["hard link to nothing", "time", "xz"])
def test_sources_that_are_broken_end_the_run_and_nothing_else(tmp_path: Path, kind: str) -> None:
    info = tarfile.TarInfo("a")
    if kind == "hard link to nothing":
        info.type, info.linkname = tarfile.LNKTYPE, "nope"
    info.mtime = -1e30 if kind == "time" else 0
    info.size = 0 if info.islnk() else 500_000
    with tarfile.open(tmp_path / "a.tar", "w:xz" if kind == "xz" else "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(random.Random(1).randbytes(info.size)))
    if kind == "xz":
        data = bytearray((tmp_path / "a.tar").read_bytes())
        data[300_000] ^= 0xFF
        (tmp_path / "a.tar").write_bytes(data)
    attempt = AttemptDir(tmp_path / "attempt")
    spec = MemberSpec("attempt", ["x"], "nodus/base", token="", source="0" * 64)
    with pytest.raises(StartRefused, match="can't be unpacked"):
        prepare(attempt, spec, Share(1, 1, ()), tmp_path, lambda digest: tmp_path / "a.tar")
    assert not attempt.workspace.exists()


def test_links_of_a_zip_are_bounded(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr, info.compress_type = 0o120777 << 16, zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr(info, b"a" * MIB)
    into = Collector(Order({}, tmp_path / "import", limit_bytes=64 * MIB), "a.zip")
    with pytest.raises(ImportFailed, match="'link'"):
        archives.unpack(tmp_path / "a.zip", "a.zip", into, "a.zip")


def test_directories_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MEMBERS_LIMIT", 10)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(20):
            info = tarfile.TarInfo(f"d{number}")
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
    into = Collector(Order({}, tmp_path / "import"), "a.tar")
    with pytest.raises(ImportFailed, match="members"):
        archives.unpack(tmp_path / "a.tar", "a.tar", into, "a.tar")


def test_environment_bundles_are_read_the_same_way(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("x")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"}
        info.size = 1024
        tar.addfile(info, io.BytesIO(b"1" * 1024))
    with pytest.raises(BadBundle, match="sparse"):
        unpack_bundle(buffer.getvalue(), tmp_path)
