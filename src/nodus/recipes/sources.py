"""Reads source text the way packaging needs it: which top-level statement binds a name, and which names one uses."""

from __future__ import annotations

import ast
import linecache
import symtable
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(eq=False)
class Source:
    """The text of one file, or of one notebook cell."""

    filename: str
    lines: list[str]
    statements: list[ast.stmt] = field(init=False)

    def __post_init__(self) -> None:
        self.statements = ast.parse("".join(self.lines)).body

    @classmethod
    def load(cls, filename: str, namespace: Mapping[str, Any]) -> Source | None:
        """Return the source a function was compiled from, or None where Python no longer has it."""
        linecache.checkcache(filename)
        lines = linecache.getlines(filename, dict(namespace))
        try:
            return cls(filename, lines) if lines else None
        except SyntaxError:  # a notebook cell with %magic lines, or a file that was edited since it was imported
            return None

    @property
    def label(self) -> str:
        """How messages call the file."""
        return "notebook" if self.filename.startswith("<") or "ipykernel" in self.filename else Path(self.filename).name

    def text(self, statement: ast.stmt) -> list[tuple[int, str]]:
        """Return a statement's lines with their numbers, decorators included."""
        first, last = span(statement)
        shared = any(
            other is not statement and span(other)[0] <= last and span(other)[1] >= first for other in self.statements
        )
        if shared:  # a; b on one line
            return [(first, line) for line in ast.unparse(statement).splitlines()]
        return [(number, self.lines[number - 1].rstrip("\n")) for number in range(first, last + 1)]

    @cached_property
    def bindings(self) -> dict[str, list[ast.stmt]]:
        """Statements by the names they bind at the top level, without those under ``if __name__ == "__main__"``."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in self.statements:
            if not is_main_block(statement):
                for name in bound_names(statement):
                    found.setdefault(name, []).append(statement)
        return found

    @cached_property
    def imported(self) -> set[str]:
        """Names that imports bind."""
        return {
            name
            for name, statements in self.bindings.items()
            if all(isinstance(statement, ast.Import | ast.ImportFrom) for statement in statements)
        }

    def imported_with(self, names: Collection[str]) -> set[str]:
        """Return the names that are imported from modules that some of ``names`` are imported from."""
        modules = {
            module for name in names for statement in self.bindings.get(name, ()) for module in _modules(statement)
        }
        return {name for name in self.imported for each in self.bindings[name] if modules & _modules(each)}

    @cached_property
    def main_bindings(self) -> dict[str, ast.stmt]:
        """Statements under ``if __name__ == "__main__"`` by the names they bind."""
        return {
            name: inner
            for statement in self.statements
            if isinstance(statement, ast.If) and is_main_block(statement)
            for inner in statement.body
            for name in bound_names(inner)
        }


def _modules(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.ImportFrom):
        return {statement.module or ""}
    return {alias.name for alias in statement.names} if isinstance(statement, ast.Import) else set()


def span(statement: ast.stmt) -> tuple[int, int]:
    """Return a statement's first and last line, decorators included."""
    first = statement.lineno
    if isinstance(statement, Definition):
        first = min([first, *(decorator.lineno for decorator in statement.decorator_list)])
    return first, statement.end_lineno or statement.lineno


def is_main_block(statement: ast.stmt) -> bool:
    """Whether a statement is ``if __name__ == ...``."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def bound_names(statement: ast.stmt) -> set[str]:
    """Return the names that a top-level statement binds."""
    return {
        symbol.get_name()
        for symbol in _table(statement).get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }


def used_names(statement: ast.stmt) -> set[str]:
    """Return the global names that a top-level statement reads, also deep inside; annotations don't count."""
    return set(_globals_of(_table(statement), top=True))


def _globals_of(table: symtable.SymbolTable, *, top: bool) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (top or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals_of(child, top=False)


def _table(statement: ast.stmt) -> symtable.SymbolTable:
    # A copy by way of the text: the transformer below changes nodes in place.
    copied = ast.parse(ast.unparse(statement))
    return symtable.symtable(
        ast.unparse(ast.fix_missing_locations(_WithoutAnnotations().visit(copied))), "reward", "exec"
    )


class _WithoutAnnotations(ast.NodeTransformer):
    """Drops annotations: the packaged module never evaluates them."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return ast.Pass()
        return ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno)


def line_of(statement: ast.AST, name: str) -> int:
    """Return the line where a statement first uses a name."""
    lines = [node.lineno for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id == name]
    return min(lines, default=getattr(statement, "lineno", 1))
