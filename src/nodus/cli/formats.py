"""``-o``: yaml, json, name, wide, jsonpath=... and the server's table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from nodus.client.kinds import find_kind
from nodus.client.resources import JsonObject

FORMATS = "json|yaml|name|wide|jsonpath=TEMPLATE"


def check_format(value: str | None, allowed: Sequence[str]) -> str | None:
    """Return the format, or complain with those there are.

    Raises:
        click.UsageError: For an unknown format.
    """
    template = value.removeprefix("jsonpath=") if value and value.startswith("jsonpath=") else None
    if value is None or (value in allowed and value != "jsonpath") or (template and "jsonpath" in allowed):
        return value
    from nodus.client.suggest import did_you_mean

    listed = ", ".join("jsonpath=TEMPLATE" if name == "jsonpath" else name for name in allowed)
    raise click.UsageError(f"unknown output format {value!r}; use one of {listed}.{did_you_mean(value, allowed)}")


def print_object(obj: Any, output: str) -> None:
    """Print an object, or a list of them, in a format that is made on this side.

    Raises:
        click.UsageError: When a JSONPath can't be read.
    """
    if output == "json":
        print(json.dumps(obj, indent=4, ensure_ascii=False))
    elif output == "yaml":
        print(to_yaml(obj), end="")
    elif output == "name":
        for item in obj["items"] if str(obj.get("kind")) == "List" else [obj]:
            print(typed_name(item))
    elif output.startswith("jsonpath="):
        from nodus.cli.jsonpath import JsonPathError, render

        try:
            print(render(output.removeprefix("jsonpath="), obj))
        except JsonPathError as error:
            raise click.UsageError(str(error)) from error


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
