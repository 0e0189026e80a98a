"""What a TrainingJob refers to, read from the store: runtime, environment version, offerings.

Functions of a connection, used by admission, the TrainingJob controller and the attempt's service, so that all three
resolve a reference the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodus.core.kinds import ENVIRONMENT, IMAGE, OFFERING, SECRET, TRAINING_RUNTIME
from nodus.core.kinds.image import image_name
from nodus.core.money import parse_usd
from nodus.core.sizes import exact_quantity, quantity
from nodus.server.compute.local import images
from nodus.server.store import objects, versions
from nodus.server.training import models
from nodus.server.training.compile import RuntimePin
from nodus.server.training.references import (
    CATALOG_PROJECT,
    BadReference,
    EnvironmentRef,
    ObjectRef,
    near,
    parse_environment,
    parse_object,
)
from nodus.server.training.resources import Shape

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.core.kinds import Kind
    from nodus.server.services import Services
    from nodus.server.store.objects import Object

_ALIAS = re.compile(r"(?P<name>.+)-v(?P<major>\d+)")


class Unresolved(BadReference):
    """A reference that names nothing here; the message names what is near."""


@dataclass(frozen=True, slots=True)
class FoundEnvironment:
    """An Environment at one version."""

    object: Object
    ref: EnvironmentRef
    """What it is, with an alias resolved."""
    spec: Mapping[str, Any]
    """Spec of that version; with ``build`` (the ``digest`` of its Image), where its package was built into one."""

    @property
    def current(self) -> bool:
        """Whether that version is the object's newest, which its status speaks of."""
        return bool(self.object.spec.get("version") == self.ref.version)


def runtime(conn: Connection, project: str, text: str) -> RuntimePin:
    """Find a TrainingRuntime.

    Raises:
        BadReference: the text is no reference, names nothing, or a runtime that is not Ready.
    """
    ref = parse_object(text)
    found = objects.find(conn, TRAINING_RUNTIME, ref.in_project(project), ref.name)
    if found is None:
        raise _unknown(conn, TRAINING_RUNTIME, "runtime", ref, project)
    if found.status.get("phase") == "Failed":
        raise Unresolved(f"runtime {text} has failed: {found.status.get('message') or 'see nodus describe'}")
    image = str(found.spec["image"])
    # A managed image is this installation: what is recorded may be of the one before an upgrade.
    digest = images.digest(image) if images.is_managed(image) else str(found.status.get("imageDigest") or "")
    return RuntimePin(str(ref), found.spec, digest)


def environment(conn: Connection, project: str, text: str) -> FoundEnvironment:
    """Find an Environment at a version; `NAME-vMAJOR`, with or without a version, is the newest of that major.

    Raises:
        BadReference: the text is no reference, has no version, or names an environment or version that isn't there.
    """
    name, _, _ = text.partition("@")
    object_ref = parse_object(name)
    where = object_ref.in_project(project)
    found = objects.find(conn, ENVIRONMENT, where, object_ref.name)
    if found is None:
        alias = _ALIAS.fullmatch(object_ref.name)
        aliased = objects.find(conn, ENVIRONMENT, where, alias["name"]) if alias else None
        if alias is not None and aliased is not None:
            object_ref = ObjectRef(object_ref.project, alias["name"])
            return _at(conn, aliased, _of_major(conn, aliased, object_ref, alias["major"], text))
        parse_environment(text)
        raise _unknown(conn, ENVIRONMENT, "environment", object_ref, project)
    if "@" not in text:
        raise BadReference(f"{text!r} has no version; write {text}@VERSION, such as {text}@{found.spec.get('version')}")
    return _at(conn, found, parse_environment(text))


def aliased_environment(conn: Connection, project: str, name: str) -> Object | None:
    """Return the Environment that `NAME-vMAJOR` is another name of, when its newest version is of that major."""
    alias = _ALIAS.fullmatch(name)
    found = objects.find(conn, ENVIRONMENT, project, alias["name"]) if alias else None
    if alias is None or found is None or str(found.spec.get("version")).split(".")[0] != alias["major"]:
        return None
    return found


