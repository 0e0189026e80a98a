"""Which dotted paths a kind's objects have, so that a selector over one that they never have is refused.

An empty answer to ``status.phse=Running`` would read as "there are none".
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BeforeValidator

from nodus.core.errors import BadRequest, Cause
from nodus.core.kinds.base import Kind, Model
from nodus.core.selectors import Requirement

METADATA: Mapping[str, Any] = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "uid": str,
    "resourceVersion": str,
    "generation": int,
    "creationTimestamp": str,
    "deletionTimestamp": str,
    "labels": dict[str, str],
    "annotations": dict[str, str],
    "ownerReferences": list[Any],
    "finalizers": list[str],
}
"""Fields of every object's metadata, with their types."""
EVENT: Mapping[str, Any] = {
    "type": str,
    "reason": str,
    "message": str,
    "count": int,
    "firstTime": str,
    "lastTime": str,
    "involvedObject": {"apiVersion": str, "kind": str, "name": str, "namespace": str, "uid": str},
}
"""Fields of an Event, which stand at the top."""
_SHOWN = 30
"""Names that a message lists at most."""
_BY_LABEL = "A label is selected with labelSelector (-l KEY=VALUE on the command line)."


def check_field_selector(kind: Kind, terms: tuple[Requirement, ...]) -> None:
    """Check that objects of a kind can have what a field selector asks for.

    Args:
        kind: what is listed or watched.
        terms: of the selector.

    Raises:
        BadRequest: a path is no field of the kind, or a phase none of its phases; every such term is a cause.
    """
    causes = [Cause(term.key, "FieldValueNotSupported", found) for term in terms if (found := _problem(kind, term))]
    if causes:
        message = "; ".join(cause.message for cause in causes[:3])
        fix = f"`nodus explain {kind.singular}` lists the fields."
        raise BadRequest(f"bad field selector: {message}", fix=fix, causes=causes)


def _problem(kind: Kind, term: Requirement) -> str | None:
    problem = _path_problem(kind.name, _root(kind), term.key, term.operator in ("exists", "!exists"))
    if problem is None and term.key == "status.phase" and kind.phases:
        unknown = [value for value in term.values if value and value not in kind.phases]
        if unknown:
            listed = ", ".join(kind.phases)
            return (
                f"no {kind.name} has the phase {_short(unknown[0])}{_hint(unknown[0], kind.phases)}; there are {listed}"
            )
    return problem


def _root(kind: Kind) -> Mapping[str, Any]:
    head = {"apiVersion": str, "kind": str, "metadata": METADATA}
    if kind.name == "Event":
        return {**head, **EVENT}
    if kind.flat:
        return {**head, **dict(_fields_of(kind.spec_model))}
    return {**head, "spec": kind.spec_model, "status": kind.status_model}


def _path_problem(name: str, root: Mapping[str, Any], path: str, presence: bool) -> str | None:
    here: list[Any] = [root]
    walked = ""
    for part in path.split("."):
        if any(_is_open(choice) for choice in here):
            return _dotted_label(walked, path)
        known = {field: inner for choice in here for field, inner in _fields_of(choice)}
        if not known:
            what = "a list, which selectors can't look into" if any(_is_list(c) for c in here) else "no object"
            return f"{_short(path)}: {walked} of {name} is {what}"
        if part not in known:
            prefix = f"{walked}." if walked else ""
            listed = ", ".join(prefix + field for field in list(known)[:_SHOWN])
            return f"{name} has no field {_short(path)}{_hint(part, known, prefix)}; there are {listed}"
        here = list(_choices(known[part]))
        walked = f"{walked}.{part}".lstrip(".")
    if presence or not all(_is_list(choice) for choice in here):
        return None
    return f"{_short(path)} of {name} is a list; a selector can only ask whether it is there: {path} or !{path}"


def _dotted_label(walked: str, path: str) -> str | None:
    rest = path.removeprefix(f"{walked}.")
    if walked in ("metadata.labels", "metadata.annotations") and "." in rest:
        about = _BY_LABEL if walked == "metadata.labels" else "There is no selector over such annotations."
        return f"{_short(path)}: the key {_short(rest)} has a dot in it, and a path parts at dots. {about}"
    return None


def _choices(annotation: Any) -> Iterator[Any]:
    """Yield what a value of a type may be: the members of unions, without None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *marks = get_args(annotation)
        yield from _choices(inner)
        if any(isinstance(mark, BeforeValidator) for mark in marks):
            yield str  # a shorthand, stored as it was written
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _choices(member)
    elif annotation is not type(None):
        yield annotation


def _fields_of(choice: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(choice, Mapping):
        yield from choice.items()
    elif isinstance(choice, type) and issubclass(choice, Model):
        for python_name, field in choice.model_fields.items():
            annotation: Any = field.annotation
            for mark in field.metadata:
                annotation = Annotated[annotation, mark]
            yield field.alias or python_name, annotation


def _is_open(choice: Any) -> bool:
    """Whether any field may stand in it."""
    return choice is Any or choice is object or choice is dict or get_origin(choice) in (dict, Mapping)


def _is_list(choice: Any) -> bool:
    return choice in (list, tuple) or get_origin(choice) in (list, tuple)


def _short(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:97] + "...")


def _hint(word: str, known: Mapping[str, Any], prefix: str = "") -> str:
    plain = {name.lower(): name for name in known}
    close = get_close_matches(word.replace("_", "").lower(), plain, n=1)
    return f" (did you mean {prefix + plain[close[0]]!r}?)" if close else ""
