"""What is found in sources of the graders' libraries."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nodus.core.libraries import GRADER_INSTALL, GRADER_LIBRARIES
from nodus.grader import imports

SOURCE = """
import json, sympy
from openenv.core import Environment as numpy_of_mine
try:
    import regex
except ImportError:
    import jsonschema
try:
    import numpy.linalg
except KeyError:
    pass

def reward(completion, answer):
    from math_verify import parse
    from .sympy import own
    "import reasoning_gym"
"""


def test_server_and_sandbox_mean_the_same_libraries() -> None:
    assert dict(GRADER_LIBRARIES) == imports.LIBRARIES


def test_setup_and_the_fix_install_the_same_openenv() -> None:
    setup = (Path(__file__).resolve().parents[3] / "scripts" / "setup").read_text()
    (line,) = [line for line in setup.splitlines() if line.startswith("OPENENV_PACKAGE=")]
    assert line.removeprefix("OPENENV_PACKAGE=") in GRADER_INSTALL


def test_imports_are_found_wherever_they_stand_and_optional_ones_known(tmp_path: Path) -> None:
    (tmp_path / "nodus_task.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("import numpy as\n")
    (tmp_path / "site" / "dependency").mkdir(parents=True)
    (tmp_path / "site" / "dependency" / "__init__.py").write_text("import reasoning_gym")
    assert imports.used([str(tmp_path), str(tmp_path / "none")]) == {
        ("sympy", False),
        ("openenv.core", False),
        ("regex", True),
        ("jsonschema", False),
        ("numpy.linalg", False),
        ("math_verify", False),
    }


def test_report_names_what_is_missing_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodus_task.py").write_text(SOURCE)
    for module in ("regex", "math_verify"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it then fails, as without it
    report = imports.report([str(tmp_path)])
    assert set(report["missing"]) == {"math_verify"} and "math_verify" in report["missing"]["math_verify"]
    assert report["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(report["libraries"]) == set(GRADER_LIBRARIES.values())


def test_part_that_a_library_does_not_have_is_not_a_missing_library(tmp_path: Path) -> None:
    (tmp_path / "nodus_task.py").write_text("def reward(c, a):\n    import regex.no_such_part")
    assert imports.report([str(tmp_path)])["missing"] == {}


def test_library_that_lacks_what_it_needs_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodus_task.py").write_text("import regex")
    (tmp_path / "regex.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "regex", raising=False)
    assert imports.report([str(tmp_path)])["missing"] == {"regex": "No module named 'no_such_dependency'"}


def test_preload_imports_what_only_a_function_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodus_task.py").write_text("def reward(c, a):\n    import regex")
    (tmp_path / "regex.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "regex", raising=False)
    imports.preload([str(tmp_path)])
    assert sys.modules.pop("regex").__file__ == str(tmp_path / "regex.py")