def shapes(conn: Connection) -> list[Shape]:
    """Every offering that can be had, CPU ones included."""
    found = []
    for offering in objects.list_(conn, OFFERING, None).items:
        if offering.status.get("phase") == "Unavailable":
            continue
        accelerator = offering.spec.get("accelerator") or {}
        found.append(
            Shape(
                name=offering.name,
                cpu=exact_quantity(offering.spec.get("cpu") or 1),
                memory_bytes=int(quantity(offering.spec.get("memory") or "1Gi")),
                accelerator=accelerator.get("family"),
                accelerators=int(offering.spec.get("count") or accelerator.get("count") or 0) if accelerator else 0,
                price=parse_usd(offering.spec.get("priceUSDPerHour") or "0.00"),
            )
        )
    return found


def hub_token(conn: Connection, services: Services, project: str, secret: str) -> str | None:
    """The model hub's token in a Secret of the project: its `HF_TOKEN`, else its only value; None without one."""
    return models.hub_token(secret_values(conn, services, project, secret))


def secret_values(conn: Connection, services: Services, project: str, secret: str) -> dict[str, str]:
    """The values of a Secret of the project by key; none when there is no such Secret. Never for a reply."""
    from nodus.server.kinds.storage import read_secret  # late: admission modules import this one

    found = objects.find(conn, SECRET, project, secret)
    return {} if found is None else read_secret(conn, services, found)[1]


def _at(conn: Connection, found: Object, ref: EnvironmentRef) -> FoundEnvironment:
    if found.spec.get("version") == ref.version:
        return FoundEnvironment(found, ref, _with_build(conn, found, found.spec))
    spec = versions.find(conn, found.uid, ref.version)
    if spec is None:
        known = _versions(conn, found)
        raise Unresolved(f"{ref.object} has no version {ref.version}; it has {', '.join(known)}")
    return FoundEnvironment(found, ref, _with_build(conn, found, spec))


def _with_build(conn: Connection, found: Object, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the digest of what a version's package was built into, where it is built at all and that is done."""
    if not any(spec["package"].get(kind) for kind in ("pip", "image")):
        return spec
    image = objects.find(conn, IMAGE, found.project, image_name(found.name, str(spec["version"])))
    if image is None or image.status.get("phase") != "Ready":
        return spec
    return {**spec, "build": {"digest": image.status["digest"]}}


def _of_major(conn: Connection, found: Object, ref: ObjectRef, major: str, text: str) -> EnvironmentRef:
    _, at, version = text.partition("@")
    known = _versions(conn, found)
    fitting = [candidate for candidate in known if candidate.split(".")[0] == major]
    if not fitting or (at and version not in fitting):
        raise Unresolved(f"{text!r}: {ref} has {', '.join(known)}")
    newest = max(fitting, key=lambda candidate: [int(part) for part in re.findall(r"\d+", candidate)])
    return EnvironmentRef(ref, version if at else newest)


def _versions(conn: Connection, found: Object) -> list[str]:
    return sorted({str(found.spec.get("version")), *versions.list_(conn, found.uid)})


def _unknown(conn: Connection, kind: Kind, word: str, ref: ObjectRef, project: str) -> Unresolved:
    own = [obj.name for obj in objects.list_(conn, kind, project).items]
    catalog = [f"{CATALOG_PROJECT}/{obj.name}" for obj in objects.list_(conn, kind, CATALOG_PROJECT).items]
    names = sorted({*own, *catalog} if project != CATALOG_PROJECT else {*catalog})
    by_tail = [name for name in names if name.rpartition("/")[2] == ref.name]
    close = by_tail or near(str(ref), names)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there is {', '.join(names) or 'none'}"
    return Unresolved(f"no {word} {str(ref)!r} here; {hint}")
