"""Admission of Project and APIKey."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, cast

from nodus.core.clock import parse_rfc3339
from nodus.core.errors import Conflict
from nodus.core.ids import new_api_key
from nodus.core.kinds import API_KEY, KINDS, PROJECT
from nodus.core.kinds.organization import APIKeySpec, ProjectSpec
from nodus.server.kinds.base import Admission, Draft
from nodus.server.store import keys, objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store.objects import Object

RESERVED_PROJECTS = frozenset({"nodus"})
PERMANENT_PROJECTS = frozenset({"nodus", "default"})
_SCOPE = re.compile(r"\*|(\*|[a-z]+):(read|write|invoke)")
_PREFIX_CHARACTERS = 12


class ProjectAdmission(Admission[ProjectSpec]):
    """Projects start Active, and end only when they are empty."""

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: ProjectSpec) -> None:
        """Reserve the catalog's name."""
        if draft.creating:
            draft.status = {"phase": "Active"}
            if draft.name in RESERVED_PROJECTS and draft.actor is not None:
                draft.reject("metadata.name", f"{draft.name!r} is the catalog's; choose another name")

    def deleting(self, conn: Connection, services: Services, obj: Object) -> None:
        """Refuse while objects are in it: deleting a project must not be a way to lose a month of runs by a typo."""
        if obj.name in PERMANENT_PROJECTS:
            raise Conflict(f"project {obj.name} can't be deleted")
        for kind in KINDS.values():
            if kind.namespaced and objects.list_(conn, kind, obj.name, limit=1).items:
                raise Conflict(
                    f"project {obj.name} still has {kind.plural}",
                    fix=f"Delete them first: `nodus get {kind.plural} -p {obj.name}`.",
                )


class APIKeyAdmission(Admission[APIKeySpec]):
    """Makes the key itself; only its HMAC is stored, and only the reply that creates it shows it."""

    defaults: ClassVar = {"scopes": ["*"]}

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: APIKeySpec) -> None:
        """Check scopes, projects and expiry; nobody makes a key that may do more than their own."""
        for number, scope in enumerate(spec.scopes):
            if not _SCOPE.fullmatch(scope):
                draft.reject(
                    f"spec.scopes[{number}]", f"{scope!r} is not a scope; write it like trainingjobs:read or *"
                )
        for number, project in enumerate(spec.projects):
            if objects.find(conn, PROJECT, None, project) is None:
                draft.reject(f"spec.projects[{number}]", f"there is no project {project!r}")
        self._check_reach(draft, spec)
        expires = self._expires(services, draft, spec)
        draft.resolved["expires"] = expires
        if draft.creating:
            draft.status = {"phase": "Active"}

    def _check_reach(self, draft: Draft, spec: APIKeySpec) -> None:
        actor = draft.actor
        if actor is None or not draft.creating:
            return
        if "*" not in actor.scopes:
            for number, scope in enumerate(spec.scopes):
                if scope not in actor.scopes:
                    draft.reject(f"spec.scopes[{number}]", f"your own key lacks {scope!r}")
        if actor.projects:
            beyond = [project for project in spec.projects if project not in actor.projects]
            if beyond or not spec.projects:
                draft.reject("spec.projects", f"your own key reaches only {', '.join(actor.projects)}")

    @staticmethod
    def _expires(services: Services, draft: Draft, spec: APIKeySpec) -> datetime | None:
        if spec.expires is None:
            return None
        try:
            moment = parse_rfc3339(spec.expires)
        except ValueError as error:
            draft.reject("spec.expires", str(error))
            return None
        changed = draft.old is None or draft.old.spec.get("expires") != spec.expires
        if changed and moment <= services.clock.now():
            draft.reject("spec.expires", f"{spec.expires} is in the past")
        return moment

    def stored(self, conn: Connection, services: Services, draft: Draft, obj: Object) -> None:
        """Store the HMAC of a new key; move the expiry of an old one."""
        expires = cast("datetime | None", draft.resolved["expires"])
        if not draft.creating:
            if expires is not None:
                keys.expire(conn, obj.uid, expires)
            return
        key = new_api_key()
        hashed = services.signer.hash_api_key(key)
        keys.add(conn, obj.uid, hashed.digest, hashed.key_version, expires)
        objects.update_status(conn, obj.uid, {**obj.status, "prefix": key[:_PREFIX_CHARACTERS]})
        draft.reply_status["token"] = key


ADMISSIONS = (ProjectAdmission(PROJECT), APIKeyAdmission(API_KEY))
