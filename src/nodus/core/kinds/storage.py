"""Volume and Secret: files and credentials that runs use."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from nodus.core.kinds.base import AGE, NAME, PHASE, Column, Condition, Kind, Model, Quantity
from nodus.core.sizes import size_text


class HuggingFaceSource(Model):
    """Files of a hub repository."""

    repo: str
    """``OWNER/NAME``."""
    revision: str | None = None
    """Commit, branch or tag."""
    type: Literal["model", "dataset"] = "model"
    """Repository type."""
    secret: str | None = None
    """Secret with a token for gated repositories."""


class VolumeSource(Model):
    """Where a Volume's first revision comes from."""

    huggingface: HuggingFaceSource | None = None
    """A hub repository."""
    library: str | None = None
    """A model of the local library."""
    url: str | None = None
    """A file to download."""
    git: dict[str, Any] | None = None
    """A git repository."""
    s3: dict[str, Any] | None = None
    """Objects of a bucket."""
    connection_query: dict[str, Any] | None = None
    """A query of a Connection."""


class VolumeSpec(Model):
    """Files with committed revisions."""

    access_mode: Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"] = "ReadWriteOnce"
    """Who may mount it at once."""
    size: Quantity = "10Gi"
    """Largest size."""
    source: VolumeSource | None = None
    """Where its first revision comes from."""


class VolumeStatus(Model):
    """What is in it."""

    phase: Literal["Pending", "Ready", "Failed"] | None = None
    """Pending, Ready or Failed."""
    reason: str | None = None
    """Why it failed."""
    message: str | None = None
    """For people."""
    fix: str | None = None
    """What to do about it."""
    revision: int | None = None
    """Newest committed revision; 0 when empty."""
    digest: str | None = None
    """Digest of the newest revision's files."""
    used: str | None = None
    """Bytes used, as a quantity."""
    storage: dict[str, Any] | None = None
    """Bytes and billed bytes."""
    holder: dict[str, Any] | None = None
    """The writer that holds it."""
    readers: int | None = None
    """Runs that read it."""
    import_: dict[str, Any] | None = Field(default=None, alias="import")
    """Progress and provenance of an import."""
    last_commit_time: str | None = None
    """When the newest revision was committed."""
    conditions: list[Condition] = Field(default_factory=list)
    """Observed conditions."""


def _used(wire: Mapping[str, Any], now: datetime) -> str | None:
    text = str((wire.get("status") or {}).get("used") or "")
    return size_text(int(text)) if text.isdigit() else text or None


VOLUME = Kind(
    name="Volume",
    plural="volumes",
    singular="volume",
    version="v1",
    scope="Project",
    spec_model=VolumeSpec,
    status_model=VolumeStatus,
    summary="Files with committed revisions, mounted by runs.",
    columns=(
        NAME,
        PHASE,
        Column("Mode", "spec.accessMode", description="Who may mount it"),
        Column("Revision", "status.revision", description="Newest revision"),
        Column("Used", _used, description="Bytes used"),
        AGE,
        Column("Message", "status.message", wide=True, description="Why it is in that phase"),
    ),
    subresources=("revisions", "uploads", "files"),
    immutable=("accessMode", "source"),
    phases={"Pending": ("Ready", "Failed"), "Ready": ("Pending", "Failed"), "Failed": ("Pending", "Ready")},
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Volume",
        "metadata": {"name": "support-chats"},
        "spec": {"accessMode": "ReadWriteOnce", "size": "1Gi"},
    },
)


class SecretSpec(Model):
    """Credentials by key; values are taken in and never returned."""

    type: str = "Opaque"
    """Kind of secret."""
    string_data: dict[str, str] = Field(default_factory=dict)
    """Values by key; stored encrypted and left out of every reply."""


class SecretStatus(Model):
    """What is known of it without its values."""

    phase: Literal["Ready"] | None = None
    """Ready."""
    keys: list[str] = Field(default_factory=list)
    """Names of the keys."""
    version: int | None = None
    """Newest version."""
    versions: list[dict[str, Any]] = Field(default_factory=list)
    """Versions with their times."""


SECRET = Kind(
    name="Secret",
    plural="secrets",
    singular="secret",
    version="v1",
    scope="Project",
    spec_model=SecretSpec,
    status_model=SecretStatus,
    summary="Credentials by key, encrypted at rest and never returned.",
    columns=(
        NAME,
        Column("Type", "spec.type", description="Kind of secret"),
        Column("Version", "status.version", description="Newest version"),
        AGE,
    ),
    immutable=("type",),
    phases={"Ready": ()},
    selectable_fields=(),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Secret",
        "metadata": {"name": "hf-token"},
        "spec": {"stringData": {"HF_TOKEN": "a token"}},
    },
)
