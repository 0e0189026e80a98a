"""Merge a TrainingJob's parameters over its runtime's defaults and check them against the runtime's JSON Schema.

Runs in the API server at admission and in the TrainingJob controller when it compiles; pure, no I/O. Every fault is
reported, each with the path of its field, so that one answer lists everything that has to be corrected.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nodus.core.errors import Cause

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

PARAMETERS_PATH = "spec.parameters"

ALIASES: Mapping[str, str] = {
    "lr": "learningRate",
    "groupSize": "numGenerations",
    "maxTokens": "maxCompletionLength",
    "maxNewTokens": "maxCompletionLength",
    "rank": "lora.r",
    "loraR": "lora.r",
    "loraRank": "lora.r",
    "loraAlpha": "lora.alpha",
    "loraDropout": "lora.dropout",
    "maxSteps": "steps",
    "numTrainEpochs": "epochs",
    "perDeviceTrainBatchSize": "batchSize",
    "gradientAccumulationSteps": "gradientAccumulation",
    "lrSchedulerType": "lrScheduler",
    "klCoef": "beta",
}
"""Names other trainers use for a parameter, in camel case; tried only where the runtime declares the target."""

_TYPE_WORDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "a string"}
_TYPE_WORDS |= {"object": "a mapping", "array": "a list", "null": "nothing"}


def leaves(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every declared parameter of a schema as (dotted path, its schema), nested objects flattened."""
    for name, sub in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        if sub.get("properties"):
            yield from leaves(sub, f"{path}.")
        else:
            yield path, sub


