"""Small rules that a linter does not know: names, words, reasons, sleeps and mocks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.style._sources import ROOT, project_files, python_files, shown, tree

TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".cfg", ".ini", ".html", ".css", ".js", ""}
FORBIDDEN = {
    # Addresses of package registries: pip, apt and npm know where to look, and users may have mirrors.
    r"\bpypi\.org|pythonhosted\.org|registry\.npmjs|\bdeb\.debian\.org|archive\.ubuntu\.com": "a registry's address",
    # Places of one machine.
    r"/work/|/opt/wheels|/opt/pypi|/root/\.pyenv|/tmp/nodus\b": "a path of one machine",
    # Pages that readers of this repository do not have.
    r"\b(rulings|wire|gangs|CONTRACT)\.md\b|\bshared/(design|product|cases)\b": "a page that is not here",
    r"\b(TODO|FIXME|XXX)\b": "an unfinished thing",
}
MAX_MOCK_LINES_PER_100_TESTS = 10


def _text_files() -> list[Path]:
    here = Path(__file__)
    return [p for p in project_files() if p.suffix in TEXT_SUFFIXES and p != here and p.name != "LICENSE"]


def test_no_forbidden_words() -> None:
    wrong = []
    for path in _text_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for pattern, what in FORBIDDEN.items():
                if re.search(pattern, line):
                    wrong.append(f"{shown(path)}:{number} {what}: {line.strip()[:100]}")
    assert not wrong


def test_no_module_is_named_utils() -> None:
    assert not [shown(p) for p in python_files("src") if re.fullmatch(r"(utils?|helpers?|misc)\d*", p.stem)]


def test_broad_excepts_give_a_reason_on_their_line() -> None:
    wrong = []
    for path in python_files("src", "bench"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "noqa: BLE001" in line and not re.search(r"noqa: BLE001 - \w.{8,}", line):
                wrong.append(f"{shown(path)}:{number}: {line.strip()}")
    assert not wrong


def test_type_ignores_name_their_error_code() -> None:
    pattern = re.compile(r"type:\s*ignore(?!\[)")
    wrong = [shown(p) for p in python_files("src") if pattern.search(p.read_text())]
    assert not wrong


def test_tests_do_not_sleep_without_a_reason() -> None:
    """Waiting is `nodus.testing.eventually`; a real sleep gives its reason as a comment on its line."""
    wrong = []
    for path in python_files("tests"):
        lines = path.read_text().splitlines()
        for node in ast.walk(tree(path)):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep")):
                continue
            is_yield = bool(node.args) and ast.unparse(node.args[0]) == "0"
            if not is_yield and "#" not in lines[node.lineno - 1]:
                wrong.append(f"{shown(path)}:{node.lineno}")
    assert not wrong


def test_mocks_stay_rare() -> None:
    pattern = re.compile(r"\bunittest\.mock\b|\bMagicMock\b|\bAsyncMock\b|\bMock\(|\bmonkeypatch\.setattr\b")
    mocks = tests = 0
    for path in python_files("tests"):
        if path == Path(__file__):
            continue
        text = path.read_text()
        mocks += sum(bool(pattern.search(line)) for line in text.splitlines())
        tests += len(re.findall(r"^\s*(?:async )?def test_", text, re.MULTILINE))
    assert mocks * 100 <= MAX_MOCK_LINES_PER_100_TESTS * tests


def test_public_functions_and_classes_of_the_package_have_docstrings() -> None:
    """Ruff's D rules check their form; this counts the public ones without any, nested ones apart."""
    wrong = []
    for path in python_files("src"):
        if "migrations" in path.parts:
            continue  # Alembic decides their functions
        for node in tree(path).body:
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if named and not node.name.startswith("_") and not ast.get_docstring(node):
                wrong.append(f"{shown(path)}:{node.lineno} {node.name}")
    assert not wrong


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_contributing_pages_are_short() -> None:
    pages = (ROOT / "docs" / "contributing").glob("*.md")
    assert not [shown(page) for page in pages if len(page.read_text().splitlines()) > 150]
