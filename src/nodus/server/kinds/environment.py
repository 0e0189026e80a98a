"""Admission of Environment: versions that never change, and exactly one packaging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from nodus.core.errors import Cause, FieldImmutable
from nodus.core.kinds import ENVIRONMENT
from nodus.core.kinds.environment import EnvironmentSpec
from nodus.server.kinds import imagepackages, pippackages
from nodus.server.kinds.base import Admission, Draft
from nodus.server.store import versions

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store.objects import Object

_PACKAGINGS = ("image", "pip", "source", "catalog")
_FIXED = ("package", "graders")
"""Spec fields that can't change under the same version."""


class EnvironmentAdmission(Admission[EnvironmentSpec]):
    """Keeps every version resolvable and refuses to change what a version means."""

    defaults: ClassVar = {"modes": ["Train", "Evaluate"]}

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: EnvironmentSpec) -> None:
        """Check the packaging and that a known version stays what it was."""
        given = [name for name in _PACKAGINGS if getattr(spec.package, name) is not None]
        if len(given) != 1:
            shown = "none" if not given else ", ".join(given)
            draft.reject("spec.package", f"exactly one of image, pip, source is needed; this has {shown}")
        if "catalog" in given and draft.actor is not None:
            draft.reject("spec.package.catalog", "only the catalog's own environments can use it")
        for path, message in imagepackages.problems(spec):
            draft.reject(path, message)
        if spec.package.pip is not None:
            for path, message in pippackages.problems(spec.package, services.settings.source_hosts):
                draft.reject(f"spec.package.{path}", message)
        source = spec.package.source
        if source is not None:
            draft.check_blob(conn, services, "spec.package.source.blob", source.blob)
        if not spec.modes:
            draft.reject("spec.modes", "at least one of Train, Evaluate is needed")
        if draft.creating:
            draft.status = {"phase": "Pending"}
        elif draft.old is not None:
            _check_version(conn, draft, draft.old)

    def stored(self, conn: Connection, services: Services, draft: Draft, obj: Object) -> None:
        """Keep the version."""
        versions.put(conn, obj.uid, str(obj.spec["version"]), obj.spec)


def _check_version(conn: Connection, draft: Draft, old: Object) -> None:
    version = str(draft.spec.get("version"))
    if old.spec.get("version") != version:
        known = versions.find(conn, old.uid, version)
    else:
        known = old.spec if _is_fixed(old, version) else None
    if known is None:
        return
    diff: dict[str, Any] = {
        f"spec.{name}": {"old": known.get(name), "new": draft.spec.get(name)}
        for name in _FIXED
        if (known.get(name) or None) != (draft.spec.get(name) or None)
    }
    if diff:
        names = " and ".join(name.removeprefix("spec.") for name in diff)
        raise FieldImmutable(
            f"version {version} of {old.name} is published; its {names} can't change",
            fix="Publish the change under another version.",
            details={"diff": diff, "kind": ENVIRONMENT.plural},
            causes=[Cause(path, "FieldValueForbidden", f"can't change under version {version}") for path in diff],
        )


def _is_fixed(old: Object, version: str) -> bool:
    """Tell whether a version may no longer change: all but one whose check failed and that never was Ready."""
    return old.status.get("phase") != "Failed" or old.status.get("published") == version


ADMISSIONS = (EnvironmentAdmission(ENVIRONMENT),)
