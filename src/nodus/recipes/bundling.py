"""Packages a reward function: the function, and the lines of its own file that it uses.

Starting from the function, every global name it reads is looked up among the top-level statements of its file; those
statements go along, with the names that they read, and so on. What can't be found as source can't go along, and that
is an error here, on the user's machine, with the line to change: what is captured from an enclosing function, what was
made in an interactive session, what another module of the user defines, what a package brings that the grader lacks.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from nodus.recipes.effects import changes
from nodus.recipes.errors import RewardError
from nodus.recipes.imports import check_imports
from nodus.recipes.sources import Source, line_of, span, used_names

MODULE_NAMES = frozenset({"__name__", "__doc__", "__builtins__", "__spec__", "__loader__", "__package__"})
HEADER = ("from __future__ import annotations", "")


@dataclass(frozen=True, slots=True)
class PackagedReward:
    """A module of its own that holds a reward and what it uses."""

    text: str
    """The module's source."""
    name: str
    """The reward's name in it."""
    origins: dict[int, str]
    """``FILE:LINE`` by line of the module."""

    def origin(self, line: int | None) -> str:
        """Return where a line of the module came from; the reward's name when that is unknown."""
        return self.origins.get(line or 0, self.name)


def package_reward(reward: Callable[..., Any], provided: Collection[str] = ()) -> PackagedReward:
    """Return a module with the reward and everything of its own file that it uses.

    Args:
        reward: A function ``reward(completion, answer)`` at the top level of a file or notebook cell.
        provided: Modules of packages that go along.

    Raises:
        RewardError: When something it uses can't go along; the message names file, line and what to change.
    """
    function, bound = _plain_function(reward)
    source = Source.load(function.__code__.co_filename, function.__globals__)
    if source is None:
        raise RewardError(
            f"the source of {function.__name__}() can't be read (it was made in {function.__code__.co_filename})",
            fix="Put the reward in a file, or define it in a notebook cell of its own, and run it from there.",
        )
    definition = _definition(source, function)
    _check_signature(source, definition, function)
    packer = _Packer(function, provided)
    name = bound or function.__name__
    for statement in source.bindings[name] if bound else [definition]:
        packer.take(source, statement, name)
    packer.take_changes(name)
    return packer.module(name)


