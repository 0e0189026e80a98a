"""JSON schemas of what the API takes and answers, made from the kinds' models and the docstrings of their fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from nodus.core.kinds import Kind, Model
from nodus.core.kinds.describe import all_models, field_descriptions
from nodus.server.catalog import read_catalog

PREFIX = "#/components/schemas/"
_MADE_BY_SERVER = ("Event", "Image")
"""Kinds whose names the server makes, with dots in them."""
NAME_PATTERN = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"

_TEXT = {"type": "string"}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}


def reference(name: str) -> dict[str, Any]:
    """Return a reference to the schema of that name."""
    return {"$ref": PREFIX + name}


def kind_schemas(kinds: Iterable[Kind]) -> dict[str, Any]:
    """Return the schemas of kinds, of their lists, and of every model that they reach."""
    found: dict[str, Any] = {}
    listed = list(kinds)
    found.update(model_schemas([model for kind in listed for model in (kind.spec_model, kind.status_model)]))
    if "TrainingJobSpec" in found:
        parameters = found["TrainingJobSpec"]["properties"]["parameters"]
        parameters["properties"] = runtime_parameters(read_catalog())
    for kind in listed:
        for name, schema in ((kind.name, _object(kind, found)), (f"{kind.name}List", _list(kind))):
            if name in found:
                raise AssertionError(f"{name} names a model and a kind")
            found[name] = schema
    return found


def model_schemas(roots: Iterable[type[Model]]) -> dict[str, Any]:
    """Return the schema of each model that the roots reach, by name, with the descriptions of its fields."""
    models = all_models(*roots)
    names, made = models_json_schema([(model, "validation") for model in models], ref_template=PREFIX + "{model}")
    found: dict[str, Any] = {}
    for model in models:
        name = names[(model, "validation")]["$ref"].removeprefix(PREFIX)
        schema = _plain(made["$defs"][name])
        described = field_descriptions(model)
        properties = schema.get("properties", {})
        for field_name, field in model.model_fields.items():
            wire_name = field.alias or field_name
            if wire_name in properties and field_name in described:
                text = described[field_name] + _default(properties[wire_name])
                properties[wire_name] = _described(properties[wire_name], text)
        schema["description"] = " ".join((model.__doc__ or "").split()).replace("``", "`")
        found[name] = schema
    return found


def _default(schema: Mapping[str, Any]) -> str:
    """The default in words, for those who show descriptions only."""
    value = schema.get("default")
    if not isinstance(value, str | int | float):
        return ""
    return f" Default: {value if isinstance(value, str) else json.dumps(value)}."


def runtime_parameters(catalog: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters that the catalog's runtimes take, each with the runtimes that take it.

    A run's parameters are checked against its own runtime's schema; this is for people who look for a name.
    """
    takers: dict[str, dict[str, Any]] = {}
    for document in catalog:
        if document["kind"] == "TrainingRuntime":
            for name, schema in document["spec"]["parameters"].get("properties", {}).items():
                takers.setdefault(name, {})[document["metadata"]["name"]] = schema
    found = {}
    for name, schemas in sorted(takers.items()):
        first = next(iter(schemas.values()))
        alike = all(schema == first for schema in schemas.values())
        shown = first if alike else {"type": first.get("type", "object")}
        text = str(first.get("description", "")).rstrip(".")
        found[name] = {**shown, "description": f"{text} ({', '.join(schemas)}).".strip()}
    return found


def _described(schema: dict[str, Any], text: str) -> dict[str, Any]:
    if "$ref" in schema:
        schema = {"allOf": [schema]}
    return {**schema, "description": text.replace("``", "`")}


