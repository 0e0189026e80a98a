"""Admission of Organization and Project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodus.core.errors import Conflict, Forbidden
from nodus.core.kinds import API_KEY, KINDS, MEMBER, ORGANIZATION, PROJECT
from nodus.core.kinds.organization import OrganizationSpec, ProjectSpec
from nodus.server.kinds.base import Admission, Draft
from nodus.server.store import objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.api.principal import Principal
    from nodus.server.services import Services
    from nodus.server.store.objects import Object

RESERVED_PROJECTS = frozenset({"nodus"})
PERMANENT_PROJECTS = frozenset({"nodus", "default"})
_MOST_NAMED = 5


class ProjectAdmission(Admission[ProjectSpec]):
    """Projects start Active, and end only when they are empty and nothing names them."""

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: ProjectSpec) -> None:
        """Reserve the catalog's name."""
        if not draft.creating:
            return
        draft.status = {"phase": "Active"}
        if draft.name in RESERVED_PROJECTS and draft.actor is not None:
            draft.reject("metadata.name", f"{draft.name!r} is the catalog's; choose another name")
        if draft.actor is not None and draft.actor.projects:
            raise Forbidden(
                f"the key {draft.actor.name} reaches only {', '.join(draft.actor.projects)}",
                fix="Create projects with a key that reaches all of them.",
            )

    def deleting(self, conn: Connection, services: Services, obj: Object) -> None:
        """Refuse while objects are in it: deleting a project must not be a way to lose a month of runs by a typo.

        Keys and members that name it hold it too: whoever makes a project of that name later must not find them in it.
        """
        if obj.name in PERMANENT_PROJECTS:
            raise Conflict(f"project {obj.name} can't be deleted")
        for kind in KINDS.values():
            if kind.namespaced and objects.list_(conn, kind, obj.name, limit=1).items:
                raise Conflict(
                    f"project {obj.name} still has {kind.plural}",
                    fix=f"Delete them first: `nodus get {kind.plural} -p {obj.name}`.",
                )
        for kind in (API_KEY, MEMBER):
            naming = [o.name for o in objects.list_(conn, kind, None).items if obj.name in o.spec.get("projects", [])]
            if naming:
                shown = ", ".join(naming[:_MOST_NAMED]) + (", ..." if len(naming) > _MOST_NAMED else "")
                raise Conflict(
                    f"project {obj.name} is named by {kind.plural} {shown}",
                    fix="Delete them first, or take the project out of them.",
                )


class OrganizationAdmission(Admission[OrganizationSpec]):
    """The organization is there from the first start; its name for people can change."""

    def authorize(self, conn: Connection, actor: Principal, obj: Object) -> None:
        """Leave it to keys that reach all of it."""
        if actor.projects:
            raise Forbidden(
                f"the key {actor.name} reaches only {', '.join(actor.projects)}",
                fix="Change the organization with a key that reaches all projects.",
            )


ADMISSIONS = (ProjectAdmission(PROJECT), OrganizationAdmission(ORGANIZATION))
