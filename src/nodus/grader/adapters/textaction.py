"""The action class of an OpenEnv environment, where an action is one text."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, NamedTuple

from nodus.grader.adapters.base import Refused


class TextAction(NamedTuple):
    """How a turn becomes an action.

    Attributes:
        cls: The action class.
        field: Its field that takes the turn.
    """

    cls: Any
    field: str

    def of(self, turn: str) -> Any:
        """Return the action of a turn.

        Raises:
            ValueError: When the class refuses the text.
        """
        return self.cls(**{self.field: turn})


class _Field(NamedTuple):
    name: str
    type: Any
    required: bool


def text_action(environment: Any) -> TextAction:
    """Return an environment's action: the only required field that is text, else the only one that is text.

    Raises:
        Refused: When there is no class, or none or several fields that it could be.
    """
    cls = _action_class(type(environment))
    if cls is None or isinstance(cls, typing.TypeVar):
        raise Refused(
            f"{type(environment).__name__}.step says not which class its action is of; annotate it: "
            "def step(self, action: MyAction, ...)"
        )
    fields = _fields(cls)
    if fields is None:
        raise Refused(
            f"the action of {type(environment).__name__} is {_shown(cls)}; expected one class with text in it"
        )
    texts = [field for field in fields if field.type is str and field.name != "metadata"]
    chosen = [field for field in texts if field.required] or texts
    if len(chosen) != 1:
        names = ", ".join(field.name for field in chosen) or "none"
        raise Refused(
            f"the action class {cls.__name__} needs exactly one text field for the model's turn; it has {names}"
        )
    if others := [field.name for field in fields if field.required and field != chosen[0]]:
        raise Refused(
            f"the action class {cls.__name__} also needs {', '.join(others)}; a model's turn is one text, "
            f"{chosen[0].name}"
        )
    return TextAction(cls, chosen[0].name)


def _action_class(cls: type) -> Any:
    """Return what ``step`` is annotated with; where that is no more than ``Action``, what ``Environment[...]`` says."""
    try:
        hinted = typing.get_type_hints(cls.step).get("action")  # type: ignore[attr-defined]
    except (NameError, TypeError, AttributeError):
        hinted = None  # names that only a type checker knows
    if hinted is None or isinstance(hinted, typing.TypeVar) or getattr(hinted, "__name__", "") == "Action":
        arguments = (
            typing.get_args(alias) for parent in cls.__mro__ for alias in vars(parent).get("__orig_bases__", ())
        )
        named = (first for first, *more in filter(None, arguments) if more and not isinstance(first, typing.TypeVar))
        return next(named, hinted)
    return hinted


def _fields(cls: Any) -> list[_Field] | None:
    """Return the fields of a pydantic model or a dataclass; None for anything else."""
    if isinstance(models := getattr(cls, "model_fields", None), dict):
        return [_Field(name, field.annotation, bool(field.is_required())) for name, field in models.items()]
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        return None
    hints = typing.get_type_hints(cls)
    missing = dataclasses.MISSING
    return [
        _Field(field.name, hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(cls)
        if field.init
    ]


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)[:80]
