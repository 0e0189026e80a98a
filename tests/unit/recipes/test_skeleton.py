"""Skeletons: valid names, valid files, nothing overwritten."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
import yaml

from nodus.cli.commands.env import KINDS as OFFERED
from nodus.core.kinds import ENVIRONMENT
from nodus.core.kinds.decode import decode
from nodus.recipes.skeleton import KINDS, SkeletonRefused, skeleton, write


def test_the_command_offers_every_kind() -> None:
    assert tuple(KINDS) == OFFERED


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_each_kind_are_valid(kind: str) -> None:
    made = skeleton("my-task", kind)
    for path, text in made.files.items():
        assert "$" not in text, path
        if path.endswith(".py"):
            ast.parse(text, path)
    project = tomllib.loads(made.files["pyproject.toml"])["project"]
    assert (project["name"], project["version"]) == ("my-task", "1.0.0")
    manifest = yaml.safe_load(made.files["environment.yaml"])
    assert manifest["metadata"]["name"] == "my-task"
    _, causes = decode(ENVIRONMENT.spec_model, manifest["spec"])
    assert not causes


@pytest.mark.parametrize("name", ["", "My-Task", "my_task", "-x", "x-", "a/b", "../x", "7up", "x" * 51, "a\0b", "é"])
def test_names_that_no_environment_can_have_are_refused(name: str) -> None:
    with pytest.raises(SkeletonRefused, match="can't be an environment's name"):
        skeleton(name)


@pytest.mark.parametrize("name", ["json", "class", "nodus"])
def test_names_that_would_hide_a_module_are_refused(name: str) -> None:
    with pytest.raises(SkeletonRefused, match="would hide"):
        skeleton(name)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    made = skeleton("my-task")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    for name in ("file", "link", "full"):
        with pytest.raises(SkeletonRefused, match="nothing is overwritten"):
            write(made, tmp_path / name)
    (tmp_path / "empty").mkdir()
    assert write(made, tmp_path / "empty") is None
    assert sorted(path.name for path in (tmp_path / "empty").iterdir()) == [
        "README.md", "environment.yaml", "my_task.py", "pyproject.toml", "tests"
    ]  # fmt: skip