def _plain(schema: Any) -> Any:
    """Drop pydantic's titles and the nulls that only say that a field may be left out."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: {name: _plain(inner) for name, inner in value.items()} if key == "properties" else _plain(value)
        for key, value in schema.items()
        if key != "title" and not (key == "default" and value is None)
    }
    choices = found.get("anyOf")
    if choices is None:
        return found
    choices = [choice for choice in choices if choice != {"type": "null"}]
    rest = {key: value for key, value in found.items() if key != "anyOf"}
    if "properties" in rest:
        # A model that a string may stand for. Clients that show schemas take one type at most.
        return {key: value for key, value in rest.items() if key != "type"} | {"anyOf": choices}
    if len(choices) > 1 and {choice.get("type") for choice in choices} == {"integer", "number", "string"}:
        return {**rest, "allOf": [reference("NumberOrString")]}
    if len(choices) > 1:
        return {**rest, "anyOf": choices}
    if "$ref" in choices[0] and rest:
        return {**rest, "allOf": choices}
    return {**choices[0], **rest}


def _object(kind: Kind, models: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of one object. The fields of an Event, and of the lines of the books, stand at the top."""
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string", "enum": [kind.api_version], "description": "Version of the API."},
        "kind": {"type": "string", "enum": [kind.name], "description": "Kind of the object."},
        "metadata": _described(
            reference("EventMeta" if kind.name in _MADE_BY_SERVER else "ObjectMeta"),
            "Name, labels and what the server notes down.",
        ),
    }
    if kind.name == "Event":
        properties |= _EVENT_FIELDS
    elif kind.flat:
        properties |= models[kind.spec_model.__name__]["properties"]
    else:
        properties["spec"] = _described(reference(kind.spec_model.__name__), "What is wanted.")
        properties["status"] = _described(
            reference(kind.status_model.__name__), "What is observed; written by the server and ignored in requests."
        )
    return {
        "type": "object",
        "description": kind.summary,
        "properties": properties,
        "required": ["metadata"],
        "additionalProperties": False,
        "x-kubernetes-group-version-kind": [group_version_kind(kind)],
    }


def _list(kind: Kind) -> dict[str, Any]:
    return {
        "type": "object",
        "description": f"Several {kind.plural}.",
        "properties": {
            "apiVersion": {"type": "string", "enum": [kind.api_version], "description": "Version of the API."},
            "kind": {"type": "string", "enum": [f"{kind.name}List"], "description": "Kind of the list."},
            "metadata": _described(reference("ListMeta"), "What to watch from, and how to go on."),
            "items": {"type": "array", "items": reference(kind.name), "description": "The objects."},
        },
        "required": ["kind", "items"],
        "x-kubernetes-group-version-kind": [{**group_version_kind(kind), "kind": f"{kind.name}List"}],
    }


def group_version_kind(kind: Kind) -> dict[str, str]:
    """Return how a kind is named in ``x-kubernetes-group-version-kind``."""
    return {"group": "nodus.dev", "version": kind.version, "kind": kind.name}


def _fields(**described: tuple[Mapping[str, Any], str]) -> dict[str, Any]:
    return {name: {**schema, "description": text} for name, (schema, text) in described.items()}


_NUMBER = {"type": "integer"}
_TIME = {"type": "string", "format": "date-time"}

_EVENT_FIELDS = _fields(
    type=({"type": "string", "enum": ["Normal", "Warning"]}, "Normal or Warning."),
    reason=(_TEXT, "CamelCase reason."),
    message=(_TEXT, "For people."),
    count=(_NUMBER, "How often it happened."),
    firstTime=(_TIME, "When it happened first."),
    lastTime=(_TIME, "When it happened last."),
    involvedObject=({"type": "object"}, "What it happened to: apiVersion, kind, name, namespace, uid."),
)

