"""Each kind is declared once, and whole: valid example, columns that resolve, described fields, current page."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nodus.core.ids import name_problem
from nodus.core.kinds import KINDS, Kind, find_kind
from nodus.core.kinds.decode import decode, encode
from nodus.core.kinds.describe import all_models, field_descriptions
from nodus.core.selectors import field_text

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


@each_kind
def test_example_is_valid_and_round_trips(kind: Kind) -> None:
    example = kind.example
    assert (example["apiVersion"], example["kind"]) == (kind.api_version, kind.name)
    if "create" in kind.verbs:
        assert name_problem(example["metadata"]["name"]) is None
    for part, model in (("spec", kind.spec_model), ("status", kind.status_model)):
        decoded, causes = decode(model, example.get(part, {}), part)
        assert not causes
        assert decoded is not None
        assert encode(decoded) == example.get(part, {})


def _declared(kind: Kind, path: str) -> bool:
    """Whether a dotted path leads through declared fields, as far as models are declared."""
    parts = path.split(".")
    if parts[0] == "metadata":
        return parts[1] in {"name", "namespace", "creationTimestamp", "labels", "annotations", "generation", "uid"}
    model = {"spec": kind.spec_model, "status": kind.status_model}.get(parts[0])
    if model is None:
        return False
    for part in parts[1:]:
        field = next((f for name, f in model.model_fields.items() if (f.alias or name) == part), None)
        if field is None:
            return False
        inner = [m for m in all_models(kind.spec_model, kind.status_model) if m.__name__ in repr(field.annotation)]
        if not inner:
            return True
        model = inner[0]
    return True


@each_kind
def test_columns_resolve(kind: Kind) -> None:
    example = {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, **kind.example}
    now = datetime(2026, 1, 2, tzinfo=UTC)
    for column in kind.columns:
        if callable(column.path):
            shown = column.path(example, now)
            assert shown is None or isinstance(shown, str)
        else:
            assert _declared(kind, column.path) or field_text(example, column.path), column.path
        assert column.description, f"column {column.header} has no description"


@each_kind
def test_columns_have_headers_of_their_own(kind: Kind) -> None:
    headers = [column.header for column in kind.columns]
    assert len(set(headers)) == len(headers)
    assert all(" " not in header for header in headers)


@each_kind
def test_every_field_has_a_description(kind: Kind) -> None:
    for model in all_models(kind.spec_model, kind.status_model):
        missing = set(model.model_fields) - set(field_descriptions(model))
        assert not missing, model.__name__


@each_kind
def test_immutable_and_money_paths_are_fields(kind: Kind) -> None:
    for path in (*kind.immutable, *kind.raise_only):
        assert path == "*" or _declared(kind, f"spec.{path}"), path


@each_kind
def test_selectable_fields_are_fields(kind: Kind) -> None:
    for path in kind.selectable_fields:
        assert path == "status.phase" or _declared(kind, path) or field_text(kind.example, path), path


@each_kind
def test_phases_lead_to_phases(kind: Kind) -> None:
    for phase, following in kind.phases.items():
        assert set(following) <= set(kind.phases), phase


def test_kinds_are_found_by_every_name() -> None:
    words = [(w, kind) for kind in KINDS.values() for w in (kind.name, kind.plural, kind.singular, *kind.short_names)]
    assert all(find_kind(word) is kind for word, kind in words)
