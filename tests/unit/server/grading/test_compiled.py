"""Which Python a bundle's compiled modules need, from names alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodus.server.grading.compiled import BadBundle, files_of, needed_python, version_of

LINUX = "x86_64-linux-gnu"
OWN = f"cpython-311-{LINUX}"
HERE = {"3.12": f"cpython-312-{LINUX}", "3.13t": f"cpython-313t-{LINUX}", "3.14": "cpython-314-aarch64-linux-gnu"}


def module(python: str, platform: str = LINUX, name: str = "site/fast/core") -> str:
    return f"{name}.{python}-{platform}.so"


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["nodus_task.py", "site/pure/__init__.py"],
        [module("cpython-311")],
        ["site/fast/core.abi3.so", "site/fast/plain.so", "site/fast.libs/libgomp-1234.so.1.0.0"],
        [module("cpython-311"), module("cpython-312")],
        [module("cpython-311"), module("cpython-311", "darwin")],
    ],
    ids=["nothing", "pure", "own", "stable interface and libraries", "several Pythons", "several platforms"],
)
def test_bundle_that_fits_the_graders_own_python_needs_no_other(names: list[str]) -> None:
    assert needed_python(names, OWN, HERE.get) is None


def test_compiled_for_another_python_takes_that_python_of_the_host() -> None:
    assert needed_python([module("cpython-312"), "task.py"], OWN, HERE.get) == "3.12"
    assert needed_python([module("cpython-313t")], OWN, HERE.get) == "3.13t"
    both = [module("cpython-310"), module("cpython-312"), module("cpython-312", name="site/other/core")]
    assert needed_python(both, OWN, HERE.get) == "3.12"  # the one that loads them all


@pytest.mark.parametrize(
    ("names", "message", "fix"),
    [
        (
            [module("cpython-310")],
            "is compiled for Python 3.10, and graders here run Python 3.11 on x86_64-linux-gnu",
            "have python3.10 on the server's PATH",
        ),
        ([module("cpython-314")], "is compiled for Python 3.14", "Build the bundle with Python 3.11"),
        ([module("cpython-312"), module("cpython-311", name="a")], "for Python 3.12", "vendor packages without"),
        ([module("pypy311-pp73")], "is compiled for pypy311-pp73", "without compiled modules"),
        ([module("cpython-311", "darwin")], "another platform than the grader's x86_64-linux-gnu", "Vendor wheels for"),
        ([module("cpython-311", "aarch64-linux-gnu")], "another platform", "Vendor wheels for x86_64-linux-gnu"),
        (["site/fast/core.cp312-win_amd64.pyd"], "is compiled for Windows", "wheels for Linux"),
        (["site/fast/libfast.dylib"], "is compiled for macOS", "wheels for Linux"),
    ],
    ids=["no such Python", "its platform differs", "two Pythons", "PyPy", "macOS tag", "processor", "Windows", "dylib"],
)
def test_bundle_that_no_python_there_can_load_is_refused(names: list[str], message: str, fix: str) -> None:
    with pytest.raises(BadBundle, match=message) as caught:
        needed_python(names, OWN, HERE.get)
    assert names[0] in caught.value.message and fix in str(caught.value.fix)


def test_versions_are_written_as_programs_are_called() -> None:
    assert [version_of(tag) for tag in ("cpython-38", "cpython-312", "cpython-313t")] == ["3.8", "3.12", "3.13t"]


def test_files_are_listed_below_the_directory(tmp_path: Path) -> None:
    (tmp_path / "site" / "n").mkdir(parents=True)
    (tmp_path / "site" / "n" / "m.so").touch()
    (tmp_path / "task.py").touch()
    assert files_of(tmp_path) == ["site/n/m.so", "task.py"]
