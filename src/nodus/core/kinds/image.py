"""Image: what an Environment's package was built into, and how the build went."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from nodus.core.kinds.base import AGE, NAME, PHASE, Column, Condition, Kind, Model
from nodus.core.kinds.environment import Package

_PLAIN_VERSION = re.compile(r"[0-9a-z.-]+")
_SHOWN_HEX = 12


def image_name(environment: str, version: str) -> str:
    """Return the name of the Image of an Environment at a version: ``env-NAME-VERSION``.

    What a name can't hold (capitals, ``+``) becomes a dash, with a few hex digits that tell such versions apart.
    """
    if _PLAIN_VERSION.fullmatch(version):
        return f"env-{environment}-{version}"
    plain = re.sub(r"[^0-9a-z.-]", "-", version.lower())
    return f"env-{environment}-{plain}-{hashlib.sha256(version.encode()).hexdigest()[:6]}"


class ImageSpec(Model):
    """What is built."""

    environment: str
    """Name of the Environment it is built for."""
    version: str
    """Version of the Environment."""
    package: Package
    """The Environment's package at that version."""


class BuildStep(Model):
    """One step of a build."""

    name: str
    """Name of the step, such as ``download``."""
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Skipped"]
    """How far it is; Skipped where an earlier build of the same was there."""
    start_time: str | None = None
    """When it began, RFC 3339."""
    completion_time: str | None = None
    """When it ended, RFC 3339."""
    message: str | None = None
    """What it does, what it found, or why it failed."""


class ImageStatus(Model):
    """How the build went."""

    phase: Literal["Pending", "Building", "Ready", "Failed"] | None = None
    """Pending, Building, Ready or Failed."""
    reason: str | None = None
    """Why it failed."""
    message: str | None = None
    """The running step, or the failing one and what it said."""
    fix: str | None = None
    """What to do about it."""
    digest: str | None = None
    """Digest of what was built."""
    size_bytes: int | None = None
    """Size on the server's disk."""
    packages: dict[str, str] = Field(default_factory=dict)
    """Installed packages with their versions."""
    steps: list[BuildStep] = Field(default_factory=list)
    """Steps of the build, in order."""
    log_tail: str | None = None
    """The end of the failing step's log."""
    tries: int | None = None
    """How often it was tried, where trying again may help."""
    retry_time: str | None = None
    """When it is tried again."""
    conditions: list[Condition] = Field(default_factory=list)
    """Observed conditions."""


def _digest(wire: Mapping[str, Any], now: datetime) -> str | None:
    digest = str((wire.get("status") or {}).get("digest") or "")
    return digest.removeprefix("sha256:")[:_SHOWN_HEX] or None


def _step(wire: Mapping[str, Any], now: datetime) -> str | None:
    """The step that runs or failed."""
    steps = (wire.get("status") or {}).get("steps") or []
    return next((str(step["name"]) for step in steps if step.get("phase") in ("Running", "Failed")), None)


IMAGE = Kind(
    name="Image",
    plural="images",
    singular="image",
    version="v1",
    scope="Project",
    spec_model=ImageSpec,
    status_model=ImageStatus,
    summary="What an Environment's package was built into: the build's steps, its log and the digest that runs.",
    columns=(
        NAME,
        PHASE,
        Column("Digest", _digest, description="Beginning of the digest of what was built"),
        Column("Step", _step, description="The step that runs or failed"),
        AGE,
        Column("Environment", "spec.environment", wide=True, description="What it is built for"),
        Column("Version", "spec.version", wide=True, description="Version of the Environment"),
        Column("Message", "status.message", wide=True, description="Why it is in that phase"),
    ),
    verbs=("delete", "get", "list", "watch"),
    subresources=("log",),
    immutable=("*",),
    phases={
        "Pending": ("Building", "Ready", "Failed"),
        "Building": ("Pending", "Ready", "Failed"),
        "Ready": ("Building",),
        "Failed": (),
    },
    selectable_fields=("status.phase", "spec.environment"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Image",
        "metadata": {"name": "env-reverse-words-1.0.0"},
        "spec": {
            "environment": "reverse-words",
            "version": "1.0.0",
            "package": {"pip": {"name": "reverse-words", "version": "1.0.0"}},
        },
    },
)
