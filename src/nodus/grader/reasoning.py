"""Scoring with Reasoning Gym, for the catalog's environments and for datasets that others bring.

Some of its scorers evaluate the model's reply as Python, by ``eval`` or through sympy's parser, which evaluates too. A
grader must not: what such a scorer would read is limited to literals, or to arithmetic and elementary functions. The
scorer sees the failure that it has for any text that can't be read, and gives what it gives for that.

No environment's digest covers this file: what changes a verdict of the catalog changes ``PROTOCOL_VERSION``.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import types
from collections.abc import Mapping
from typing import Any

MAX_EXPRESSION_CHARS = 500
MAX_DIGITS = 20_000
"""Of a number that evaluating an expression could make: ``9**9**9`` would take a grader's whole time."""
_EVALUATING = (
    "algorithmic.string_insertion",
    "algorithmic.spiral_matrix",
    "algorithmic.binary_matrix",
    "games.n_queens",
)
_PARSING = (
    "algebra.intermediate_integration",
    "algebra.polynomial_multiplication",
    "algebra.simple_integration",
    "games.countdown",
    "games.puzzle24",
)
_FUNCTIONS = frozenset(
    ("Abs", "Float", "Integer", "Integral", "Rational", "abs", "acos", "acosh", "acot", "acsc", "asec", "asin", "asinh",
     "atan", "atanh", "ceiling", "cos", "cosh", "cot", "coth", "csc", "exp", "floor", "ln", "log", "sec", "sin", "sinh",
     "sqrt", "tan", "tanh")
)  # fmt: skip
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitXor, ast.UAdd, ast.USub)
_PLAIN = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Load, ast.Compare, ast.cmpop, *_OPERATORS)
_FACTORIAL = re.compile(r"(?<![\w.])(\d{1,2})!(?![!=])")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def answer_of(completion: str) -> str:
    """Return the text of the last ``<answer>``, or the whole completion where there is none."""
    found = _ANSWER.findall(completion)
    return (found[-1] if found else completion).strip()


def import_library() -> Any:
    """Import Reasoning Gym with its scorers' ways to run a reply closed; return the module."""
    os.environ.setdefault("MPLCONFIGDIR", "/tmp")  # it imports matplotlib, which wants a place to write
    import reasoning_gym

    close_holes()
    return reasoning_gym


def close_holes() -> None:
    """Keep the scorers of the library's loaded modules from evaluating a reply as Python."""
    for name in _EVALUATING:
        if (module := sys.modules.get(f"reasoning_gym.{name}")) is not None:
            vars(module)["eval"] = ast.literal_eval
    for name in _PARSING:
        if (module := sys.modules.get(f"reasoning_gym.{name}")) is not None:
            for alias, value in list(vars(module).items()):
                if alias == "parse_expr":
                    vars(module)[alias] = _careful(value)
                elif isinstance(value, types.ModuleType) and value.__name__ == "sympy":
                    vars(module)[alias] = _Sympy(value)


def score(dataset: Any, completion: str, entry: Mapping[str, Any]) -> Any:
    """Return the dataset's own score of a completion's answer; None when it is empty."""
    text = answer_of(completion)
    return dataset.score_answer(text, entry) if text else None


class UnsafeExpression(ValueError):
    """A text that a scorer wanted to evaluate is more than an expression."""


class _Sympy:
    """The module sympy, with a parser that reads expressions alone."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.parse_expr = _careful(module.parse_expr)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _careful(parse: Any) -> Any:
    if getattr(parse, "careful", False):
        return parse

    def parse_expr(text: str, *args: Any, **more: Any) -> Any:
        check_expression(text)
        return parse(text, *args, **more)

    parse_expr.careful = True  # type: ignore[attr-defined]
    return parse_expr


def check_expression(text: str) -> None:
    """Check that evaluating a text can do nothing but arithmetic, and not much of it.

    Raises:
        UnsafeExpression: When it could.
    """
    if len(text) > MAX_EXPRESSION_CHARS:
        raise UnsafeExpression(f"an expression of {len(text)} characters")
    try:
        tree = ast.parse(_FACTORIAL.sub(r"\1", text.strip()), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise UnsafeExpression("no expression") from error
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            fine = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        elif isinstance(node, ast.Name):
            fine = id(node) in called or "__" not in node.id
        elif isinstance(node, ast.Constant):
            fine = type(node.value) in (int, float)
        else:
            fine = isinstance(node, _PLAIN)
        if not fine:
            raise UnsafeExpression(f"{type(node).__name__} in an expression")
    if _digits(tree.body) > MAX_DIGITS:
        raise UnsafeExpression("a number that is too large")


def _digits(node: ast.expr) -> float:
    """Return a bound on the digits of an expression's numbers."""
    if isinstance(node, ast.Constant):
        return float(len(repr(node.value)))
    if isinstance(node, ast.UnaryOp):
        return _digits(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _digits(node.left), _digits(node.right)
        if isinstance(node.op, ast.Pow):
            return left * _largest(node.right, right)
        return left + right
    parts = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return max([1.0, *map(_digits, parts)])


def _largest(exponent: ast.expr, digits: float) -> float:
    """Return a bound on the value of an exponent."""
    if isinstance(exponent, ast.UnaryOp):
        return _largest(exponent.operand, digits)
    if isinstance(exponent, ast.Name):
        return 1.0
    if isinstance(exponent, ast.Constant) and digits < 300:
        return max(1.0, float(str(exponent.value)))
    return float(10 ** int(min(digits, 300)))
