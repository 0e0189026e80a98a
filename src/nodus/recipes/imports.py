"""Which modules a reward may import: those that the grader has, and those of packages that go along."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import sys
import sysconfig
from collections.abc import Collection, Iterator
from pathlib import Path

from nodus.core.libraries import GRADER_LIBRARIES
from nodus.recipes.errors import RewardError

_GRADER = "nodus.grader"
CODE_MODULE = f"{_GRADER}.code"
"""What of Nodus itself a reward may import: it runs code of a completion in a sandbox of its own."""


def check_imports(label: str, statement: ast.stmt, provided: Collection[str]) -> None:
    """Check every import in a statement, also inside functions.

    Args:
        label: How messages call the file it stands in.
        statement: A top-level statement that will be packaged.
        provided: Modules of packages that go along.

    Raises:
        RewardError: For a module that the grader would not have; with the line and what to do.
    """
    for node, optional in _imports(statement, optional=False, top=True):
        where = f"{label}:{node.lineno}"
        if isinstance(node, ast.ImportFrom):
            if node.level:
                raise RewardError(
                    f"{where}: {ast.unparse(node)!r} is a relative import, and the reward travels without its package",
                    fix="Move what it imports into the reward's own file.",
                )
            modules = [node.module or ""]
            if modules == [_GRADER]:
                modules = [f"{_GRADER}.{alias.name}" for alias in node.names]
        else:
            modules = [alias.name for alias in node.names]
        for module in modules:
            if not optional:
                _check_module(module, where, ast.unparse(node), provided)


def _check_module(full_name: str, where: str, text: str, provided: Collection[str]) -> None:
    module = full_name.split(".")[0]
    if full_name == CODE_MODULE or module in {*sys.stdlib_module_names, *GRADER_LIBRARIES, *provided}:
        return
    if module == "nodus":
        raise RewardError(
            f"{where}: {text!r}: of nodus the grader has nothing but {CODE_MODULE}",
            fix=f"Write the reward without it; `from {CODE_MODULE} import run_code` runs code of a completion.",
        )
    if _is_own_module(module):
        raise RewardError(
            f"{where}: {text!r} imports a module of yours, and only the reward's own file is taken along",
            fix="Move what the reward uses into its file, or publish it as a package and pass pip=[...].",
        )
    requirement = _installed_requirement(module)
    raise RewardError(
        f"{where}: {text!r}: the grader has no module {module!r}",
        fix=f'Pass pip=["{requirement}"], or write the reward without it. The grader has the standard library, '
        f"{', '.join(list(GRADER_LIBRARIES)[:-1])} and {list(GRADER_LIBRARIES)[-1]}.",
    )


def _imports(node: ast.AST, *, optional: bool, top: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield imports; optional ones stand in a ``try`` that survives their absence, or a branch that was not taken."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, optional
        return
    if isinstance(node, ast.Try) and any(_catches_import_error(handler) for handler in node.handlers):
        for child in node.body:
            yield from _imports(child, optional=True, top=top)
        for rest in [*node.handlers, *node.orelse, *node.finalbody]:
            yield from _imports(rest, optional=optional, top=top)
        return
    top = top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    for inner in ast.iter_child_nodes(node):
        skipped = top and isinstance(node, ast.If) and not _was_imported(inner)
        yield from _imports(inner, optional=optional or skipped, top=top)


def _was_imported(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return bool(node.level) or node.module in sys.modules
    return not isinstance(node, ast.Import) or all(alias.name in sys.modules for alias in node.names)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


def _is_own_module(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    origin = spec.origin or next(iter(spec.submodule_search_locations or []), "")
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")]
    places = [
        *installed,
        *(Path(entry).resolve() for entry in sys.path if "site-packages" in entry or "dist-packages" in entry),
    ]
    return bool(origin) and not any(Path(origin).resolve().is_relative_to(place) for place in places)


def _installed_requirement(module: str) -> str:
    names = importlib.metadata.packages_distributions().get(module) or []
    if not names:
        return f"{module}==VERSION"
    return f"{names[0]}=={importlib.metadata.version(names[0])}"
