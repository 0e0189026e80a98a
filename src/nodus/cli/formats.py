"""``-o``: what is made on this side of the JSON that the server sends. The table of ``get`` is the server's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from nodus.client.kinds import find_kind
from nodus.client.resources import JsonObject

# Formats that carry their template after an equals sign; each can also stand in a file.
TEMPLATES = ("jsonpath", "go-template", "custom-columns")
OBJECT_FORMATS = (
    "json", "yaml", "name", *(name for form in TEMPLATES for name in (form, f"{form}-file"))
)  # fmt: skip
"""Formats of whole objects, the templates among them."""


def check_format(value: str | None, allowed: Sequence[str]) -> str | None:
    """Return the format, a template's file read; or complain with those there are.

    Args:
        value: As given, such as ``yaml`` or ``jsonpath={.metadata.name}``.
        allowed: Names of formats.

    Raises:
        click.UsageError: For an unknown format, a template that is missing or can't be read.
    """
    if value is None:
        return None
    name, equals, template = value.partition("=")
    carries = name.removesuffix("-file") in TEMPLATES
    if name not in allowed or bool(equals) != carries:
        from nodus.client.suggest import did_you_mean

        hint = did_you_mean(name, allowed) if name not in allowed else f" Write {name}=TEMPLATE." if carries else ""
        raise click.UsageError(f"unknown output format {value!r}; use one of {listed(allowed)}.{hint}")
    if name.endswith("-file"):
        name, template = name.removesuffix("-file"), _read(template)
    if not carries:
        return name
    if not template:
        raise click.UsageError(f"unknown output format {value!r}; {name} needs a template: {name}=TEMPLATE.")
    return f"{name}={template}"


def listed(allowed: Sequence[str]) -> str:
    """Return the formats in words, the file forms apart."""
    return ", ".join(f"{name}=..." if name in TEMPLATES else name for name in allowed if not name.endswith("-file"))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise click.UsageError(f"the template {path} can't be read: {reason}.") from error


def print_object(obj: Any, output: str, *, headers: bool = True) -> None:
    """Print an object, or a list of them, in a format that is made on this side.

    Args:
        obj: JSON.
        output: From `check_format`.
        headers: Print the header line of custom columns.

    Raises:
        click.UsageError: When a template can't be read.
    """
    name, _, template = output.partition("=")
    if name == "json":
        print(json.dumps(obj, indent=4, ensure_ascii=False))
    elif name == "yaml":
        print(to_yaml(obj), end="")
    elif name == "name":
        for item in items_of(obj):
            print(typed_name(item))
    elif name == "custom-columns":
        from nodus.cli.columns import custom_columns

        for line in custom_columns(template, items_of(obj), headers=headers):
            print(line)
    elif name == "jsonpath":
        from nodus.cli.jsonpath import JsonPathError, render

        try:
            print(render(template, obj))
        except JsonPathError as error:
            raise click.UsageError(str(error)) from error
    elif name == "go-template":
        from nodus.cli.gofunctions import TemplateError
        from nodus.cli.gotemplate import render as render_go

        try:
            text = render_go(template, obj)
        except TemplateError as error:
            raise click.UsageError(str(error)) from error
        print(text, end="" if text.endswith("\n") else "\n")


def items_of(obj: Any) -> Sequence[JsonObject]:
    """Return the objects of a List; the object itself, where it is none."""
    return list(obj["items"]) if str(obj.get("kind")) == "List" else [obj]


def typed_name(obj: JsonObject) -> str:
    """Return ``singular.nodus.dev/NAME``."""
    kind = str(obj.get("kind") or "")
    known = find_kind(kind)
    return f"{known.singular if known else kind.lower()}.nodus.dev/{(obj.get('metadata') or {}).get('name', '')}"


def as_list(items: Sequence[JsonObject]) -> JsonObject:
    """Return several objects as the List that clients print."""
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def to_yaml(obj: Any) -> str:
    """Return JSON as YAML: keys in their order, long and multi-line texts readable."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    # Aliases (&id001) are valid YAML and unreadable.
    Dumper.ignore_aliases = lambda self, data: True  # type: ignore[method-assign]
    printed: str = yaml.dump(obj, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    return printed
