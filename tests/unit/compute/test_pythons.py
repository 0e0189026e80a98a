"""Which programs are taken for other Pythons, and what is believed of what they say."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from nodus.server.compute.local import pythons


def program(folder: Path, said: object, name: str = "python3.12", mode: int = 0o755) -> Path:
    """Make a stand-in interpreter that answers everything with one JSON line."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    path.chmod(mode)
    return path


ANSWER = {
    "version": "3.12",
    "tag": "cpython-312-x86_64-linux-gnu",
    "program": os.path.realpath(sys.executable),
    "prefix": "/opt/python3.12",
    "packages": ["/opt/python3.12/lib/python3.12/site-packages"] * 2,
}


def test_own_interpreter_is_asked_as_another_would_be() -> None:
    own = pythons.own()
    assert pythons.ask(sys.executable, own.version) == own


def test_interpreter_is_what_it_says_once(tmp_path: Path) -> None:
    found = pythons.ask(str(program(tmp_path, ANSWER)), "3.12")
    assert found is not None
    assert found.program == ANSWER["program"] and found.packages == ("/opt/python3.12/lib/python3.12/site-packages",)


@pytest.mark.parametrize(
    "said",
    [
        ANSWER | {"version": "3.13", "tag": "cpython-313-x86_64-linux-gnu"},
        ANSWER | {"tag": "cpython-312d-x86_64-linux-gnu"},
        ANSWER | {"program": "/nowhere/python3.12"},
        {"version": "3.12"},
        ["3.12"],
        "text",
    ],
    ids=["another version", "another build", "no program", "half an answer", "a list", "text"],
)
def test_program_that_answers_otherwise_is_passed_over(said: object, tmp_path: Path) -> None:
    assert pythons.ask(str(program(tmp_path, said)), "3.12") is None


def test_program_that_fails_is_passed_over(tmp_path: Path) -> None:
    path = program(tmp_path, ANSWER)
    path.write_text("#!/bin/sh\nexit 127\n")  # as a version manager's stand-in does for a version not chosen
    assert pythons.ask(str(path), "3.12") is None
    assert pythons.ask(str(tmp_path / "none"), "3.12") is None


def test_only_programs_that_the_operator_alone_can_change_are_run(tmp_path: Path) -> None:
    good = program(tmp_path / "good", ANSWER)
    program(tmp_path / "file", ANSWER, mode=0o777)
    program(tmp_path / "unrunnable", ANSWER, mode=0o644)
    program(tmp_path / "folder", ANSWER)
    (tmp_path / "folder").chmod(0o777)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "python3.12").symlink_to(tmp_path / "folder" / "python3.12")
    entries = [*map(str, sorted(tmp_path.iterdir())), "", ".", "relative", "/nowhere"]
    assert list(pythons.candidates("3.12", os.pathsep.join(entries))) == [str(good)]
    assert list(pythons.candidates("3.12", str(good.parent), trusted=[os.geteuid() + 1])) == []
    assert list(pythons.candidates("3.12/../../evil", str(good.parent))) == []


def test_found_interpreter_is_remembered_and_a_missing_one_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pythons, "_known", {})
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + ":/usr/bin:/bin")
    version = "3.99"
    assert pythons.find(version) is None
    path = program(
        tmp_path / "bin", ANSWER | {"version": version, "tag": "cpython-399-x86_64-linux-gnu"}, f"python{version}"
    )
    first = pythons.find(version)
    path.unlink()
    assert first is not None and pythons.find(version) is first
