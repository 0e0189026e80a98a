"""What the pages tell a reader to type works: each page's blocks run in order, in one folder, against a real server.

A block that is not run has `<!-- not run: reason -->` on the line before it. Each Python block is a program, as
a reader may paste any of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nodus.core.kinds import KINDS
from nodus.core.kinds.decode import decode
from tests.docs._blocks import PYTHON, SHELL, Block, blocks, pages

ALL = [block for page in pages() for block in blocks(page)]
RUNNABLE = SHELL + PYTHON


def _run(block: Block, folder: Path, env: dict[str, str]) -> None:
    command = (
        [sys.executable, "-c", block.text]
        if block.language in PYTHON
        else ["bash", "-euo", "pipefail", "-c", block.text]
    )
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{block.where}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.fixture
def reader(tmp_path: Path, free_port: int) -> dict[str, str]:
    """The environment of a reader: nodus on the PATH, an empty home, a port that is free."""
    home = tmp_path / "home"
    home.mkdir()
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NODUS_SERVER_PORT": str(free_port),
    }


def _runnable_pages() -> list[Path]:
    return list(dict.fromkeys(b.page for b in ALL if b.language in RUNNABLE and b.not_run is None))


@pytest.mark.acceptance
@pytest.mark.sandbox
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", _runnable_pages(), ids=lambda page: page.stem)
def test_blocks_of_page_run(page: Path, tmp_path: Path, reader: dict[str, str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    try:
        for block in blocks(page):
            if block.language in RUNNABLE and block.not_run is None:
                _run(block, folder, reader)
    finally:
        nodus = shutil.which("nodus", path=reader["PATH"])
        if nodus and any(b.language in SHELL and b.not_run is None for b in blocks(page)):
            subprocess.run([nodus, "down"], env=reader, capture_output=True, timeout=60, check=False)


def test_every_unrun_block_gives_a_reason() -> None:
    assert all(len(b.not_run.split()) >= 3 for b in ALL if b.not_run is not None)


@pytest.mark.parametrize("block", [b for b in ALL if b.language in PYTHON], ids=lambda b: b.where)
def test_python_block_is_valid_python(block: Block) -> None:
    compile(block.text, block.where, "exec", flags=0x2000)  # top-level await, as in a notebook


def test_manifests_in_blocks_are_valid() -> None:
    for block in ALL:
        if block.language != "yaml":
            continue
        for document in yaml.safe_load_all(block.text):
            if isinstance(document, dict) and document.get("kind") in KINDS:
                kind = KINDS[document["kind"]]
                assert document["apiVersion"] == kind.api_version, block.where
                _, causes = decode(kind.spec_model, document.get("spec", {}))
                assert not causes, block.where
