"""Which objects a statement changes when it runs: what a reward uses may be filled by lines that bind no name.

``TABLE[key] = value``, ``WORDS.append(word)``, ``Config.limit = 3``, ``random.shuffle(WORDS)``, ``setup()`` where that
function sets a global, ``@scorer`` where that one files what it decorates, a class whose base keeps its subclasses.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from nodus.recipes.sources import Definition, Source, is_main_block

_IN_PLACE = frozenset({"shuffle", "heapify", "heappush", "insort", "insort_left", "insort_right", "setattr", "delattr"})
_SETS_UP = frozenset(
    {"seed", "setrecursionlimit", "set_int_max_str_digits", "filterwarnings", "simplefilter", "setcontext"}
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def changes(statement: ast.stmt, source: Source, running: Collection[str] = ()) -> set[str]:
    """Return the names whose objects a top-level statement changes when it runs.

    Args:
        statement: A top-level statement of the source.
        source: Where the functions and classes stand that the statement calls.
        running: Functions that run with every reward: what calling one leaves, such as a cache, is not needed.
    """
    if isinstance(statement, ast.Import | ast.ImportFrom) or is_main_block(statement):
        return set()
    found: set[str] = set()
    if isinstance(statement, Definition):
        for decorator in statement.decorator_list:
            found |= _decorates(decorator, source)
        if isinstance(statement, ast.ClassDef):
            for base in statement.bases:
                found |= _called(base, source, "__init_subclass__", set())
    else:
        for node in _run_by(statement):
            found |= _changed_by(node, source, set(running))
    return found - {""}


def _decorates(decorator: ast.expr, source: Source) -> set[str]:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(function, ast.Attribute):
        return {_root(function)} - source.imported
    return _called(function, source, "__init__", set()) | _called(function, source, "__call__", set())


def _run_by(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a node does, without the bodies of functions it defines."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Function | ast.Lambda):
            yield from _run_by(child)


def _changed_by(node: ast.AST, source: Source, seen: set[str]) -> set[str]:
    if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        return {_root(node)}
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        root = _root(node.value.func)
        if root not in source.imported or node.value.func.attr in _SETS_UP:
            return {root} | _in_place(node.value)
    if isinstance(node, ast.Call):
        return _called(node.func, source, "__init__", seen) | _in_place(node)
    return set()


def _in_place(call: ast.Call) -> set[str]:
    """Return what a call to one of the library's functions changes: ``random.shuffle(WORDS)``."""
    name = (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )
    if name in _SETS_UP:
        return {_root(call.func)}
    return {_root(call.args[0])} if name in _IN_PLACE and call.args else set()


def _called(function: ast.expr, source: Source, method: str, seen: set[str]) -> set[str]:
    """Return the globals that calling a function of the source, or a method of one of its classes, changes."""
    if not isinstance(function, ast.Name) or function.id in seen:
        return set()
    found: set[str] = set()
    for statement in source.bindings.get(function.id, ()):
        bodies: Sequence[ast.AST] = ()
        if isinstance(statement, _Function):
            bodies = [statement]
        elif isinstance(statement, ast.ClassDef):
            bodies = [each for each in statement.body if isinstance(each, _Function) and each.name == method]
        for body in bodies:
            found |= _globals_changed(body, source, seen | {function.id})
    return found


def _globals_changed(function: ast.AST, source: Source, seen: set[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(function):  # nested functions too: a decorator's wrapper belongs to it
        if isinstance(node, ast.Global):
            found |= set(node.names)
        found |= _changed_by(node, source, seen)
    local = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    local |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    stated = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    return found - (local - stated)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
