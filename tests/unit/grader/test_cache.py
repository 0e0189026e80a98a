"""The cache that a build fetched, mirrored for graders: what a completion changes of it is undone."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodus.grader.cache import Mirror


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """Return the mirror ``seen`` of a cache of two files, with a note that was written while something was loaded."""
    (tmp_path / "cache/hub/data").mkdir(parents=True)
    (tmp_path / "cache/hub/data/rows").write_text("rows")
    (tmp_path / "cache/fonts").write_text("fonts")
    (tmp_path / "cache/x.lock").write_text("")
    (tmp_path / "seen").mkdir()
    made = Mirror(str(tmp_path / "cache"), str(tmp_path / "seen"))
    (tmp_path / "seen/note").write_text("note")
    made.settle()
    return made


def listed(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def _link_elsewhere(root: Path) -> None:
    (root / "fonts").unlink()
    (root / "fonts").symlink_to("/etc/hostname")


def _write_unseen(root: Path) -> None:
    (root / "note").write_text("nott")
    os.utime(root / "note", (0, 0))


CHANGES: dict[str, Callable[[Path], Any]] = {
    "a file more": lambda root: (root / "hub/more").write_text("x"),
    "a directory more": lambda root: (root / "hub/data/more").mkdir(),
    "a link elsewhere": _link_elsewhere,
    "a file less": lambda root: (root / "hub/data/rows").unlink(),
    "a tree less": lambda root: shutil.rmtree(root / "hub"),
    "a note of another content": lambda root: (root / "note").write_text("forged"),
    "a note of another content and the old times": _write_unseen,
    "a closed directory": lambda root: (root / "hub").chmod(0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_changed_is_undone(change: Callable[[Path], Any], mirror: Mirror, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    for _ in range(3):  # at once after it was made anew, too
        change(seen)
        assert mirror.keep()
        assert listed(seen) == ["fonts", "hub", "hub/data", "hub/data/rows"]  # the note is not worth keeping
        assert (seen / "fonts").read_text() == "fonts"


def test_what_was_not_changed_is_left_alone(mirror: Mirror, tmp_path: Path) -> None:
    before = os.stat(tmp_path / "seen/note").st_ino
    assert mirror.keep() and os.stat(tmp_path / "seen/note").st_ino == before


def test_change_at_once_after_it_was_made_shows(mirror: Mirror, tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / "seen/hub" / str(number)).mkdir()
        assert mirror.keep()
        assert not (tmp_path / "seen/hub" / str(number)).exists()
    begun = time.monotonic()
    mirror.settle()
    assert time.monotonic() - begun < 5
