"""Descriptions of fields, read from the docstring beneath each field."""

from __future__ import annotations

from pydantic import Field

from nodus.core.kinds.base import Model
from nodus.core.kinds.describe import all_models, field_descriptions


class Inner(Model):
    """Inside."""

    depth: int = 0
    """How deep,
    in metres."""


class Base(Model):
    """Shared."""

    name: str
    """From the base."""


class Outer(Base):
    """Outside."""

    inner: list[Inner] | None = None
    """What is in it."""
    size: int = Field(default=0, description="From Field.")
    silent: int = 0


def test_descriptions_come_from_docstrings_fields_and_bases() -> None:
    assert field_descriptions(Outer) == {
        "name": "From the base.",
        "inner": "What is in it.",
        "size": "From Field.",
    }


def test_descriptions_are_one_line() -> None:
    assert field_descriptions(Inner) == {"depth": "How deep, in metres."}


def test_all_models_follow_fields_once() -> None:
    assert all_models(Outer, Inner) == [Outer, Inner]
