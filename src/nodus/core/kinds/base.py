"""What a kind is: one record that routes, admission, tables, the SDK and the reference pages all read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictStr
from pydantic.alias_generators import to_camel

from nodus.core.durations import parse_duration
from nodus.core.money import MAX_NANOS, format_usd, parse_usd
from nodus.core.sizes import QUANTITY

Scope = Literal["Project", "Org"]
Verb = Literal["create", "delete", "get", "list", "patch", "update", "watch"]
ALL_VERBS: tuple[Verb, ...] = ("create", "delete", "get", "list", "patch", "update", "watch")
READ_VERBS: tuple[Verb, ...] = ("get", "list", "watch")


class Model(BaseModel):
    """Base of every spec and status part: camelCase on the wire, unknown fields refused, no silent conversion."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="forbid", strict=True
    )


def _check_usd(text: str) -> str:
    if parse_usd(text) > MAX_NANOS:
        raise ValueError(f"at most {format_usd(MAX_NANOS)} can be counted")
    return text


def _check_duration(text: str) -> str:
    parse_duration(text)
    return text


USD = Annotated[StrictStr, AfterValidator(_check_usd), Field(examples=["20.00"])]
"""Dollars as a decimal string with at most nine places and no more than can be counted; a JSON number is refused."""
Duration = Annotated[StrictStr, AfterValidator(_check_duration), Field(examples=["15m0s"])]
"""A Go-style duration."""
QUANTITY_PATTERN = f"^{QUANTITY}$"
Quantity = Annotated[StrictStr, Field(pattern=QUANTITY_PATTERN, examples=["50Gi"])]
"""A Kubernetes quantity such as ``4``, ``500m``, ``16Gi``."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``nodus get``.

    Attributes:
        header: Shown upper-cased; use ``-`` instead of spaces.
        path: Dotted path into the wire object, or a function of the wire object and the current time.
        wide: Shown only with ``-o wide``.
        description: For the reference page.
    """

    header: str
    path: str | Callable[[Mapping[str, Any], datetime], str | None]
    wide: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """Everything that is the same for all objects of a kind, declared once.

    Attributes:
        immutable: Dotted paths below ``spec`` that can't change after creation; ``*`` means the whole spec.
        raise_only: Dotted paths below ``spec`` that hold money which may only rise.
        phases: Each phase with the phases that may follow it; terminal phases map to none.
        selectable_fields: Dotted paths that field selectors find through an index.
        subresources: Names below the object, such as ``log`` and ``outputs``.
        actions: What ``nodus request`` may ask of an object, by an annotation.
        flat: Whether the spec's fields stand at the top of the object, not below ``spec``: lines of a record.
        example: One valid object, whole.
    """

    name: str
    plural: str
    singular: str
    version: Literal["v1", "v1beta1"]
    scope: Scope
    spec_model: type[Model]
    status_model: type[Model]
    summary: str
    columns: tuple[Column, ...]
    example: Mapping[str, Any]
    short_names: tuple[str, ...] = ()
    verbs: tuple[Verb, ...] = ALL_VERBS
    subresources: tuple[str, ...] = ()
    immutable: tuple[str, ...] = ()
    raise_only: tuple[str, ...] = ()
    phases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    selectable_fields: tuple[str, ...] = ("status.phase",)
    actions: tuple[str, ...] = ()
    flat: bool = False

    @property
    def api_version(self) -> str:
        """``nodus.dev/v1`` or ``nodus.dev/v1beta1``."""
        return f"nodus.dev/{self.version}"

    @property
    def namespaced(self) -> bool:
        """Whether objects live in a project."""
        return self.scope == "Project"

    def is_terminal(self, phase: str | None) -> bool:
        """Whether nothing follows ``phase``."""
        return phase is not None and phase in self.phases and not self.phases[phase]


RUN_PHASES: Mapping[str, tuple[str, ...]] = {
    "Queued": ("Provisioning", "Running", "Suspended", "Failed", "Cancelled"),
    "Provisioning": ("Queued", "Running", "Suspended", "Recovering", "Failed", "Cancelled"),
    "Running": ("Recovering", "Suspended", "Succeeded", "Failed", "Cancelled"),
    "Recovering": ("Queued", "Provisioning", "Running", "Suspended", "Failed", "Cancelled"),
    "Suspended": ("Queued", "Cancelled", "Failed"),
    "Succeeded": (),
    "Failed": (),
    "Cancelled": (),
}
"""Phases of everything that runs to completion."""

RunState = Literal["Running", "Suspended", "Cancelled"]


class Condition(Model):
    """One observed condition of an object."""

    type: str
    """CamelCase name, such as ``Ready``."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str | None = None
    """CamelCase reason."""
    message: str | None = None
    """For people."""
    last_transition_time: str | None = None
    """RFC 3339."""


def age(wire_object: Mapping[str, Any], now: datetime) -> str | None:
    """Return the age of an object for its AGE column."""
    from nodus.core.clock import parse_rfc3339
    from nodus.core.durations import format_age

    created = wire_object.get("metadata", {}).get("creationTimestamp")
    return format_age((now - parse_rfc3339(created)).total_seconds()) if created else None


NAME = Column("Name", "metadata.name", description="Name of the object")
PHASE = Column("Phase", "status.phase", description="Where the object is in its life")
AGE = Column("Age", age, description="Time since creation")


def dollars(path: str) -> Callable[[Mapping[str, Any], datetime], str | None]:
    """Return a column function that shows the amount at ``path`` as ``$1.23``."""
    from nodus.core.selectors import field_text

    def show(wire_object: Mapping[str, Any], now: datetime) -> str | None:
        amount = field_text(wire_object, path)
        return None if amount is None else f"${amount}"

    return show


def joined(path: str) -> Callable[[Mapping[str, Any], datetime], str | None]:
    """Return a column function that joins the list at ``path`` with commas."""

    def show(wire_object: Mapping[str, Any], now: datetime) -> str | None:
        value: Any = wire_object
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return ", ".join(str(item) for item in value) if isinstance(value, list) else None

    return show
