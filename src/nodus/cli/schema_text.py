"""A kind or one of its fields, as OpenAPI describes it, in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from nodus.core.errors import NotFound

WIDTH = 80
DEEPEST = 16
"""Levels of ``--recursive``; schemas may refer to themselves."""

Schema = Mapping[str, Any]


class Explainer:
    """Describes what one OpenAPI document holds.

    Args:
        document: OpenAPI of one group version.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._schemas: Mapping[str, Schema] = (document.get("components") or {}).get("schemas") or {}

    def lines(self, kind: str, api_version: str, fields: Sequence[str], *, recursive: bool) -> list[str]:
        """Return the lines of ``nodus explain``.

        Args:
            kind: CamelCase name.
            api_version: ``GROUP/VERSION``.
            fields: path from the kind to a field; empty for the kind itself.
            recursive: name the fields of fields too, without what they are.

        Raises:
            NotFound: the kind is not in the document, or a field is not in the kind.
        """
        group, _, version = api_version.rpartition("/")
        schema = self._kind(kind, group, version)
        found = [f"GROUP:      {group}", f"KIND:       {kind}", f"VERSION:    {version}", ""]
        for depth, field in enumerate(fields):
            schema = self._field(schema, kind, fields[: depth + 1], field)
        if fields:
            found += [f"FIELD: {fields[-1]} <{self._type(schema)}>", ""]
            found += _enum(schema, "")
            found += [""]
        found += ["DESCRIPTION:", *self._description(schema), ""]
        properties = self._properties(schema)
        if properties:
            found += ["FIELDS:"]
            found += self._names(schema, 1) if recursive else self._fields(schema)
        return found

    def _kind(self, kind: str, group: str, version: str) -> Schema:
        for schema in self._schemas.values():
            for named in schema.get("x-kubernetes-group-version-kind") or ():
                if (named.get("group"), named.get("version"), named.get("kind")) == (group, version, kind):
                    return schema
        raise NotFound(f"the server does not describe {kind} of {group}/{version}")

    def _field(self, schema: Schema, kind: str, path: Sequence[str], field: str) -> Schema:
        properties = self._properties(schema)
        if field in properties:
            found: Schema = properties[field]
            return found
        where = ".".join([kind, *path[:-1]])
        close = get_close_matches(field.lower(), {name.lower(): name for name in properties}, n=1)
        near = next((name for name in properties if close and name.lower() == close[0]), None)
        if near is not None:
            fix = f"Did you mean {near!r}?"
        elif properties:
            fix = f"It has: {', '.join(sorted(properties))}."
        else:
            fix = "It has no fields that are known beforehand."
        raise NotFound(f"{where} has no field {field!r}", fix=fix)

    def _inner(self, schema: Schema) -> Schema:
        """What a schema stands for, once references, lists and maps are followed."""
        for _ in range(DEEPEST):
            if (target := self._target(schema)) is not None:
                schema = target
            elif isinstance(schema.get("items"), Mapping):
                schema = schema["items"]
            elif not schema.get("properties") and isinstance(schema.get("additionalProperties"), Mapping):
                schema = schema["additionalProperties"]
            else:
                break
        return schema

    def _properties(self, schema: Schema) -> Mapping[str, Schema]:
        found: Mapping[str, Schema] = self._inner(schema).get("properties") or {}
        return found

    def _target(self, schema: Schema) -> Schema | None:
        name = _referenced(schema)
        return None if name is None else self._schemas.get(name, {})

    def _type(self, schema: Schema) -> str:
        name = _referenced(schema)
        if name is not None:
            return name
        if isinstance(schema.get("items"), Mapping):
            return f"[]{self._type(schema['items'])}"
        if not schema.get("properties") and isinstance(schema.get("additionalProperties"), Mapping):
            return f"map[string]{self._type(schema['additionalProperties'])}"
        kind = schema.get("type", "object")
        return "Object" if kind == "object" else str(kind)

    def _description(self, schema: Schema) -> Iterator[str]:
        """The field's own words, then those of what it holds."""
        inner = self._inner(schema)
        texts = [schema.get("description"), inner.get("description") if inner is not schema else None]
        shown = [line for text in texts if text for line in _wrapped(str(text))]
        yield from shown or ["    <no description>"]

    def _fields(self, schema: Schema) -> Iterator[str]:
        required = self._inner(schema).get("required") or ()
        for name, field in sorted(self._properties(schema).items()):
            yield self._head(name, field, name in required, "  ")
            yield from _enum(field, "  ")
            yield from _wrapped(str(field.get("description") or "<no description>"))
            yield ""

    def _names(self, schema: Schema, level: int) -> Iterator[str]:
        required = self._inner(schema).get("required") or ()
        for name, field in sorted(self._properties(schema).items()):
            yield self._head(name, field, name in required, "  " * level)
            yield from _enum(field, "  " * level)
            if level < DEEPEST:
                yield from self._names(field, level + 1)

    def _head(self, name: str, field: Schema, required: bool, indent: str) -> str:
        return f"{indent}{name}\t<{self._type(field)}>" + (" -required-" if required else "")


def _referenced(schema: Schema) -> str | None:
    """The name of the schema that this one refers to."""
    whole = schema.get("allOf")
    target = schema.get("$ref") or (whole[0].get("$ref") if whole else None)
    return str(target).rpartition("/")[2] if target else None


def _enum(schema: Schema, indent: str) -> list[str]:
    values = schema.get("enum")
    return [f"{indent}enum: {', '.join(map(str, values))}"] if values else []


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
