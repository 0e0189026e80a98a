"""The runner as it is started in a sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nodus.grader

SOURCE = """
import code

def tasks(split):
    return [{"prompt": split, "answer": "", "metadata": {"code": hasattr(code, "InteractiveConsole")}}]

def reward(completion, answer):
    return 1.0
"""


def test_modules_of_the_runner_hide_none_of_pythons_own(tmp_path: Path) -> None:
    (tmp_path / "shadowed.py").write_text(SOURCE)
    directory = str(Path(nodus.grader.__file__).parent)
    options = ["--path", str(tmp_path), "--loader", "shadowed", "tasks", "--split", "test"]
    done = subprocess.run(
        [sys.executable, "-S", "-s", "-P", "-B", directory, *options], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["metadata"] == {"code": True}
