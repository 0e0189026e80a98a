"""Who a request speaks for, and what they may do: scopes of the key, role of the member, projects of both.

Two things are decided here for every call: whether the credential may do such a thing at all
(:meth:`Principal.require`), and which objects it may know of (:meth:`Principal.sees_object`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nodus.core import roles
from nodus.core.errors import Forbidden
from nodus.core.kinds import API_KEY, AUDIT_EVENT, BUDGET, EVENT, KINDS, MEMBER, PROJECT, SSH_KEY, Kind
from nodus.core.selectors import Requirement

if TYPE_CHECKING:
    from datetime import datetime

    from nodus.server.store.objects import Object

CATALOG_PROJECT = "nodus"
CREATED_BY = "nodus.dev/created-by"
READ_VERBS = frozenset({"get", "list", "watch"})
# What an attempt's token may do to the TrainingJob it belongs to: verb, subresource.
_ATTEMPT_CALLS = frozenset(
    {
        *(("create", name) for name in ("tasks", "gradings", "steps", "taskevents")),
        ("get", None),
        ("get", "taskevents"),
    }
)


@dataclass(frozen=True, slots=True)
class AttemptIdentity:
    """The attempt that a token belongs to."""

    uid: str
    name: str
    project: str
    job: str
    epoch: int
    index: int
    training_job: str | None
    """Name of the TrainingJob the Job was compiled from, if any."""
    sandbox: str | None = None
    """Name of the Sandbox that it is a run of, if it is one."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request speaks for."""

    kind: Literal["APIKey", "ServiceAccount", "Attempt"]
    name: str
    """Name of the APIKey or Attempt."""
    uid: str
    """Uid of the APIKey or Attempt; idempotency keys are scoped to it."""
    user: str
    """Value of the created-by label of what it creates: ``usr_`` and the member, ``sa_`` and the ServiceAccount."""
    scopes: tuple[str, ...]
    """Of the key; the role bounds them further."""
    projects: tuple[str, ...]
    """Projects it sees besides the catalog: what key and member both reach; empty means all."""
    role: str = ""
    """Of the member, or ``ServiceAccount``; empty for attempts."""
    owner: str = ""
    """Uid of the Member or ServiceAccount whose key it is."""
    member: str | None = None
    """Name of the member whose key it is."""
    email: str | None = None
    """Of the member."""
    key_projects: tuple[str, ...] = ()
    """Projects that the key itself names; empty where only its member bounds it."""
    expires_at: datetime | None = None
    """When the key stops working."""
    attempt: AttemptIdentity | None = None

    @property
    def manages(self) -> bool:
        """Whether it is an Owner's or Admin's."""
        return self.role in roles.MANAGERS

    def sees(self, project: str) -> bool:
        """Whether the project is in its reach, the catalog included."""
        return not self.projects or project in self.projects or project == CATALOG_PROJECT

    def may(self, plural: str, access: roles.Access) -> bool:
        """Whether key and role both allow an access to a kind."""
        return roles.allows(self.scopes, plural, access) and roles.role_allows(self.role, plural, access)

    def require(
        self, verb: str, kind: Kind, project: str | None, name: str | None = None, sub: str | None = None
    ) -> None:
        """Let the call pass or refuse it.

        Args:
            verb: ``get``, ``list``, ``watch``, ``create``, ``update``, ``patch`` or ``delete``.
            kind: kind of the object.
            project: its project; ``None`` for org kinds and for lists over all projects.
            name: name of the object, where there is one.
            sub: subresource, where there is one.

        Raises:
            Forbidden: with the missing scope or the reason.
        """
        if self.attempt is not None:
            self._require_own(verb, kind, project, name, sub)
            return
        if project is not None and not self.sees(project):
            raise Forbidden(
                f"the key {self.name} does not reach project {project!r}",
                fix="Use a key of that project.",
                details={"project": project},
            )
        if verb == "delete" and kind is API_KEY and name == self.name:
            return  # every key may end itself
        self.require_scope(kind.plural, "read" if verb in READ_VERBS else "write")
        if verb not in READ_VERBS and project == CATALOG_PROJECT:
            raise Forbidden("project nodus is the catalog; it can't be changed", fix="Use a project of your own.")

    def require_scope(self, plural: str, access: roles.Access) -> None:
        """Let a call pass that needs a scope, or refuse it.

        Raises:
            Forbidden: the key lacks the scope, or the role doesn't allow it.
        """
        scope = f"{plural}:{access}"
        if self.attempt is not None or not roles.allows(self.scopes, plural, access):
            raise Forbidden(
                f"the key {self.name} lacks the scope {scope}",
                fix=f"Use a key with the scope {scope}.",
                details={"missingScope": scope},
            )
        if not roles.role_allows(self.role, plural, access):
            who = "a ServiceAccount" if self.role == roles.SERVICE_ACCOUNT else f"the role {self.role}"
            raise Forbidden(
                f"{who} does not include {scope}",
                fix="Ask an Owner or Admin to do it, or to change your role.",
                details={"missingScope": scope, "role": self.role},
            )

    def require_project(self, access: Literal["read", "write"], project: str) -> None:
        """Let a call that belongs to no one kind (blobs) pass, or refuse it.

        Raises:
            Forbidden: the key doesn't reach the project, or may access no kind of object in projects that way.
        """
        kinds = (kind.plural for kind in KINDS.values() if kind.namespaced)
        if self.attempt is not None or not self.sees(project) or not any(self.may(name, access) for name in kinds):
            raise Forbidden(
                f"{self.name} may not {access} blobs of project {project!r}",
                fix=f"Use a key of that project with a scope that may {access}.",
                details={"missingScope": f"volumes:{access}"},
            )
        if access == "write" and project == CATALOG_PROJECT:
            raise Forbidden("project nodus is the catalog; it can't be changed", fix="Use a project of your own.")

    def _require_own(self, verb: str, kind: Kind, project: str | None, name: str | None, sub: str | None) -> None:
        attempt = self.attempt
        assert attempt is not None
        if project == attempt.project:
            if kind.name == "TrainingJob" and name == attempt.training_job and (verb, sub) in _ATTEMPT_CALLS:
                return
            if kind.name == "Job" and name == attempt.job and verb == "get" and sub is None:
                return
            if kind.name == "Attempt" and name == attempt.name and verb == "get" and sub is None:
                return
        raise Forbidden(
            f"the attempt {attempt.name} may only call for its own run",
            details={"missingScope": f"{kind.plural}:{verb}"},
        )

    @property
    def rights(self) -> tuple[object, ...]:
        """All that bounds what it may do and see."""
        return self.scopes, self.role, self.projects, self.key_projects

    def sees_object(self, kind: Kind, obj: Object) -> bool:
        """Whether it may know of an object at all; what it may not know of is reported as not found."""
        if kind.namespaced:
            return obj.project is None or self.sees(obj.project)
        if kind is PROJECT:
            return self.sees(obj.name)
        if kind is EVENT:
            return self._sees_event(obj.spec.get("involvedObject", {}))
        if kind is BUDGET:
            project = (obj.spec.get("scope") or {}).get("project")
            return self.within([project] if project else [])
        if kind is API_KEY:
            return obj.uid == self.uid or (self._owns(obj) and self._covers_key(obj.spec))
        if kind is SSH_KEY:
            return self._owns(obj) and (not self.projects or obj.spec.get("member") == self.member)
        if kind is MEMBER:
            return obj.name == self.member or (self.manages and self.within(obj.spec.get("projects", [])))
        return True

    def audit_terms(self) -> tuple[Requirement, ...]:
        """Which AuditEvents it may read: a manager those of the projects in reach, others what they did themselves."""
        terms = []
        if not self.manages:
            terms.append(Requirement("spec.user", "=", (self.user,)))
        if self.projects:
            terms.append(Requirement("spec.object.namespace", "in", self.projects))
        return tuple(terms)

    def _owns(self, obj: Object) -> bool:
        return self.manages or (self.member is not None and obj.spec.get("member") == self.member)

    def _covers_key(self, spec: dict[str, Any]) -> bool:
        """Whether an APIKey reaches no further than this; their own ones are bounded by the same member."""
        if self.member is not None and spec.get("member") == self.member and not self.key_projects:
            return True
        return self.within(key_reach(spec))

    def within(self, projects: list[str]) -> bool:
        """Whether something that reaches these projects (all when empty) reaches no further than this."""
        return not self.projects or (bool(projects) and all(map(self.sees, projects)))

    def _sees_event(self, involved: dict[str, Any]) -> bool:
        namespace = involved.get("namespace")
        if namespace is not None:
            return self.sees(str(namespace))
        # Events about objects of the organization are for those who may see all of it.
        return not self.projects and (self.manages or involved.get("kind") not in _PERSONAL_KINDS)


_PERSONAL_KINDS = frozenset(kind.name for kind in (API_KEY, MEMBER, SSH_KEY, AUDIT_EVENT))


def key_reach(spec: dict[str, Any]) -> list[str]:
    """The projects an APIKey names: its own list, or the project of its ServiceAccount; empty means all."""
    if spec.get("serviceAccountName"):
        return [str(spec.get("project"))]
    return list(spec.get("projects") or [])