def _plain_function(reward: Callable[..., Any]) -> tuple[types.FunctionType, str | None]:
    """Return the function behind the reward, and its name at the top level where decorators made something else of it.

    Raises:
        RewardError: When it isn't a function that can travel.
    """
    if (decorated := _decorated(reward)) is not None:
        return decorated
    function = inspect.unwrap(reward)
    if function is not reward and isinstance(function, types.FunctionType):
        raise RewardError(
            f"the reward is {function.__name__}() with something around it, which can't go along",
            fix=f"Decorate it where it is defined: put the decorator above `def {function.__name__}`.",
        )
    if isinstance(function, types.MethodType):
        raise RewardError(
            f"the reward {function.__qualname__} is a method, and its object can't go along",
            fix="Write it as a function at the top level: def reward(completion, answer): ...",
        )
    if not isinstance(function, types.FunctionType):
        what = f"a {type(function).__name__}" if callable(function) else f"{function!r}, which can't be called"
        raise RewardError(
            f"the reward is {what}, not a function", fix="Pass a function: def reward(completion, answer): ..."
        )
    where = f"{function.__code__.co_filename.rsplit('/', 1)[-1]}:{function.__code__.co_firstlineno}"
    if function.__name__ == "<lambda>":
        raise RewardError(
            f"{where}: the reward is a lambda, whose source can't be cut out reliably",
            fix="Write it as a function: def reward(completion, answer): ...",
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise RewardError(
            f"{where}: the reward is {'async' if inspect.iscoroutinefunction(function) else 'a generator'}",
            fix="Write a plain function that returns a number, a bool or None.",
        )
    captured = function.__code__.co_freevars
    if captured:
        raise RewardError(
            f"{where}: the reward uses {captured[0]!r} of the function around it, which can't go along",
            fix=f"Move {function.__name__} and {captured[0]} to the top level of the file.",
        )
    if "<locals>" in function.__qualname__ or "." in function.__qualname__:
        outer = function.__qualname__.removesuffix(f".{function.__name__}").replace(".<locals>", "")
        raise RewardError(
            f"{where}: the reward is defined inside {outer!r}",
            fix=f"Move `def {function.__name__}` to the top level of the file.",
        )
    return function, None


def _decorated(reward: Any) -> tuple[types.FunctionType, str] | None:
    """Return the function that decorators were put on, and its name, where that name still is the reward."""
    inside: list[Any] = [inspect.unwrap(reward)] if hasattr(reward, "__wrapped__") else []
    looked: list[Any] = [reward]
    while looked:
        for cell in getattr(looked.pop(), "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty cell
                if isinstance(cell.cell_contents, types.FunctionType) and cell.cell_contents not in inside:
                    inside.append(cell.cell_contents)
                    looked.append(cell.cell_contents)
    for function in inside:
        if not isinstance(function, types.FunctionType) or function.__qualname__ != function.__name__:
            continue
        source = Source.load(function.__code__.co_filename, function.__globals__)
        name = function.__name__
        if source is not None and function.__globals__.get(name) is reward and _defines(source, name):
            return function, name
    return None


def _defines(source: Source, name: str) -> bool:
    return any(isinstance(statement, ast.FunctionDef) for statement in source.bindings.get(name, ()))


def _definition(source: Source, function: types.FunctionType) -> ast.stmt:
    line = function.__code__.co_firstlineno
    for statement in source.statements:
        first, last = span(statement)
        if not first <= line <= last:
            continue
        if isinstance(statement, ast.FunctionDef) and statement.name == function.__name__:
            return statement
        if any(isinstance(node, ast.FunctionDef) and node.name == function.__name__ for node in ast.walk(statement)):
            return statement  # defined in a top-level if or try
    raise RewardError(
        f"{source.label}:{line}: there is no function {function.__name__!r} here; "
        "the file changed since it was imported",
        fix="Run it again from the file as it is now.",
    )


def _check_signature(source: Source, definition: ast.stmt, function: types.FunctionType) -> None:
    try:
        inspect.signature(function).bind("completion", "answer")
    except TypeError as error:
        raise RewardError(
            f"{source.label}:{definition.lineno}: {function.__name__}() can't be called with (completion, answer): "
            f"{error}",
            fix=f"Write it as def {function.__name__}(completion, answer): ...",
        ) from error


@dataclass
class _Packer:
    """Collects statements until every name they use is among them."""

    function: types.FunctionType
    provided: Collection[str]
    _taken: dict[Source, list[ast.stmt]] = field(default_factory=dict)
    _made: list[str] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _aliases: dict[int, set[str]] = field(default_factory=dict)
    _cells: dict[str, Source | None] = field(default_factory=dict)

    def take(self, source: Source, statement: ast.stmt, name: str | None = None) -> None:
        """Take a statement and what it uses; of an import only what is needed."""
        if isinstance(statement, ast.Import | ast.ImportFrom):
            wanted = self._aliases.setdefault(id(statement), set())
            if name in wanted:
                return
            wanted.add(str(name))
            if statement not in self._taken.setdefault(source, []):
                self._taken[source].append(statement)
            check_imports(source.label, _trimmed(statement, {str(name)}), self.provided)
            return
        if statement in self._taken.setdefault(source, []):
            return
        self._taken[source].append(statement)
        check_imports(source.label, statement, self.provided)
        for used in sorted(used_names(statement)):
            self._need(source, statement, used)

    def take_changes(self, name: str) -> None:
        """Take the top-level statements that change what was taken: ``TABLE[key] = value``, ``WORDS.append(word)``.

        Args:
            name: The reward's own.
        """
        self._names.add(name)
        running = set(self._names)
        again = True
        while again:
            again = False
            for source in list(self._taken):
                names = self._names | source.imported_with(self._names)
                for statement in source.statements:
                    if statement in self._taken[source] or not changes(statement, source, running) & names:
                        continue
                    self.take(source, statement)
                    again = True

    def _need(self, source: Source, user: ast.stmt, name: str) -> None:
        if name in MODULE_NAMES:
            return
        statements = source.bindings.get(name)
        if statements:
            self._names.add(name)
            for statement in statements:
                self.take(source, statement, name)
            return
        where = f"{source.label}:{line_of(user, name)}"
        if name in ("__file__", "__path__"):
            raise RewardError(
                f"{where}: the reward uses {name}, and the files beside it don't go along",
                fix="Put the data into the tasks, or into a constant of this file.",
            )
        if self._from_star_import(source, name) or self._from_session(name, where):
            return
        # The branch of an `if` or `try` that was not taken may name what is not here (an older Python's builtin).
        if not hasattr(builtins, name) and not isinstance(user, ast.If | ast.Try):
            self._missing(source, name, where)

    def _from_star_import(self, source: Source, name: str) -> bool:
        if name not in self.function.__globals__:
            return False
        for statement in source.statements:
            if not isinstance(statement, ast.ImportFrom) or statement.names[0].name != "*":
                continue
            module = sys.modules.get(statement.module or "")
            if module is not None and getattr(module, name, self) is self.function.__globals__[name]:
                single = ast.ImportFrom(statement.module, [ast.alias(name)], 0, lineno=statement.lineno, col_offset=0)
                check_imports(source.label, single, self.provided)
                self._make(ast.unparse(single))
                return True
        return False

    def _from_session(self, name: str, where: str) -> bool:
        """Take along what is not in the reward's own text but can be written down: cells, modules, literals."""
        if name not in self.function.__globals__:
            return False
        value = self.function.__globals__[name]
        if isinstance(value, types.ModuleType):
            return self._make_import(f"import {value.__name__} as {name}", where)
        if isinstance(value, types.FunctionType | type):
            return self._from_cell(name, value, where)
        if hasattr(builtins, name) and getattr(builtins, name) is value:
            return True
        text = repr(value)
        try:
            same = ast.literal_eval(text) == value and type(ast.literal_eval(text)) is type(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            same = False
        if not same:
            raise RewardError(
                f"{where}: the reward uses {name!r}, a {type(value).__name__} that exists in this session only",
                fix=f"Set {name} at the top level of the reward's file, or pass what it holds with the tasks.",
            )
        self._make(f"{name} = {text}")
        return True

    def _from_cell(self, name: str, value: types.FunctionType | type, where: str) -> bool:
        if value.__module__ not in ("__main__", self.function.__module__):
            return self._make_import(f"from {value.__module__} import {value.__qualname__} as {name}", where)
        filename = value.__code__.co_filename if isinstance(value, types.FunctionType) else _class_file(value)
        if filename not in self._cells:
            self._cells[filename] = Source.load(filename, self.function.__globals__)
        cell = self._cells[filename]
        statements = cell.bindings.get(name) if cell is not None else None
        if cell is None or not statements:
            raise RewardError(
                f"{where}: the source of {name!r} can't be read",
                fix=f"Define {name} at the top level of the reward's file.",
            )
        for statement in statements:
            self.take(cell, statement, name)
        return True

    def _make_import(self, text: str, where: str) -> bool:
        statement = ast.parse(text).body[0]
        try:
            check_imports("session", statement, self.provided)
        except RewardError as error:
            raise RewardError(f"{where}: {error.message.partition(': ')[2]}", fix=error.fix) from None
        self._make(text)
        return True

    def _make(self, text: str) -> None:
        if text not in self._made:
            self._made.append(text)

    def _missing(self, source: Source, name: str, where: str) -> None:
        hidden = source.main_bindings.get(name)
        if hidden is not None:
            raise RewardError(
                f'{where}: the reward uses {name!r}, which line {hidden.lineno} sets under `if __name__ == "__main__"`',
                fix=f"Move line {hidden.lineno} to the top level of the file.",
            )
        raise RewardError(
            f"{where}: the reward uses {name!r}, which is not defined at the top level of its file",
            fix=f"Define or import {name} at the top level of {source.label}.",
        )

    def module(self, name: str) -> PackagedReward:
        """Return the module's text: made lines first, then each source's statements in their order."""
        lines: list[str] = [*HEADER, *self._made]
        origins: dict[int, str] = {}
        # Sources were entered when they were first needed; what a cell needs of another was entered after it.
        for source in reversed(list(self._taken)):
            for statement in sorted(self._taken[source], key=source.statements.index):
                lines.append("")
                for number, text in self._text(source, statement):
                    lines.append(text)
                    origins[len(lines)] = f"{source.label}:{number}"
        return PackagedReward("\n".join(lines) + "\n", name, origins)

    def _text(self, source: Source, statement: ast.stmt) -> list[tuple[int, str]]:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                return []
            return [(statement.lineno, ast.unparse(_trimmed(statement, self._aliases[id(statement)])))]
        return source.text(statement)


def _trimmed(statement: ast.Import | ast.ImportFrom, names: set[str]) -> ast.Import | ast.ImportFrom:
    """Return an import of those names alone, so that what else the line imports does not have to go along."""
    kept = [alias for alias in statement.names if (alias.asname or alias.name.split(".")[0]) in names]
    if isinstance(statement, ast.Import):
        return ast.Import(kept, lineno=statement.lineno, col_offset=0)
    return ast.ImportFrom(statement.module, kept, statement.level, lineno=statement.lineno, col_offset=0)


def _class_file(value: type) -> str:
    try:
        return inspect.getsourcefile(value) or ""
    except (TypeError, OSError):
        functions = [item for item in vars(value).values() if isinstance(item, types.FunctionType)]
        return functions[0].__code__.co_filename if functions else ""
