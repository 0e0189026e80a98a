"""Where code runs decides what it may import: arrows point down to core, and heavy libraries load late."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.style._sources import SOURCE, imports, python_files, shown

PARTS: dict[str, set[str]] = {
    # part: the parts of Nodus that it may import
    "core": {"core"},
    "client": {"core", "client"},
    "recipes": {"core", "client", "recipes"},
    "examples": {"core", "client", "recipes", "examples"},
    "cli": {"core", "client", "cli"},
    "server": {"core", "server"},
    "trainer": {"core", "runtime", "trainer"},
    "runtime": {"core", "runtime"},
    "grader": {"grader"},
    "sandboxinit": {"sandboxinit"},
    # Stand-ins take the shape of what they stand in for.
    "testing": {"core", "client", "server", "testing"},
}
LATE_PARTS: dict[str, set[str]] = {
    # The same, for imports inside functions: `nodus up` starts the server it ships with.
    "cli": {"server", "recipes"},
    # A reward that has code run is tried with what runs it.
    "recipes": {"grader"},
    "testing": {"trainer"},
}
LIBRARIES: dict[str, set[str]] = {
    # part: the only libraries beside Python's own that it may import; parts that are not listed may import any
    "core": {"pydantic", "pydantic_core"},
    "client": {"httpx", "pathspec", "rich", "websockets", "yaml"},
    "recipes": {"httpx", "yaml", "rich"},
    "examples": {"rich"},
    "cli": {"click", "httpx", "rich", "yaml"},
    "grader": set(),
    "sandboxinit": set(),
    "runtime": set(),
}
HEAVY = {"torch", "transformers", "trl", "peft", "accelerate", "datasets", "ray", "vllm"}
STANDARD_LIBRARY_ONLY = [
    # Run beside untrusted code, in a bare sandbox, or by the hundred: a library costs start-up time and attack surface.
    "nodus.server.compute.local.supervisor",
    "nodus.server.compute.local.sandbox",
    "nodus.grader.main",
    "nodus.sandboxinit.main",
]


def _part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0]


def _wraps_a_library(path: Path) -> bool:
    """Environments of the catalog, and adapters of ecosystems, import, late, what they wrap."""
    grader = SOURCE / "grader"
    return {grader / "catalog", grader / "adapters"} & set(path.parents) != set() or path == grader / "reasoning.py"


@pytest.mark.parametrize("part", sorted(PARTS))
def test_part_imports_only_parts_below_it(part: str) -> None:
    wrong = []
    for path in python_files(f"src/nodus/{part}"):
        for module, line, at_import in imports(path):
            names = module.split(".")
            if names[0] != "nodus" or len(names) < 2 or names[1] not in PARTS:
                continue
            allowed = PARTS[part] | (set() if at_import else LATE_PARTS.get(part, set()))
            if names[1] not in allowed:
                wrong.append(f"{shown(path)}:{line} imports {module}")
    assert not wrong


def test_grading_knows_no_backend_but_the_protocol() -> None:
    """Graders run on the job's host, on whatever backend that is: what starts them is behind ``compute/graders.py``."""
    allowed = {"nodus.server.compute.base", "nodus.server.compute.builds", "nodus.server.compute.graders"}
    wrong = [
        f"{shown(path)}:{line} imports {module}"
        for path in python_files("src/nodus/server/grading")
        for module, line, _ in imports(path)
        if module.startswith("nodus.server.compute") and module not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("part", sorted(LIBRARIES))
def test_part_imports_only_its_libraries(part: str) -> None:
    wrong = []
    for path in python_files(f"src/nodus/{part}"):
        for module, line, at_import in imports(path):
            top = module.split(".")[0]
            if top in sys.stdlib_module_names or top in LIBRARIES[part] | {"nodus"}:
                continue
            if _wraps_a_library(path) and not at_import:
                continue
            wrong.append(f"{shown(path)}:{line} imports {module}")
    assert not wrong


def test_only_the_trainer_imports_the_training_stack() -> None:
    wrong = [
        f"{shown(path)}:{line} imports {module}"
        for path in python_files("src/nodus")
        if _part(path) not in ("trainer", "testing")
        for module, line, _ in imports(path)
        if module.split(".")[0] in HEAVY
    ]
    assert not wrong


def _loaded_after(code: str) -> set[str]:
    listing = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


NOT_ON_IMPORT = HEAVY | {"sqlalchemy", "starlette", "uvicorn", "fastapi", "alembic", "numpy", "rich", "jsonschema"}


@pytest.mark.parametrize("module", ["nodus", "nodus.cli.main", "nodus.recipes.rl"])
def test_import_loads_no_heavy_library(module: str) -> None:
    assert not _loaded_after(f"import {module}") & NOT_ON_IMPORT


@pytest.mark.parametrize("module", STANDARD_LIBRARY_ONLY)
def test_what_runs_beside_untrusted_code_needs_the_standard_library_only(module: str) -> None:
    # Counted from a bare start, since a virtual environment's .pth files may load things of their own.
    extra = _loaded_after(f"import {module}") - _loaded_after("") - set(sys.stdlib_module_names)
    assert extra == {"nodus"}


def test_import_nodus_loads_no_pydantic() -> None:
    assert not _loaded_after("import nodus") & {"pydantic", "httpx", "click"}


def test_help_of_the_command_line_loads_no_heavy_library() -> None:
    code = """
        from nodus.cli.main import main
        try:
            main(["--help"])
        except SystemExit:
            pass
    """
    assert not _loaded_after(textwrap.dedent(code)) & (NOT_ON_IMPORT | {"pydantic"})
