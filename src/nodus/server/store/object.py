"""An object as the server handles it, and its forms as a database row, a change's image and wire JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nodus.core.clock import rfc3339
from nodus.core.kinds import KINDS
from nodus.server.store.codec import dumps, from_us, loads, to_us


@dataclass(frozen=True, slots=True)
class Object:
    """One stored object. Treat its dicts as read-only: they are what the database holds, not a copy to edit."""

    kind: str
    """CamelCase name of the kind."""
    uid: str
    project: str | None
    """None for kinds of the whole org."""
    name: str
    generation: int
    """Counts changes of the spec, from 1."""
    resource_version: int
    created_at: datetime
    deleted_at: datetime | None = None
    """When deletion was asked for, while finalizers hold it."""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: list[dict[str, Any]] = field(default_factory=list)
    finalizers: list[str] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def controllers(self) -> set[str]:
        """Uids of the owners that made and run this object. Only the server names those; other owners users may."""
        return {str(reference["uid"]) for reference in self.owner_references if reference.get("controller") is True}

    def to_wire(self) -> dict[str, Any]:
        """Return the object as JSON clients see it. An Event's fields stand at the top, not below ``spec``."""
        metadata: dict[str, Any] = {"name": self.name}
        if self.project is not None:
            metadata["namespace"] = self.project
        metadata |= {
            "uid": self.uid,
            "resourceVersion": str(self.resource_version),
            "generation": self.generation,
            "creationTimestamp": rfc3339(self.created_at),
        }
        if self.deleted_at is not None:
            metadata["deletionTimestamp"] = rfc3339(self.deleted_at)
        for name, value in (
            ("labels", self.labels),
            ("annotations", self.annotations),
            ("ownerReferences", self.owner_references),
            ("finalizers", self.finalizers),
        ):
            if value:
                metadata[name] = value
        head = {"apiVersion": api_version(self.kind), "kind": self.kind, "metadata": metadata}
        if self.kind == "Event":
            return head | self.spec
        return head | {"spec": self.spec, "status": self.status}


def api_version(kind: str) -> str:
    """Return ``nodus.dev/v1`` or whatever the kind is served as."""
    known = KINDS.get(kind)
    return known.api_version if known is not None else "nodus.dev/v1"


def owner_reference(owner: Object) -> dict[str, Any]:
    """Return the reference that makes an object a dependent of ``owner``."""
    return {
        "apiVersion": api_version(owner.kind),
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def from_row(row: Any) -> Object:
    """Return the object of a row of ``objects``."""
    return Object(
        kind=row.kind,
        uid=row.uid,
        project=row.project or None,
        name=row.name,
        generation=row.generation,
        resource_version=row.rv,
        created_at=from_us(row.created_us),
        deleted_at=None if row.deleted_us is None else from_us(row.deleted_us),
        labels=loads(row.labels),
        annotations=loads(row.annotations),
        owner_references=loads(row.owners),
        finalizers=loads(row.finalizers),
        spec=loads(row.spec),
        status=loads(row.status),
    )


def to_columns(obj: Object) -> dict[str, Any]:
    """Return the columns of ``objects`` for an object, except ``org``."""
    return {
        "uid": obj.uid,
        "kind": obj.kind,
        "project": obj.project or "",
        "name": obj.name,
        "generation": obj.generation,
        "rv": obj.resource_version,
        "created_us": to_us(obj.created_at),
        "deleted_us": None if obj.deleted_at is None else to_us(obj.deleted_at),
        "labels": dumps(obj.labels),
        "annotations": dumps(obj.annotations),
        "owners": dumps(obj.owner_references),
        "finalizers": dumps(obj.finalizers),
        "spec": dumps(obj.spec),
        "status": dumps(obj.status),
    }


_IMAGE_JSON = ("labels", "annotations", "owners", "finalizers", "spec", "status")


def image_of(columns: Mapping[str, Any]) -> str:
    """Return the image that a change row keeps, from :func:`to_columns`; the JSON columns are not encoded again."""
    head = dumps({name: columns[name] for name in ("generation", "created_us", "deleted_us")})
    return head[:-1] + "".join(f',"{name}":{columns[name]}' for name in _IMAGE_JSON) + "}"


def from_image(kind: str, project: str | None, name: str, uid: str, rv: int, image: str) -> Object:
    """Return the object of a change row."""
    data = loads(image)
    return Object(
        kind=kind,
        uid=uid,
        project=project,
        name=name,
        generation=data["generation"],
        resource_version=rv,
        created_at=from_us(data["created_us"]),
        deleted_at=None if data["deleted_us"] is None else from_us(data["deleted_us"]),
        labels=data["labels"],
        annotations=data["annotations"],
        owner_references=data["owners"],
        finalizers=data["finalizers"],
        spec=data["spec"],
        status=data["status"],
    )
