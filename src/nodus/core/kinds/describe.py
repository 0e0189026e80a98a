"""Descriptions of a model's fields, read from the docstring beneath each field in the source.

Used where people read about kinds (reference pages, `nodus explain`, OpenAPI), never on a request's way: it parses
source files, about a millisecond each, once per process.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from nodus.core.kinds.base import Model


@cache
def field_descriptions(model: type[Model]) -> dict[str, str]:
    """Return the description of each field of `model` that has one, by Python name; base classes' fields included."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, Model) and cls is not Model:
            found.update(docstrings_beneath(cls))
    for name, field in model.model_fields.items():
        if field.description:
            found[name] = field.description
    return found


def docstrings_beneath(cls: type) -> Iterator[tuple[str, str]]:
    """Yield each field of a class body that has a docstring beneath it, with that docstring on one line."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        match following:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield statement.target.id, " ".join(text.split())


def models_in(annotation: Any) -> Iterator[type[Model]]:
    """Yield the models that an annotation such as ``list[Volume] | None`` mentions."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
        return
    for argument in get_args(annotation):
        yield from models_in(argument)


def all_models(*roots: type[Model]) -> list[type[Model]]:
    """Return the roots and every model that their fields reach, each once, in the order a reader meets them."""
    found: list[type[Model]] = []
    waiting = list(roots)
    while waiting:
        model = waiting.pop(0)
        if model in found:
            continue
        found.append(model)
        waiting[:0] = [inner for field in model.model_fields.values() for inner in models_in(field.annotation)]
    return found
