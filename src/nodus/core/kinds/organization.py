"""Project, APIKey, Event and Offering: kinds of the whole organization."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from nodus.core.kinds.base import AGE, NAME, READ_VERBS, USD, Column, Kind, Model, dollars, joined


class ProjectSpec(Model):
    """A namespace for objects."""

    display_name: str | None = None
    """Name for people."""


class ProjectStatus(Model):
    """State of a project."""

    phase: Literal["Active", "Terminating"] | None = None
    """Active or Terminating."""


PROJECT = Kind(
    name="Project",
    plural="projects",
    singular="project",
    version="v1",
    scope="Org",
    spec_model=ProjectSpec,
    status_model=ProjectStatus,
    summary="A namespace for objects; keys see only the projects they name.",
    columns=(NAME, Column("Phase", "status.phase", description="State"), AGE),
    phases={"Active": ("Terminating",), "Terminating": ()},
    example={"apiVersion": "nodus.dev/v1", "kind": "Project", "metadata": {"name": "research"}, "spec": {}},
)


class APIKeySpec(Model):
    """What a key may do."""

    scopes: list[str] = Field(default_factory=lambda: ["*"])
    """``<plural>:read``, ``<plural>:write`` or ``*``."""
    projects: list[str] = Field(default_factory=list)
    """Projects it sees; all when empty."""
    expires: str | None = None
    """RFC 3339 time after which it is refused."""
    description: str | None = None
    """For people."""


class APIKeyStatus(Model):
    """What is known of a key; the key itself is shown once, in the reply that creates it."""

    phase: Literal["Active", "Expired", "Revoked"] | None = None
    """Active, Expired or Revoked."""
    token: str | None = None
    """The key, only in the reply that creates it."""
    prefix: str | None = None
    """Its first characters, to recognise it by."""
    last_used_time: str | None = None
    """When it was last used."""


API_KEY = Kind(
    name="APIKey",
    plural="apikeys",
    singular="apikey",
    version="v1",
    scope="Org",
    spec_model=APIKeySpec,
    status_model=APIKeyStatus,
    summary="A credential with scopes, projects and an expiry.",
    columns=(
        NAME,
        Column("Phase", "status.phase", description="State"),
        Column("Prefix", "status.prefix", description="First characters"),
        Column("Scopes", joined("spec.scopes"), description="What it may do"),
        Column("Last-Used", "status.lastUsedTime", description="When it was last used"),
        AGE,
    ),
    immutable=("scopes", "projects"),
    phases={"Active": ("Expired", "Revoked"), "Expired": (), "Revoked": ()},
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "APIKey",
        "metadata": {"name": "ci"},
        "spec": {"scopes": ["trainingjobs:read"], "projects": ["default"]},
    },
)


class EventSpec(Model):
    """Events have no spec."""


class EventStatus(Model):
    """Events have no status."""


EVENT = Kind(
    name="Event",
    plural="events",
    singular="event",
    version="v1",
    scope="Org",
    spec_model=EventSpec,
    status_model=EventStatus,
    summary="Something that happened to an object; repeated ones are counted.",
    columns=(
        Column("Last-Seen", "lastTime", description="When it last happened"),
        Column("Type", "type", description="Normal or Warning"),
        Column("Reason", "reason", description="CamelCase reason"),
        Column("Object", "involvedObject.name", description="What it happened to"),
        Column("Message", "message", description="For people"),
    ),
    verbs=READ_VERBS,
    selectable_fields=("involvedObject.kind", "involvedObject.name", "involvedObject.namespace", "type", "reason"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Event",
        "metadata": {"name": "my-grpo.1", "namespace": "default"},
        "involvedObject": {"kind": "TrainingJob", "name": "my-grpo", "namespace": "default"},
        "type": "Normal",
        "reason": "StageStarted",
        "message": "Training started",
        "count": 1,
        "firstTime": "2026-01-31T12:00:00Z",
        "lastTime": "2026-01-31T12:00:00Z",
    },
)


class OfferingAccelerator(Model):
    """Accelerator of an offering."""

    family: str | None = None
    """Such as ``H100``."""
    memory: str | None = None
    """Memory of one."""
    count: int = 0
    """How many."""


class OfferingSpec(Model):
    """A shape of machine that runs can use, with its price."""

    accelerator: OfferingAccelerator | None = None
    """Accelerator; none for CPU offerings."""
    count: int = Field(default=0, ge=0)
    """Accelerators per machine."""
    cpu: int | float | None = None
    """Cores."""
    memory: str | None = None
    """Memory."""
    region_class: str | None = None
    """Region class."""
    interruptible: bool = False
    """Whether it can be taken away."""
    price_usd_per_hour: USD = Field(default="0.00", alias="priceUSDPerHour")
    """Price."""
    node: str | None = None
    """The host, for local offerings."""


class OfferingStatus(Model):
    """Whether it is there."""

    phase: Literal["Available", "Unavailable"] | None = None
    """Available or Unavailable."""
    free: dict[str, Any] | None = None
    """What is left of it."""


OFFERING = Kind(
    name="Offering",
    plural="offerings",
    singular="offering",
    short_names=("gpus",),
    version="v1",
    scope="Org",
    spec_model=OfferingSpec,
    status_model=OfferingStatus,
    summary="A shape of machine that runs can use, with its price.",
    columns=(
        NAME,
        Column("Accelerator", "spec.accelerator.family", description="Accelerator family"),
        Column("Count", "spec.count", description="Accelerators"),
        Column("CPU", "spec.cpu", description="Cores"),
        Column("Memory", "spec.memory", description="Memory"),
        Column("Price", dollars("spec.priceUSDPerHour"), description="Dollars per hour"),
        Column("Phase", "status.phase", description="Whether it is there"),
    ),
    verbs=READ_VERBS,
    phases={"Available": ("Unavailable",), "Unavailable": ("Available",)},
    selectable_fields=("spec.accelerator.family", "spec.count", "spec.regionClass", "spec.interruptible"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Offering",
        "metadata": {"name": "local-cpu"},
        "spec": {"cpu": 2, "memory": "24Gi", "priceUSDPerHour": "0.00"},
    },
)
