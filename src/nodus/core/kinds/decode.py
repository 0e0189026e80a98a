"""Strict decoding of a spec into its kind's model, with every mistake and its path in one answer."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nodus.core.errors import Cause
from nodus.core.kinds.base import QUANTITY_PATTERN, Model

MOST_CAUSES = 100
"""Further mistakes in one object are not named: looking for what was meant takes time, and nobody reads them."""


def decode(model: type[Model], value: Any, prefix: str = "spec") -> tuple[Model | None, list[Cause]]:
    """Check ``value`` against ``model``.

    Args:
        model: A spec or status model.
        value: Decoded JSON.
        prefix: Path of ``value`` in its object, for the causes.

    Returns:
        The model and no causes, or None and one cause for each mistake (of the first hundred), in order of the fields.
    """
    try:
        # Only the wire's names count: a snake_case key is a mistake there, not another spelling.
        return model.model_validate(value, by_alias=True, by_name=False), []
    except ValidationError as error:
        return None, [_cause(model, detail, prefix) for detail in error.errors(include_url=False)[:MOST_CAUSES]]


def _cause(model: type[Model], detail: ErrorDetails, prefix: str) -> Cause:
    parts = [
        part for part in detail["loc"] if not (isinstance(part, str) and part.startswith(("function-", "is-instance")))
    ]
    path = prefix
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    kind = detail["type"]
    if kind == "extra_forbidden":
        near = _near(str(parts[-1]), _siblings(model, parts[:-1]))
        hint = f"; did you mean {near!r}?" if near else ""
        return Cause(path, "FieldValueNotSupported", f"unknown field{hint}")
    if kind == "missing":
        return Cause(path, "FieldValueRequired", "required and missing")
    return Cause(path, "FieldValueInvalid", _message(detail, path))


_EXPECTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
"""What pydantic's error types expect, in the words of JSON."""

_FORMS = {
    QUANTITY_PATTERN: "a quantity, like 4, 500m or 16Gi,",
    "^/": "a path from / on, like /workspace/data,",
    "^[A-Za-z_][A-Za-z0-9_]*$": "the name of a variable, like HF_TOKEN,",
    r"^\d+\.\d+\.\d+([-+.][0-9A-Za-z.+-]+)?$": "a version, like 1.0.0,",
}
"""What the patterns of fields expect, in words."""


def _message(detail: ErrorDetails, path: str) -> str:
    expected = _EXPECTED.get(detail["type"])
    shown = repr(detail.get("input"))
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    if detail["type"] == "string_pattern_mismatch":
        expected = _FORMS.get(detail.get("ctx", {}).get("pattern", ""))
    if expected is None:
        message = detail["msg"].removeprefix("Value error, ")
        return message if shown in message else f"{message} (got {shown})"
    if path.endswith("USD"):
        expected = 'dollars as a string, like "20.00",'
    return f"{expected} is expected, not {shown}"


def _near(word: str, known: list[str]) -> str | None:
    """Return the known name most like ``word``; case and underscores don't count."""
    plain = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.replace("_", "").lower(), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def _siblings(model: type[Model], parts: list[Any]) -> list[str]:
    """Return the field names of the model that ``parts`` lead to, as far as they can be followed."""
    current: Any = model
    for part in parts:
        if isinstance(part, int):
            continue
        field = (
            next((f for f in current.model_fields.values() if f.alias == part), None) if _is_model(current) else None
        )
        current = _model_in(field.annotation) if field is not None else None
    return [field.alias or name for name, field in current.model_fields.items()] if _is_model(current) else []


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Model)


def _model_in(annotation: Any) -> Any:
    if _is_model(annotation):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def encode(model: Model) -> Mapping[str, Any]:
    """Return a model in wire form: camelCase, without unset fields."""
    return model.model_dump(by_alias=True, exclude_unset=True)
