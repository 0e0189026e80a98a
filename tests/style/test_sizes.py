"""Files and functions stay short enough to read at once. Offenders are listed with their length and may only shrink."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from tests.style._sources import ROOT, python_files, shown, tree

MAX_SOURCE_LINES = 600
MAX_TEST_LINES = 1000
MAX_FUNCTION_LINES = 80
ALLOWLIST: dict[str, int] = json.loads((ROOT / "tests" / "style" / "size_allowlist.json").read_text())
"""Length by `path` or `path::function` of what is too long and was when the limit came."""


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function's name and its lines, docstring and nested functions' own lines included once."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if ast.get_docstring(node):
            docstring = node.body[0]
            lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
        yield node.name, lines


def _too_long() -> dict[str, int]:
    found: dict[str, int] = {}
    for folder, limit in (("src", MAX_SOURCE_LINES), ("bench", MAX_SOURCE_LINES), ("tests", MAX_TEST_LINES)):
        for path in python_files(folder):
            lines = len(path.read_text().splitlines())
            if lines > limit:
                found[shown(path)] = lines
            found.update(
                {f"{shown(path)}::{name}": size for name, size in _functions(path) if size > MAX_FUNCTION_LINES}
            )
    return found


def test_nothing_is_too_long_but_what_is_listed() -> None:
    grown = {name: size for name, size in _too_long().items() if size > ALLOWLIST.get(name, 0)}
    assert not grown, "split by phase or by noun"


def test_the_list_shrinks_with_what_it_lists() -> None:
    sizes = _too_long()
    stale = {name: size for name, size in ALLOWLIST.items() if sizes.get(name, 0) < size}
    assert not stale, "write the new, smaller numbers into tests/style/size_allowlist.json, or remove them"
