"""Copying directories that programs change meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from nodus.server.backup import files


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


def test_copy_is_like_what_was_there(source: Path, tmp_path: Path) -> None:
    (source / "inner").mkdir(mode=0o750)
    (source / "inner" / "run").write_text("text")
    (source / "inner" / "run").chmod(0o640)
    os.utime(source / "inner" / "run", ns=(1, 2_000_000_001))
    (source / "link").symlink_to("/nowhere")
    os.mkfifo(source / "pipe")
    target = tmp_path / "target"
    assert files.copy_tree(source, target) == 4
    assert sorted(path.name for path in target.rglob("*")) == ["inner", "link", "run"]
    info = (target / "inner" / "run").stat()
    assert (info.st_mode & 0o777, info.st_mtime_ns) == (0o640, 2_000_000_001)
    assert (target / "inner").stat().st_mode & 0o777 == 0o750
    assert os.readlink(target / "link") == "/nowhere"
    shutil.rmtree(source)
    assert files.copy_tree(target, source) == 4


def test_holes_stay_holes(source: Path, tmp_path: Path) -> None:
    with (source / "sparse").open("wb") as file:
        file.write(b"head")
        file.seek(1 << 40)
        file.write(b"middle")
        file.truncate(2 << 40)
    target = tmp_path / "target"
    assert files.copy_tree(source, target) < 1 << 20
    with (target / "sparse").open("rb") as file:
        assert file.read(6) == b"head\0\0"
        file.seek(1 << 40)
        assert file.read(7) == b"middle\0"
        assert file.seek(0, os.SEEK_END) == 2 << 40
    (target / "sparse").unlink()


def test_directories_without_end_are_cut_off(source: Path, tmp_path: Path) -> None:
    at = os.open(source, os.O_RDONLY)
    for _ in range(files.DEEPEST + 50):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    (source / "file").write_text("text")
    assert files.copy_tree(source, tmp_path / "target") == 4
    assert len(list((tmp_path / "target").rglob("d"))) == files.DEEPEST


@pytest.mark.parametrize("name", ["directory", "file"])
def test_link_put_in_the_place_of_what_was_looked_at_is_not_followed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("secret")
    (source / "directory").mkdir()
    (source / "file").write_text("text")
    lstat = os.lstat

    def swap(path: Any, **where: Any) -> os.stat_result:
        found = lstat(path, **where)
        if path == name:
            os.rename(source / name, source / f".{name}")
            (source / name).symlink_to(tmp_path / "private" / ("key" if name == "file" else ""))
        return found

    monkeypatch.setattr(os, "lstat", swap)
    files.copy_tree(source, tmp_path / "target")
    monkeypatch.undo()
    assert not (tmp_path / "target" / name).exists()