def defaults_of(runtime_spec: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime's effective defaults: the schema's own, then `defaults.parameters` over them."""
    result: dict[str, Any] = {}
    for path, sub in leaves(runtime_spec.get("parameters") or {}):
        if "default" in sub:
            _put(result, path, sub["default"])
    declared = (runtime_spec.get("defaults") or {}).get("parameters") or {}
    return overlay(result, declared)


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`, mapping by mapping; lists and scalars of `over` win whole. Neither input changes."""
    result = {key: overlay(value, {}) if isinstance(value, Mapping) else value for key, value in base.items()}
    for key, value in over.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            result[key] = overlay(old, value)
        else:
            result[key] = overlay(value, {}) if isinstance(value, Mapping) else value
    return result


def merge(runtime_spec: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The parameters a run uses: the user's over the runtime's defaults, whole floats of integer fields made ints.

    Unset parameters without a default stay absent.

    Args:
        runtime_spec: spec of the TrainingRuntime (`parameters` is a JSON Schema, `defaults.parameters` optional).
        given: `spec.parameters` as the user wrote it, already checked by `check`.
    """
    merged = overlay(defaults_of(runtime_spec), given or {})
    for path, sub in leaves(runtime_spec.get("parameters") or {}):
        value = lookup(merged, path)
        if sub.get("type") == "integer" and isinstance(value, float) and value.is_integer():
            _put(merged, path, int(value))
    return merged


def lookup(values: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted path, None where any part of the path is missing."""
    current: Any = values
    for part in path.split("."):
        if not isinstance(current, Mapping) or part not in current:
            return None
        current = current[part]
    return current


def schema_causes(runtime_spec: Mapping[str, Any]) -> list[Cause]:
    """Every fault of a runtime's own `spec.parameters`: no JSON Schema, or one that a server can't safely apply.

    References out of the schema are refused, since following one would make the server fetch what a user names, and
    regular expressions, since one that backtracks would hold the server up. Defaults must satisfy the schema.

    Args:
        runtime_spec: spec of the TrainingRuntime.
    """
    from jsonschema import Draft202012Validator  # late: 60 ms that a start need not wait for
    from jsonschema.exceptions import SchemaError

    schema = runtime_spec.get("parameters")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = "".join(f".{part}" for part in error.absolute_path)
        return [Cause(f"{PARAMETERS_PATH}{where}", "FieldValueInvalid", f"is not JSON Schema: {error.message[:200]}")]
    unsafe = list(_unsafe(schema, PARAMETERS_PATH))
    if unsafe:
        return unsafe
    declared = (runtime_spec.get("defaults") or {}).get("parameters")
    faults = check(runtime_spec, declared)
    prefix = "spec.defaults.parameters"
    return [Cause(c.field.replace(PARAMETERS_PATH, prefix, 1), c.reason, c.message) for c in faults]


def check(runtime_spec: Mapping[str, Any], given: Any) -> list[Cause]:
    """Every fault of `spec.parameters` against the runtime's schema, ordered by path; empty when it is valid.

    Args:
        runtime_spec: spec of the TrainingRuntime.
        given: `spec.parameters` as sent; anything JSON can hold.
    """
    schema = dict(runtime_spec.get("parameters") or {"type": "object"})
    schema.setdefault("type", "object")
    if given is None:
        return []
    faults: dict[tuple[str, str], Cause] = {}
    for cause in _not_finite(given, PARAMETERS_PATH):
        faults.setdefault((cause.field, ""), cause)
    if faults:  # a schema's bounds let NaN through, and comparing with it says nothing
        return sorted(faults.values(), key=lambda cause: cause.field)
    from jsonschema import Draft202012Validator  # late: 60 ms that a start need not wait for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    names = [path for path, _ in leaves(schema)]
    try:
        # An empty registry resolves nothing from outside: jsonschema's own default would fetch a remote reference.
        for error in Draft202012Validator(schema, registry=Registry()).iter_errors(given):
            for cause in _causes(error, names):
                faults.setdefault((cause.field, cause.message), cause)
    except Unresolvable as error:
        return [Cause("spec.runtime", "FieldValueInvalid", f"its parameter schema refers to {error.ref!r}, unknown")]
    return sorted(faults.values(), key=lambda cause: (cause.field, cause.message))


def suggestion(unknown: str, names: list[str]) -> str | None:
    """The declared parameter a misspelt one most likely means, as a dotted path; None when nothing is near.

    Args:
        unknown: dotted path of the unknown parameter, below `spec.parameters`.
        names: dotted paths of every declared parameter.
    """
    camel = ".".join(_camel(part) for part in unknown.split("."))
    folded = {_fold(name): name for name in names}
    if _fold(camel) in folded:
        return folded[_fold(camel)]
    last = camel.rsplit(".", 1)[-1]
    alias = ALIASES.get(camel) or ALIASES.get(last)
    if alias in names:
        return alias
    inside = [name for name in names if _fold(name.rsplit(".", 1)[-1]) == _fold(last)]
    if len(inside) == 1:
        return inside[0]
    near = difflib.get_close_matches(_fold(camel), list(folded), n=1, cutoff=0.75)
    if near:
        return folded[near[0]]
    tails = {_fold(name.rsplit(".", 1)[-1]): name for name in names}
    near = difflib.get_close_matches(_fold(last), list(tails), n=1, cutoff=0.8)
    return tails[near[0]] if near else None


def _unsafe(schema: Any, path: str) -> Iterator[Cause]:
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _unsafe(item, f"{path}[{index}]")
    if not isinstance(schema, Mapping):
        return
    for name, value in schema.items():
        where = f"{path}.{name}"
        if name in ("$ref", "$dynamicRef") and isinstance(value, str) and not value.startswith("#"):
            yield Cause(where, "FieldValueNotSupported", f"refers out of the schema ({value!r}); write it out instead")
        elif name in ("pattern", "patternProperties") and not path.endswith(".properties"):
            yield Cause(where, "FieldValueNotSupported", "regular expressions are not supported; use enum or bounds")
        elif name not in ("default", "enum", "const", "examples"):
            yield from _unsafe(value, where)


def _causes(error: ValidationError, names: list[str]) -> Iterator[Cause]:
    path = _path(error)
    kind = error.validator
    if kind == "additionalProperties" and isinstance(error.instance, Mapping):
        declared = error.schema.get("properties", {})
        for name in error.instance:
            if name not in declared:
                yield _unknown(path, str(name), names)
        return
    if kind == "type":
        yield Cause(path, "FieldValueTypeInvalid", f"{_show(error.instance)} is not {_type_words(error)}")
        return
    if kind == "enum":
        yield Cause(path, "FieldValueNotSupported", _not_in_enum(error))
        return
    if kind in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        words = f"{_show(error.instance)} is out of range: {_range_words(error.schema)}"
        yield Cause(path, "FieldValueInvalid", words)
        return
    if kind == "maxProperties":
        words = f"has {len(error.instance)} keys; at most {error.validator_value} are allowed"
        yield Cause(path, "FieldValueInvalid", words)
        return
    if kind == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        for name in missing:
            yield Cause(f"{path}.{name}", "FieldValueRequired", "is required by the runtime")
        return
    yield Cause(path, "FieldValueInvalid", error.message)


def _unknown(path: str, name: str, names: list[str]) -> Cause:
    full = f"{path}.{name}"
    below = full.removeprefix(f"{PARAMETERS_PATH}.")
    if "." in name and below in names:
        return Cause(full, "FieldValueNotSupported", f"write it nested: {_nested(name)}")
    near = suggestion(below, names)
    hint = f": did you mean {near}?" if near else f"; the runtime has {_listing(below, names)}"
    return Cause(full, "FieldValueNotSupported", f"unknown parameter{hint}")


def _nested(dotted: str) -> str:
    first, *rest = dotted.split(".")
    inner = "..."
    for part in reversed(rest):
        inner = f"{{{part}: {inner}}}"
    return f"{first}: {inner}"


def _listing(below: str, names: list[str]) -> str:
    prefix = f"{below.rsplit('.', 1)[0]}." if "." in below else ""
    near = [name for name in names if name.startswith(prefix)] or names
    return ", ".join(sorted(near))


def _not_in_enum(error: ValidationError) -> str:
    allowed = [str(value) for value in error.validator_value]
    words = f"{_show(error.instance)} is not one of {', '.join(allowed)}"
    folded = {_fold(value): value for value in allowed}
    near = difflib.get_close_matches(_fold(str(error.instance)), list(folded), n=1, cutoff=0.6)
    return f"{words}: did you mean {folded[near[0]]}?" if near else words


def _range_words(schema: Any) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{low} to {high} is allowed"
    parts = [
        f"{words} {schema[key]}"
        for key, words in (
            ("minimum", "at least"),
            ("maximum", "at most"),
            ("exclusiveMinimum", "more than"),
            ("exclusiveMaximum", "less than"),
        )
        if key in schema
    ]
    return f"{' and '.join(parts)} is allowed"


def _type_words(error: ValidationError) -> str:
    wanted = error.validator_value
    kinds = [wanted] if isinstance(wanted, str) else list(wanted)
    words = " or ".join(_TYPE_WORDS.get(kind, kind) for kind in kinds)
    text = error.instance
    if isinstance(text, str) and set(kinds) & {"integer", "number"} and re.fullmatch(r"\s*[-+.\deE]+\s*", text):
        return f"{words}; write {text.strip()} without quotes"
    return words


def _not_finite(value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, float) and not math.isfinite(value):
        yield Cause(path, "FieldValueInvalid", f"{value} is not a finite number")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _not_finite(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{path}[{index}]")


def _path(error: ValidationError) -> str:
    path = PARAMETERS_PATH
    for part in error.absolute_path:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for part in parents:
        values = values.setdefault(part, {})
    values[last] = value


def _camel(name: str) -> str:
    head, *rest = re.split(r"[_\-]+", name)
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
