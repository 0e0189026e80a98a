"""What a volume takes of this machine, and what it says of the rest."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from nodus.client.volumefiles import files_of, unpacked
from nodus.core.errors import NodusError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "a").write_text("a")
    return tree


def test_a_link_is_refused_with_its_path(tree: Path) -> None:
    assert [file.place for file in files_of(tree, "/raw")] == ["raw/deep/a"]
    (tree / "link").symlink_to("deep/a")
    with pytest.raises(NodusError, match=rf"{tree}/link is a symbolic link"):
        files_of(tree, "/raw")


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
