"""Which paths a field selector may ask for."""

from __future__ import annotations

import pytest

from nodus.core.kinds import KINDS, Kind
from nodus.core.kinds.base import PHASE
from nodus.core.kinds.fields import EVENT, METADATA, check_field_selector
from nodus.core.selectors import parse_selector
from nodus.server.api.schemas import COMMON, kind_schemas


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_what_a_kind_declares_and_shows_can_be_selected(kind: Kind) -> None:
    shown = [column.path for column in kind.columns if isinstance(column.path, str)]
    for path in ("metadata.name", "metadata.namespace", *kind.selectable_fields, *shown):
        if path == PHASE.path and "phase" not in kind.status_model.model_fields:
            continue
        check_field_selector(kind, parse_selector(path))


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_phase_can_be_selected(kind: Kind) -> None:
    for phase in kind.phases:
        check_field_selector(kind, parse_selector(f"status.phase={phase}"))


def test_fields_outside_spec_and_status_are_those_of_the_schema() -> None:
    assert list(METADATA) == list(COMMON["ObjectMeta"]["properties"])
    event = kind_schemas([KINDS["Event"]])["Event"]["properties"]
    assert set(EVENT) == set(event) - {"apiVersion", "kind", "metadata"}
