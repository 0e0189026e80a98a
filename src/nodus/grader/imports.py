"""What an environment's sources import of the libraries that graders have, and which of those are there.

Read from the sources, so that an import inside a function is known before the completion that would run it: a missing
library is found when an environment is built, and one that is there is loaded once, before workers fork.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast

LIBRARIES = {
    "numpy": "numpy",
    "sympy": "sympy",
    "regex": "regex",
    "jsonschema": "jsonschema",
    "math_verify": "math-verify",
    "reasoning_gym": "reasoning-gym",
    "openenv": "openenv",
}
"""Module to distribution, as in ``nodus.core.libraries``, which a sandbox does not see."""
VENDORED = "site"
_REASON_CHARS = 300


def report(paths: Sequence[str]) -> dict[str, Any]:
    """Return this Python's version, the libraries' versions, and what the sources below some directories lack of them.

    Args:
        paths: Directories of sources; ``site/`` in them is searched for libraries, not for imports.

    Returns:
        ``python``, ``libraries`` (distribution to version) and ``missing`` (module to what importing it said). Optional
        imports, in a ``try`` that survives their absence, are never missing.
    """
    versions = {distribution: _version(distribution) for distribution in LIBRARIES.values()}
    missing: dict[str, str] = {}
    for module, optional in sorted(used(paths)):
        top = module.partition(".")[0]
        if not optional and top not in missing and (reason := _lack(module)):
            missing[top] = reason
    found = {name: version for name, version in versions.items() if version}
    return {"python": ".".join(map(str, sys.version_info[:3])), "libraries": found, "missing": missing}


def preload(paths: Sequence[str]) -> None:
    """Import the libraries that the sources below some directories import anywhere; what fails fails again in use."""
    for module, _ in used(paths):
        _lack(module)
    if "numpy" in sys.modules:
        _lack("numpy.random")  # numpy loads it on first use, which would be in every fork


def used(paths: Sequence[str]) -> set[tuple[str, bool]]:
    """Return the modules of the libraries that sources import, each with whether that import is optional."""
    found: set[tuple[str, bool]] = set()
    for path in paths:
        for text in _sources(path):
            # most rewards need none, and parsing loads what every fork would have to copy
            if any(name in text for name in LIBRARIES):
                found.update(_imports_of(text))
    return found


def _sources(root: str) -> Iterator[str]:
    for directory, names, files in os.walk(root):
        if directory == root and VENDORED in names:
            names.remove(VENDORED)
        for name in files:
            if name.endswith(".py"):
                with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as stream:
                    yield stream.read()


def _imports_of(text: str) -> Iterator[tuple[str, bool]]:
    import ast  # late: only where there is something to parse

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # importing it says why
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, optional = waiting.pop()
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules = [node.module]
        yield from ((module, optional) for module in modules if module.partition(".")[0] in LIBRARIES)
        survives = isinstance(node, ast.Try) and any(map(_survives_absence, node.handlers))
        for child in ast.iter_child_nodes(node):
            inside = survives and isinstance(node, ast.Try) and child in node.body
            waiting.append((child, optional or inside))


def _survives_absence(handler: ast.ExceptHandler) -> bool:
    import ast

    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


def _lack(module: str) -> str:
    """Import a module; return why its library is not there, empty when it is or when only that part of it is not."""
    top = module.partition(".")[0]
    try:
        importlib.import_module(module)
    except ImportError as error:
        elsewhere = (error.name or "").partition(".")[0] != top
        if elsewhere or importlib.util.find_spec(top) is None:
            return str(error)[:_REASON_CHARS]
    except Exception:  # noqa: BLE001 - a library that fails otherwise fails the environment where it is used
        return ""
    return ""


def _version(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