COMMON: dict[str, Any] = {
    "NumberOrString": {"description": "A number, or text.", "anyOf": [{"type": "number"}, {"type": "string"}]},
    "ObjectMeta": {
        "type": "object",
        "description": "What every object has. A client sets name or generateName, labels, annotations, finalizers.",
        "properties": _fields(
            name=({"type": "string", "pattern": NAME_PATTERN, "maxLength": 63}, "Unique within kind and project."),
            generateName=({"type": "string", "maxLength": 57}, "Beginning of a name that the server completes."),
            namespace=(_TEXT, "The project."),
            uid=(_TEXT, "Names this object alone, also after another one got its name."),
            resourceVersion=(_TEXT, "Changes with every change of the object."),
            generation=(_NUMBER, "Counts the changes of the spec, from 1."),
            creationTimestamp=(_TIME, "When it was created."),
            deletionTimestamp=(_TIME, "When deletion was asked for, while finalizers hold the object."),
            labels=(_TEXTS, "For selectors; at most 64."),
            annotations=(_TEXTS, "For people and programs; at most 256 KiB."),
            ownerReferences=(
                {"type": "array", "items": reference("OwnerReference")},
                "Objects whose deletion deletes this one.",
            ),
            finalizers=(
                {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 253}, "maxItems": 16},
                "What has to let go before the object can be deleted.",
            ),
        ),
    },
    "OwnerReference": {
        "type": "object",
        "description": "An object whose deletion deletes this one.",
        "properties": _fields(
            apiVersion=(_TEXT, "Of the owner."),
            kind=(_TEXT, "Of the owner."),
            name=(_TEXT, "Of the owner."),
            uid=(_TEXT, "Of the owner."),
            controller=({"type": "boolean"}, "Whether the owner runs this object."),
            blockOwnerDeletion=({"type": "boolean"}, "Whether a foreground deletion of the owner waits for it."),
        ),
    },
    "ListMeta": {
        "type": "object",
        "description": "What a list says of itself.",
        "properties": _fields(
            resourceVersion=(_TEXT, "Watch from here to miss nothing."),
            **{"continue": (_TEXT, "Ask for the next page with this; missing on the last.")},
        ),
    },
    "Status": {
        "type": "object",
        "description": "An error, or the answer to a deletion.",
        "required": ["kind", "apiVersion", "status"],
        "properties": _fields(
            kind=({"type": "string", "enum": ["Status"]}, "Status."),
            apiVersion=({"type": "string", "enum": ["v1"]}, "v1."),
            metadata=({"type": "object"}, "Empty."),
            status=({"type": "string", "enum": ["Success", "Failure"]}, "Success or Failure."),
            code=(_NUMBER, "The HTTP status."),
            reason=(_TEXT, "CamelCase; the name of the class that the Python client raises."),
            message=(_TEXT, "What happened, for people."),
            fix=(_TEXT, "What to do next."),
            requestId=(_TEXT, "Names the request in the server's log."),
            details=({"type": "object"}, "What it is about; `causes` lists every mistake with its field."),
        ),
    },
    "DeleteOptions": {
        "type": "object",
        "description": "How to delete.",
        "properties": _fields(
            apiVersion=(_TEXT, "v1."),
            kind=({"type": "string", "enum": ["DeleteOptions"]}, "DeleteOptions."),
            propagationPolicy=(
                {"type": "string", "enum": ["Background", "Foreground", "Orphan"]},
                "What happens to what the object owns; Background when unset.",
            ),
            preconditions=(
                {"type": "object", "properties": {"uid": _TEXT, "resourceVersion": _TEXT}},
                "Delete only if the object still has these.",
            ),
            dryRun=({"type": "array", "items": {"type": "string", "enum": ["All"]}}, "`[All]` deletes nothing."),
        ),
    },
    "JSONPatch": {
        "type": "array",
        "description": "Operations of RFC 6902, applied in order.",
        "maxItems": 1000,
        "items": {
            "type": "object",
            "required": ["op", "path"],
            "properties": _fields(
                op=({"type": "string", "enum": ["add", "remove", "replace", "move", "copy", "test"]}, "What to do."),
                path=(_TEXT, "JSON pointer, such as /spec/state."),
                value=({}, "For add, replace and test."),
                **{"from": (_TEXT, "For move and copy.")},
            ),
        },
    },
}
"""Schemas that every document has."""
_META = COMMON["ObjectMeta"]
# Events are named after their object, with a digest behind a dot.
COMMON["EventMeta"] = {**_META, "properties": {**_META["properties"], **_fields(name=(_TEXT, "Made by the server."))}}
