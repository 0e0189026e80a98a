"""What is packed of a directory, and what the archive is like."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from nodus.client import source
from nodus.client.source import packed
from nodus.core.errors import FileTooLarge, NodusError


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(root: Path) -> list[str]:
    with packed(root) as archive, tarfile.open(archive.path) as tar:
        return [member.name for member in tar if not member.isdir()]


def test_same_files_give_the_same_bytes_whatever_their_times_and_owners(tmp_path: Path) -> None:
    contents = []
    for name, moment in (("one", 1), ("two", 2_000_000_000)):
        root = tmp_path / name
        write(root, b="2", a="1", sub__c="3")
        os.utime(root / "a", (moment, moment))
        (root / "a").chmod(0o600 if moment == 1 else 0o664)
        with packed(root) as archive:
            contents.append(archive.path.read_bytes())
    assert contents[0] == contents[1]
    with tarfile.open(fileobj=io.BytesIO(contents[0])) as tar:
        assert [(m.name, m.mode, m.mtime, m.uid, m.uname) for m in tar] == [
            ("a", 0o644, 0, 0, ""),
            ("b", 0o644, 0, 0, ""),
            ("sub", 0o755, 0, 0, ""),
            ("sub/c", 0o644, 0, 0, ""),
        ]
    assert gzip.decompress(contents[0])


def test_executables_stay_so(tmp_path: Path) -> None:
    write(tmp_path, run="#!/bin/sh")
    (tmp_path / "run").chmod(0o700)
    with packed(tmp_path) as archive, tarfile.open(archive.path) as tar:
        assert tar.getmember("run").mode == 0o755


def test_what_git_ignores_stays_out_at_every_depth(tmp_path: Path) -> None:
    write(tmp_path, a="", b_log="", sub__keep_log="", sub__x_log="", data__big="", deep__data__big="")
    for path in ("b_log", "sub/keep_log", "sub/x_log"):
        os.rename(tmp_path / path, tmp_path / path.replace("_log", ".log"))
    (tmp_path / ".gitignore").write_text("*.log\n/data/\n")
    (tmp_path / "sub" / ".gitignore").write_text("!keep.log\n")
    assert names(tmp_path) == [".gitignore", "a", "deep/data/big", "sub/.gitignore", "sub/keep.log"]


def test_nodusignore_has_the_last_word(tmp_path: Path) -> None:
    write(tmp_path, weights="", notes="")
    (tmp_path / ".gitignore").write_text("weights\n")
    (tmp_path / ".nodusignore").write_text("!weights\nnotes\n.*ignore\n")
    assert names(tmp_path) == ["weights"]


def test_rules_above_count_within_the_same_repository_only(tmp_path: Path) -> None:
    write(tmp_path, repo__pkg__a="", repo__pkg__b="")
    (tmp_path / "repo" / ".gitignore").write_text("b\n")
    assert names(tmp_path / "repo" / "pkg") == ["a", "b"]
    (tmp_path / "repo" / ".git").mkdir()
    assert names(tmp_path / "repo" / "pkg") == ["a"]


def test_version_control_caches_and_virtual_environments_stay_out(tmp_path: Path) -> None:
    write(tmp_path, a="", __pycache__="", env__bin__python="")
    for name in (".git", "__pycache__", ".nodus", ".ssh"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "x").write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    assert names(tmp_path) == ["a"]


def test_env_files_go_only_when_asked_for(tmp_path: Path) -> None:
    write(tmp_path, a="", sub__b="")
    for path in (".env", "sub/.env"):
        (tmp_path / path).write_text("KEY=secret\n")
    with packed(tmp_path) as archive:
        assert [told.split(":")[0] for told in archive.skipped] == [".env", "sub/.env"]
        assert "!.env" in archive.skipped[0]
    assert names(tmp_path) == ["a", "sub/b"]
    (tmp_path / ".nodusignore").write_text("!/.env\n/sub/.env\n")
    assert names(tmp_path) == [".env", ".nodusignore", "a", "sub/b"]


def test_links_that_lead_out_are_left_out_and_told(tmp_path: Path) -> None:
    write(tmp_path, a="1", sub__b="2")
    for name, target in (("in", "a"), ("sub/up", "../a"), ("out", "../x"), ("sub/far", "../../x"), ("abs", "/etc")):
        os.symlink(target, tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    with packed(tmp_path) as archive, tarfile.open(archive.path) as tar:
        assert {m.name: m.linkname for m in tar if m.issym()} == {"in": "a", "sub/up": "../a"}
        assert sorted(text.split(":")[0] for text in archive.skipped) == ["abs", "out", "pipe", "sub/far"]


def test_one_file_is_an_archive_of_it(tmp_path: Path) -> None:
    write(tmp_path, train="")
    assert names(tmp_path / "train") == ["train"]


def test_too_much_is_refused_with_the_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LIMIT_BYTES", 100_000)
    write(tmp_path, small="x")
    (tmp_path / "large.bin").write_bytes(os.urandom(200_000))
    with pytest.raises(FileTooLarge) as caught, packed(tmp_path):
        pass
    assert "large.bin (195.3Ki)" in str(caught.value.fix)
    assert "--allow-large-source" in str(caught.value.fix)
    with packed(tmp_path, allow_large=True) as archive:
        assert archive.size_bytes > 200_000
    monkeypatch.setattr(source, "FILE_LIMIT", 1)
    with pytest.raises(FileTooLarge, match="no run unpacks"), packed(tmp_path, allow_large=True):
        pass


def test_what_is_not_there_or_everything_is_refused(tmp_path: Path) -> None:
    for directory, words in ((tmp_path / "nope", "there is no"), (Path("/"), "the whole file system")):
        with pytest.raises(NodusError, match=words), packed(directory):
            pass


@pytest.mark.parametrize("marks", source.SERVER_MARKS)
def test_a_servers_keys_are_never_packed_whatever_the_directory_is_called(
    tmp_path: Path, marks: tuple[str, ...]
) -> None:
    write(tmp_path, a="1", deep__srv__database="secret", **{".nodusignore": "!srv\n"})
    for mark in marks:
        (tmp_path / "deep" / "srv" / mark).write_text("")
    assert names(tmp_path) == [".nodusignore", "a"]
    with packed(tmp_path) as archive:
        assert archive.skipped == ["deep/srv: holds a Nodus server's keys"]
    with pytest.raises(NodusError, match="holds a Nodus server's keys"), packed(tmp_path / "deep" / "srv"):
        pass


def test_a_file_called_keys_alone_is_packed(tmp_path: Path) -> None:
    write(tmp_path, **{"keys.json": "{}"})
    assert names(tmp_path) == ["keys.json"]
