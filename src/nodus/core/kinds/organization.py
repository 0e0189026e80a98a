"""Organization, Project, Event and Offering: kinds of the whole organization."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from nodus.core.kinds.base import AGE, NAME, READ_VERBS, USD, Column, Kind, Model, dollars


class OrganizationSpec(Model):
    """Everything one server holds."""

    display_name: str | None = Field(default=None, min_length=1, max_length=128)
    """Name for people; what the operator set as `org_name` when left out."""


class OrganizationStatus(Model):
    """State of an organization."""

    phase: Literal["Active"] | None = None
    """Active."""


ORGANIZATION = Kind(
    name="Organization",
    plural="organizations",
    singular="organization",
    short_names=("org",),
    version="v1",
    scope="Org",
    spec_model=OrganizationSpec,
    status_model=OrganizationStatus,
    summary="The organization of this server: its members, projects and keys. There is one.",
    columns=(NAME, Column("Display-Name", "spec.displayName", description="Name for people"), AGE),
    verbs=("get", "list", "patch", "update", "watch"),
    phases={"Active": ()},
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Organization",
        "metadata": {"name": "nodus"},
        "spec": {"displayName": "Acme Research"},
    },
)


class ProjectSpec(Model):
    """A namespace for objects."""

    display_name: str | None = Field(default=None, max_length=128)
    """Name for people."""
    description: str | None = Field(default=None, max_length=256)
    """For people."""


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
