"""What a volume takes of this machine, and what it says of the rest."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from nodus.client.localfiles import files_of
from nodus.client.volumefiles import unpacked
from nodus.core.errors import NodusError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "a").write_text("a")
    return tree


def taken(tree: Path, **options: Any) -> tuple[list[str], list[str]]:
    """Places in the volume, and what was left out."""
    skipped: list[str] = []
    return [file.place for file in files_of(tree, "/", skipped=skipped.append, **options)], skipped


@pytest.fixture
def linked(tree: Path, tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b").write_text("b")
    (tree / "copy").symlink_to("deep/a")
    (tree / "again").symlink_to("deep")
    (tree / "out").symlink_to(outside / "b")
    (tree / "outdir").symlink_to("../outside")
    (tree / "nowhere").symlink_to("gone")
    (tree / "round").symlink_to("round")
    (tree / "deep" / "up").symlink_to("..")
    os.mkfifo(tree / "pipe")
    return tree


def test_links_inside_become_copies_and_what_leads_out_is_left_out(linked: Path) -> None:
    places, skipped = taken(linked)
    assert places == ["copy", "deep/a"]
    assert skipped == [
        "again: a symbolic link to a directory",
        "deep/up: a symbolic link to a directory",
        "nowhere: a symbolic link that leads nowhere",
        "out: a symbolic link that leads out of the directory",
        "outdir: a symbolic link that leads out of the directory",
        "pipe: neither a file nor a directory",
        "round: a symbolic link that leads nowhere",
    ]


def test_links_are_followed_on_demand_and_never_in_a_circle(linked: Path) -> None:
    places, skipped = taken(linked, follow_symlinks=True)
    assert places == ["again/a", "copy", "deep/a", "out", "outdir/b"]
    assert [what.partition(":")[0] for what in skipped] == ["again/up", "deep/up", "nowhere", "pipe", "round"]


def test_what_is_left_out_is_a_python_warning_by_default(tree: Path) -> None:
    (tree / "out").symlink_to("/etc/hostname")
    with pytest.warns(UserWarning, match="left out out: a symbolic link that leads out"):
        assert [file.place for file in files_of(tree, "/raw")] == ["raw/deep/a"]


def test_a_directory_of_nothing_but_links_says_how_to_take_them(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/etc/hostname")
    with pytest.raises(NodusError, match="holds no files") as raised:
        taken(tmp_path)
    assert "--follow-symlinks" in str(raised.value.fix)


def test_a_link_that_is_named_itself_is_followed(linked: Path) -> None:
    assert taken(linked / "outdir") == (["b"], [])
    assert taken(linked / "out") == (["out"], [])


def test_a_link_in_an_archive_is_named_as_it_stands_there(tree: Path, tmp_path: Path) -> None:
    (tree / "deep" / "link").symlink_to("a")
    archive = tmp_path / "packed.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tree, ".")
    with (
        pytest.raises(NodusError, match=r"packed\.tgz has a symbolic link, deep/link, which") as raised,
        unpacked(archive),
    ):
        pass
    assert "tar -h" in str(raised.value.fix)


def test_a_file_that_is_no_archive_is_one_line(tree: Path) -> None:
    with pytest.raises(NodusError, match=r"a can't be unpacked: it is no archive\n"), unpacked(tree / "deep" / "a"):
        pass
