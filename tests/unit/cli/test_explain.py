"""Descriptions of kinds and fields, as `nodus explain` prints them."""

from __future__ import annotations

from typing import Any

import pytest

from nodus import errors
from nodus.cli.schema_text import Explainer

DOCUMENT: dict[str, Any] = {
    "components": {
        "schemas": {
            "Cake": {
                "description": "Something sweet.",
                "required": ["metadata"],
                "properties": {
                    "kind": {"type": "string", "enum": ["Cake"], "description": "Kind of the object."},
                    "metadata": {"type": "object", "description": "Its name."},
                    "spec": {"allOf": [{"$ref": "#/components/schemas/CakeSpec"}], "description": "What is wanted."},
                },
                "x-kubernetes-group-version-kind": [{"group": "nodus.dev", "version": "v1", "kind": "Cake"}],
            },
            "CakeSpec": {
                "type": "object",
                "description": "How to bake it.",
                "properties": {
                    "layers": {"type": "array", "items": {"$ref": "#/components/schemas/Layer"}},
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}, "description": "x " * 60},
                },
            },
            "Layer": {
                "type": "object",
                "required": ["flavour"],
                "properties": {
                    "flavour": {"type": "string", "description": "What it tastes of."},
                    "below": {"$ref": "#/components/schemas/Layer"},
                },
            },
        }
    }
}


def explained(*fields: str, recursive: bool = False) -> str:
    return "\n".join(Explainer(DOCUMENT).lines("Cake", "nodus.dev/v1", fields, recursive=recursive))


def test_a_kind_is_shown_with_its_fields() -> None:
    assert explained() == (
        "GROUP:      nodus.dev\nKIND:       Cake\nVERSION:    v1\n\nDESCRIPTION:\n    Something sweet.\n\nFIELDS:\n"
        "  kind\t<string>\n  enum: Cake\n    Kind of the object.\n\n"
        "  metadata\t<Object> -required-\n    Its name.\n\n"
        "  spec\t<CakeSpec>\n    What is wanted.\n"
    )


def test_a_field_is_shown_with_its_type_and_what_it_holds() -> None:
    shown = explained("spec", "layers")
    assert "FIELD: layers <[]Layer>" in shown
    assert "  flavour\t<string> -required-\n    What it tastes of." in shown
    assert "FIELD: labels <map[string]string>" in explained("spec", "labels")


def test_long_descriptions_are_wrapped() -> None:
    assert all(len(line) <= 80 for line in explained("spec", "labels").splitlines())


def test_recursive_names_the_fields_of_fields_and_ends_where_they_repeat() -> None:
    shown = explained(recursive=True)
    assert "  spec\t<CakeSpec>\n    labels\t<map[string]string>\n    layers\t<[]Layer>\n      below\t<Layer>\n" in shown
    assert shown.count("below") < 20


def test_an_unknown_field_is_answered_with_the_closest() -> None:
    with pytest.raises(errors.NotFound, match=r"Cake\.spec has no field 'layer'") as caught:
        explained("spec", "layer")
    assert caught.value.fix == "Did you mean 'layers'?"
    with pytest.raises(errors.NotFound) as caught:
        explained("spec", "zzz")
    assert caught.value.fix == "It has: labels, layers."
    with pytest.raises(errors.NotFound, match=r"Cake\.spec\.layers\.flavour has no field 'x'"):
        explained("spec", "layers", "flavour", "x")


def test_a_kind_that_is_not_described_is_not_found() -> None:
    with pytest.raises(errors.NotFound, match="does not describe Pie"):
        Explainer(DOCUMENT).lines("Pie", "nodus.dev/v1", (), recursive=False)
