"""The files that the style tests read, and their syntax trees."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "nodus"


@cache
def project_files() -> tuple[Path, ...]:
    """Every file of the project, committed or about to be; what git ignores is not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for name in sorted(listed.split("\0")) if name and (path := ROOT / name).is_file())


def python_files(*folders: str) -> list[Path]:
    """The Python files below these folders of the project."""
    roots = [ROOT / folder for folder in folders]
    return [p for p in project_files() if p.suffix == ".py" and any(root in p.parents for root in roots)]


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Each import of a file: dotted module, line, and whether it runs when the file is imported."""
    late = {id(node) for block in ast.walk(tree(path)) if _runs_late(block) for node in ast.walk(block)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) not in late
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(path, node)
            yield module, node.lineno, id(node) not in late
            if module == "nodus":
                for alias in node.names:
                    yield f"nodus.{alias.name}", node.lineno, id(node) not in late


def _runs_late(block: ast.AST) -> bool:
    """Whether what is inside runs when it is called, or never: functions, and imports for types alone."""
    if isinstance(block, ast.If):
        return ast.unparse(block.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    return isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = list(path.relative_to(ROOT / "src").with_suffix("").parts)[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def shown(path: Path) -> str:
    """The path as messages name it, from the project's root."""
    return str(path.relative_to(ROOT))
