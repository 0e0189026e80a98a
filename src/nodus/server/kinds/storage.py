"""Admission of Secret and Volume."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar

from nodus.core.clock import rfc3339
from nodus.core.errors import Cause, Conflict
from nodus.core.kinds import JOB, SECRET, VOLUME
from nodus.core.kinds.storage import SecretSpec, VolumeSpec
from nodus.core.sizes import quantity, size_text
from nodus.server.kinds import sources
from nodus.server.kinds.base import Admission, Draft
from nodus.server.store import objects, secret_values
from nodus.server.store.codec import from_us

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store.objects import Object

SECRET_LIMIT_BYTES = 512 * 1024
KEPT_VERSIONS = 50
SECRET_TYPES: dict[str, tuple[str, ...]] = {"Opaque": (), "Registry": ("server", "username", "password")}
"""The types of Secrets, and the keys that each must have."""
REQUIRED = "FieldValueRequired"
_SECRET_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")


class SecretAdmission(Admission[SecretSpec]):
    """Takes values in and keeps them sealed beside the object, one row a version; the object never holds any."""

    defaults: ClassVar = {"type": "Opaque"}

    def prepare(self, draft: Draft) -> SecretSpec | None:
        """Decode without quoting any value in a message."""
        spec = super().prepare(draft)
        draft.causes[:] = [
            Cause(cause.field, cause.reason, "a string is expected")
            if cause.field.startswith("spec.stringData") and cause.reason == "FieldValueInvalid"
            else cause
            for cause in draft.causes
        ]
        return spec

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: SecretSpec) -> None:
        """Check names and sizes. Messages never quote a value."""
        for key in spec.string_data:
            if not _SECRET_KEY.fullmatch(key):
                draft.reject("spec.stringData", f"{key[:40]!r} is not a key; use letters, digits, '.', '-' and '_'")
        kept = {} if draft.old is None or not spec.string_data else read_secret(conn, services, draft.old)[1]
        size = sum(len(key) + len(value.encode()) for key, value in {**kept, **spec.string_data}.items())
        if size > SECRET_LIMIT_BYTES:
            draft.reject("spec.stringData", f"{size} bytes are too many; {SECRET_LIMIT_BYTES} fit")
        if spec.type not in SECRET_TYPES:
            draft.reject("spec.type", f"{spec.type[:40]!r} is not known; types are {', '.join(SECRET_TYPES)}")
        for key in SECRET_TYPES.get(spec.type, ()) if draft.creating else ():
            if key not in spec.string_data:
                draft.reject("spec.stringData", f"a Secret of type {spec.type} needs the key {key}", REQUIRED)
        if draft.creating and not spec.string_data:
            draft.reject("spec.stringData", "required and missing; give at least one key", REQUIRED)
        if draft.creating:
            draft.status = {"phase": "Ready", "keys": sorted(spec.string_data), "version": 1}

    def storable(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The spec without its values."""
        return {key: value for key, value in spec.items() if key != "stringData"}

    def render(self, wire: dict[str, Any]) -> dict[str, Any]:
        """Never show values, not even those of the request being answered."""
        shown = {**wire, "spec": self.storable(wire.get("spec", {}))}
        metadata = wire.get("metadata") or {}
        if metadata.get("annotations"):
            shown["metadata"] = {**metadata, "annotations": self.annotated(metadata["annotations"])}
        return shown

    def annotated(self, annotations: dict[str, str]) -> dict[str, str]:
        """Without the manifests that `apply` of clients keeps there with the values in them."""
        return {key: text for key, text in annotations.items() if "last-applied" not in key or "stringData" not in text}

    def repeats(self, conn: Connection, services: Services, draft: Draft, there: Object) -> bool:
        """The same values under the same type are the same Secret."""
        if there.spec.get("type") != draft.spec.get("type"):
            return False
        given: dict[str, str] = draft.spec.get("stringData", {})
        return read_secret(conn, services, there)[1] == given

    def stored(self, conn: Connection, services: Services, draft: Draft, obj: Object) -> None:
        """Seal a new version where a value is new. A patch changes the keys it names and keeps the others."""
        given: dict[str, str] = draft.spec.get("stringData", {})
        if not given:
            return
        before: tuple[int, dict[str, str]] = (0, {}) if draft.creating else read_secret(conn, services, obj)
        values = {**before[1], **given}
        if values == before[1]:
            return
        version = before[0] + 1
        secret_values.put(conn, obj.uid, version, services.signer.encrypt(json.dumps(values).encode(), obj.uid))
        secret_values.prune(conn, obj.uid, KEPT_VERSIONS)
        versions = [
            {"version": number, "time": rfc3339(from_us(created_us))}
            for number, created_us in secret_values.versions(conn, obj.uid)
        ]
        status = {"phase": "Ready", "keys": sorted(values), "version": version, "versions": versions}
        objects.update_status(conn, obj.uid, status)


def read_secret(
    conn: Connection, services: Services, secret: Object, version: int | None = None
) -> tuple[int, dict[str, str]]:
    """Open a Secret: its version and its values by key. For whoever starts a run; never for a reply.

    Raises:
        NotFound: it has no such version.
        KeyringError: the server's key file is not the one it was sealed with.
    """
    number, sealed = secret_values.get(conn, secret.uid, version)
    values: dict[str, str] = json.loads(services.signer.decrypt(sealed, secret.uid))
    return number, values


class VolumeAdmission(Admission[VolumeSpec]):
    """A Volume is Ready and empty at once, or Pending until its source is imported."""

    defaults: ClassVar = {"accessMode": "ReadWriteOnce", "size": "10Gi"}

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: VolumeSpec) -> None:
        """Allow one source, whose parts can be had here, and a size that holds what is there."""
        size = int(quantity(spec.size))
        used = int((draft.old.status if draft.old is not None else {}).get("used") or 0)
        if size <= 0:
            draft.reject("spec.size", f"{spec.size!r} holds nothing; write it like 10Gi")
        elif size < used:
            draft.reject("spec.size", f"{spec.size} is less than the {used} bytes ({size_text(used)}) it holds")
        source = spec.source
        given = [] if source is None else sorted(source.model_dump(by_alias=True, exclude_none=True))
        if len(given) > 1:
            draft.reject("spec.source", f"one source is possible, these are {', '.join(given)}")
        if not draft.creating:
            return
        if source is not None and not given:
            draft.reject("spec.source", "is empty; name one of huggingface, url, git and s3, or leave it out")
        elif source is not None:
            sources.check(conn, draft, source)
            services.storage.check(0)
        draft.status = {"phase": "Pending" if given else "Ready", "revision": 0}

    def deleting(self, conn: Connection, services: Services, obj: Object) -> None:
        """Keep what a Job is using: its next attempt would find nothing to mount."""
        live = objects.list_(conn, JOB, obj.project, fields="status.phase notin (Succeeded,Failed,Cancelled)").items
        for job in live:
            mounted = {mount.get("volume") for mount in job.spec.get("volumes") or ()}
            if obj.name in mounted and job.deleted_at is None:
                raise Conflict(
                    f"Volume {obj.name!r} is used by Job {job.name!r}, which is {job.status.get('phase')}",
                    fix=f"Wait for it, or `nodus cancel job/{job.name}` first.",
                    details={"holder": {"kind": "Job", "name": job.name}},
                )


ADMISSIONS = (SecretAdmission(SECRET), VolumeAdmission(VOLUME))
