"""Volume and Secret: files and credentials that runs use."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from nodus.core.kinds.base import AGE, NAME, PHASE, Column, Condition, Kind, Model, Quantity
from nodus.core.sizes import size_text


class HuggingFaceSource(Model):
    """Files of a hub repository."""

    repo: str = Field(min_length=1, max_length=200)
    """``OWNER/NAME``, or ``datasets/OWNER/NAME``."""
    revision: str | None = Field(default=None, min_length=1, max_length=250)
    """Commit, branch or tag; fixed to a commit when the import begins. 40 hex digits are always a commit."""
    type: Literal["model", "dataset"] = "model"
    """Repository type."""
    secret: str | None = None
    """Secret with a token for gated repositories, as ``HF_TOKEN`` or its only key."""


class UrlSource(Model):
    """A file to download."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"type": "object"}, {"type": "string"}]})

    url: str = Field(min_length=1, max_length=4000)
    """``https://`` or ``http://`` address of the file."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest that the file must have."""
    extract: Literal["Auto", "None"] = "Auto"
    """Auto unpacks .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz and .zip and keeps other files; None keeps every file."""


class GitFiles(Model):
    """Files of a git repository at one commit."""

    repo: str = Field(min_length=1, max_length=2000)
    """``https://`` or ``http://`` address to clone."""
    ref: str | None = Field(default=None, min_length=1, max_length=250)
    """Commit, branch or tag; the default branch when unset. Fixed to a commit when the import begins.

    40 hex digits are always a commit, also where a branch or tag is called so.
    """
    path: str | None = Field(default=None, min_length=1, max_length=500)
    """Directory or file inside the repository; the whole when unset."""
    secret: str | None = None
    """Secret with a ``token`` (or ``username`` and ``password``) for a private repository."""


class S3Source(Model):
    """Objects of a bucket of Amazon S3 or of a server that speaks as it does."""

    uri: str = Field(pattern=r"^s3://[^/]+(/.*)?$", max_length=1200)
    """``s3://BUCKET/PREFIX``; every object below the prefix, or the object of that very name."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://", max_length=500)
    """Address of the server; Amazon's when unset."""
    region: str | None = Field(default=None, pattern=r"^[a-z0-9-]{1,40}$")
    """Region; us-east-1 when unset."""
    secret: str | None = None
    """Secret with ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``; without one the bucket must be public."""
    connection: str | None = None
    """A Connection with the credentials; there are none here yet."""


def read_url(value: Any) -> Any:
    """Turn a bare address into its object form; other values pass through."""
    return {"url": value} if isinstance(value, str) else value


class VolumeSource(Model):
    """Where a Volume's first revision comes from; one of these."""

    huggingface: HuggingFaceSource | None = None
    """A hub repository."""
    library: str | None = None
    """A model of the local library."""
    url: Annotated[UrlSource, BeforeValidator(read_url)] | None = None
    """A file to download; an object or its address."""
    git: GitFiles | None = None
    """A git repository."""
    s3: S3Source | None = None
    """Objects of a bucket."""
    connection_query: dict[str, Any] | None = None
    """A query of a Connection; there are none here yet."""


class VolumeSpec(Model):
    """Files with committed revisions."""

    access_mode: Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"] = "ReadWriteOnce"
    """Who may write: one Job at a time, nobody but the import, or many at once. Any number may read."""
    size: Quantity = "10Gi"
    """Largest size of a revision."""
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
    """The run that writes to a ReadWriteOnce Volume: kind, name, attempt, epoch."""
    import_: dict[str, Any] | None = Field(default=None, alias="import")
    """Progress and provenance of an import."""
    last_commit_time: str | None = None
    """When the newest revision was committed."""
    conditions: list[Condition] = Field(default_factory=list)
    """Observed conditions."""


def _used(wire: Mapping[str, Any], now: datetime) -> str | None:
    text = str((wire.get("status") or {}).get("used") or "")
    return size_text(int(text)) if text.isdigit() else text or None


def _holder(wire: Mapping[str, Any], now: datetime) -> str | None:
    holder = (wire.get("status") or {}).get("holder") or {}
    return f"{str(holder['kind']).lower()}/{holder['name']}" if holder else None


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
        Column("Holder", _holder, wide=True, description="Who writes to it"),
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
