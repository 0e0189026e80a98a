"""Bundles that must not be unpacked, and what a digest depends on."""

from __future__ import annotations

import errno
import gzip
import io
import os
import sysconfig
import tarfile
from pathlib import Path
from typing import Any

import pytest

from nodus.core.errors import ImageNotReady, Unsupported
from nodus.grader import PROTOCOL_VERSION
from nodus.server.grading import BadBundle, EnvironmentLibrary
from nodus.server.grading.environments import GRADER_PROTOCOL, catalog_status, unpack_bundle

SOABI = str(sysconfig.get_config_var("SOABI"))


def archive(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                made.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                made.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def _long_header() -> bytes:
    """A small bundle whose first header says that it goes on for 200 MiB."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 200 << 20
    return gzip.compress(header.tobuf() + bytes(header.size), 6)


def test_full_disk_is_not_the_bundles_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        unpack_bundle(archive(("task.py", b"x = 1\n")), tmp_path)


def test_runner_and_server_speak_the_same_protocol() -> None:
    assert GRADER_PROTOCOL == PROTOCOL_VERSION


def test_bundle_is_unpacked_with_plain_permissions(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a/tool.py")
    info.mode, info.uid = 0o4777, 1234
    unpack_bundle(
        archive(("task.py", b"x = 1\n"), info, (f"site/n/m.{SOABI}.so", b"x"), ("site/n/k.abi3.so", b"")), tmp_path
    )
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == [
        "a/tool.py",
        "site/n/k.abi3.so",
        f"site/n/m.{SOABI}.so",
        "task.py",
    ]
    assert (tmp_path / "a" / "tool.py").stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not a tar", "no readable tar.gz"),
        (gzip.compress(b"not a tar"), "no readable tar.gz"),
        (archive(("task.py", b"x" * 1000))[:60], "no readable tar.gz"),
        (archive(("../outside.py", b"")), "leads out of it"),
        (archive(("/etc/cron.d/x", b"")), "leads out of it"),
        (archive(("a/../../x", b"")), "leads out of it"),
        (archive(link("x", "/etc/shadow", tarfile.SYMTYPE)), "is a link or a device"),
        (archive(("y", b""), link("x", "y", tarfile.LNKTYPE)), "is a link or a device"),
        (archive(link("x", "", tarfile.FIFOTYPE)), "is a link or a device"),
        (archive(link("x", "", tarfile.CHRTYPE)), "is a link or a device"),
        (archive(("bomb", b"\0" * (65 << 20))), "more than 64 MiB"),
        (archive(*[(f"{n}", b"") for n in range(5001)]), "more than 5000 files"),
        (archive(("a", b""), ("a/b", b"")), "a path that can't be made"),
        (archive(("n" * 300, b"")), "a path that can't be made"),
        (_long_header(), "more than 64 MiB"),
    ],
)
def test_bad_bundle_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match=message):
        unpack_bundle(data, tmp_path / "target")
    assert not (tmp_path / "outside.py").exists()


@pytest.fixture
def library(tmp_path: Path) -> EnvironmentLibrary:
    return EnvironmentLibrary(tmp_path / "environments", lambda blob: tmp_path / blob.removeprefix("sha256:"))


def source(blob: str, **more: Any) -> dict[str, Any]:
    return {"version": "1.0.0", "package": {"source": {"blob": f"sha256:{blob}", "module": "task"}}, **more}


def test_bundle_is_unpacked_once_and_leaves_no_half(library: EnvironmentLibrary, tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(archive(("task.py", b"x = 1\n")))
    (tmp_path / "bad").write_bytes(archive(("task.py", b""), ("../x", b"")))
    first = library.resolve("e", source("good"))
    (tmp_path / "good").unlink()
    assert library.resolve("e", source("good")) == first
    with pytest.raises(BadBundle):
        library.resolve("e", source("bad"))
    assert [path.name for path in (tmp_path / "environments").iterdir()] == ["good"]


def test_bundle_that_is_missing_or_too_large_is_refused(library: EnvironmentLibrary, tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="never uploaded"):
        library.resolve("e", source("none"))
    (tmp_path / "large").write_bytes(b"\0" * (512 * 1024 + 1))
    with pytest.raises(BadBundle, match="at most 524288"):
        library.resolve("e", source("large"))


def test_digest_changes_with_what_decides_tasks_and_verdicts_only(library: EnvironmentLibrary, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(archive(("task.py", name.encode())))

    def digest(name: str = "e", **spec: Any) -> str:
        return library.resolve(name, {**source("one"), **spec}).digest

    grader = [{"name": "whole-text", "kind": "ExactMatch"}]
    assert digest() == digest(summary="other", category="Math", sandbox={"timeout": "3s"})
    others = [digest("f"), digest(version="1.0.1"), digest(package=source("two")["package"]), digest(graders=grader)]
    assert len({digest(), *others}) == 5


def test_limits_and_graders_come_from_the_spec(library: EnvironmentLibrary, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(archive(("task.py", b"")))
    graders = [{"name": "last-integer", "kind": "ExactMatch"}, {"name": "p", "kind": "Program"}]
    limited = library.resolve("e", source("one", sandbox={"timeout": "1m30s", "memory": "2Gi"}, graders=graders))
    assert (limited.timeout_s, limited.memory_bytes, limited.exact_match) == (90.0, 2 << 30, None)
    plain = library.resolve("e", source("one", graders=graders[:1]))
    assert (plain.timeout_s, plain.memory_bytes, plain.exact_match) == (10.0, 1 << 30, "last-integer")


@pytest.mark.parametrize("package", [{"image": "r/e@sha256:0"}, {"pip": {"name": "e", "version": "1"}}])
def test_a_package_that_is_not_built_is_refused_with_the_way_out(
    library: EnvironmentLibrary, package: dict[str, Any]
) -> None:
    with pytest.raises(ImageNotReady, match=r"no finished image env-e-1\.0\.0") as refused:
        library.resolve("e", {"version": "1.0.0", "package": package})
    assert "nodus get image/env-e-1.0.0" in str(refused.value.fix)


def test_a_packaging_that_is_unknown_is_refused_with_the_way_out(library: EnvironmentLibrary) -> None:
    with pytest.raises(Unsupported, match="does not know"):
        library.resolve("e", {"version": "1.0.0", "package": {"conda": {"name": "e"}}})


def test_catalog_environment_is_ready_with_its_declared_sizes() -> None:
    spec = {
        "version": "2.0.0",
        "package": {"catalog": {"module": "arithmetic"}},
        "splits": {"train": {"size": 233}, "test": {"size": 128}},
    }
    status = catalog_status("arithmetic", spec)
    assert (status["phase"], status["splits"]) == ("Ready", {"train": 233, "test": 128})
    assert status["digest"].startswith("sha256:")


def test_digest_of_a_catalog_environment_is_of_its_sources_and_its_data(
    library: EnvironmentLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodus.server.grading.environments._CATALOG", tmp_path)
    spec = {"version": "1.0.0", "package": {"catalog": {"module": "rows"}}}
    (tmp_path / "rows" / "__pycache__").mkdir(parents=True)
    (tmp_path / "rows" / "__init__.py").write_text("x = 1\n")
    (tmp_path / "rows" / "rows.jsonl").write_text("{}\n")
    first = library.resolve("rows", spec).digest
    (tmp_path / "rows" / "__pycache__" / "__init__.cpython-311.pyc").write_bytes(b"x")
    (tmp_path / "rows" / "NOTICE").write_text("where they are from\n")
    assert library.resolve("rows", spec).digest == first
    (tmp_path / "rows" / "rows.jsonl").write_text('{"answer": "1"}\n')
    assert library.resolve("rows", spec).digest != first
