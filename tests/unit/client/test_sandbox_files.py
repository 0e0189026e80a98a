"""What a copy to or from a Sandbox writes, and where it must not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodus.client.sandbox import _duration
from nodus.client.sandboxfiles import _mode, _plain, _tree
from nodus.core.errors import NodusError


def test_tree_lists_directories_and_files_with_modes_and_follows_links_to_files_only(tmp_path: Path) -> None:
    (tmp_path / "a" / "empty").mkdir(parents=True)
    (tmp_path / "a" / "run.sh").write_text("x")
    (tmp_path / "a" / "run.sh").chmod(0o755)
    (tmp_path / "a" / "link").symlink_to("run.sh")
    (tmp_path / "a" / "up").symlink_to("..")
    os.mkfifo(tmp_path / "a" / "pipe")
    found = [(file and file.name, where, mode and mode & 0o777) for file, where, mode in _tree(tmp_path / "a", "/w/a")]
    assert found == [
        (None, "/w/a/", None),
        ("link", "/w/a/link", 0o755),
        ("run.sh", "/w/a/run.sh", 0o755),
        (None, "/w/a/empty/", None),
    ]
    assert [where for _, where, _ in _tree(tmp_path / "a" / "run.sh", "/w/x")] == ["/w/x"]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b"])
def test_names_that_lead_out_of_a_directory_are_refused(name: str) -> None:
    with pytest.raises(NodusError, match="odd name"):
        _plain(name, "/workspace")


def test_mode_is_read_from_the_header_or_left_alone() -> None:
    assert _mode({"x-nodus-mode": "0755"}) == 0o755
    assert _mode({"x-nodus-mode": "7777"}) == 0o777
    assert _mode({}) is _mode({"x-nodus-mode": "what"}) is None


def test_times_are_seconds_or_texts() -> None:
    assert [_duration(given) for given in (None, "10m", 600, 0.5, 1e6)] == [None, "10m", "600s", "0.5s", "1000000s"]
