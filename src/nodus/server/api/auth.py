"""Who asks, and whether they may: API keys of people and programs, tokens of running attempts.

An API key's scopes are ``<plural>:read``, ``<plural>:write``, ``*:read``, ``*:write`` or ``*``, in the projects it
names (all when it names none).
An attempt's token opens what its own run needs and nothing else; it ends with the attempt.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from starlette.requests import Request

from nodus.core.errors import Forbidden, StoreError, Unauthorized
from nodus.core.kinds import ATTEMPT, JOB, Kind
from nodus.server.services import Services
from nodus.server.signing import ATTEMPT_PREFIX
from nodus.server.store import keys, objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

CATALOG_PROJECT = "nodus"
CREATED_BY = "nodus.dev/created-by"
READ_VERBS = frozenset({"get", "list", "watch"})
_USE_INTERVAL_S = 60.0
# What an attempt's token may do to the TrainingJob it belongs to: verb, subresource.
_ATTEMPT_CALLS = frozenset(
    {("create", "tasks"), ("create", "gradings"), ("create", "taskevents"), ("get", None), ("get", "taskevents")}
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


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request speaks for."""

    kind: Literal["APIKey", "Attempt"]
    name: str
    """Name of the APIKey or Attempt."""
    uid: str
    """Uid of the APIKey or Attempt; idempotency keys are scoped to it."""
    user: str
    """Value of the created-by label of what it creates."""
    scopes: tuple[str, ...]
    projects: tuple[str, ...]
    """Projects it sees besides the catalog; empty means all."""
    attempt: AttemptIdentity | None = None

    def sees(self, project: str) -> bool:
        """Whether the project is in its reach, the catalog included."""
        return not self.projects or project in self.projects or project == CATALOG_PROJECT

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
        access = "read" if verb in READ_VERBS else "write"
        scope = f"{kind.plural}:{access}"
        if not {"*", f"*:{access}", scope} & set(self.scopes):
            raise Forbidden(
                f"the key {self.name} lacks the scope {scope}",
                fix=f"Use a key with the scope {scope}.",
                details={"missingScope": scope},
            )
        if access == "write" and project == CATALOG_PROJECT:
            raise Forbidden("project nodus is the catalog; it can't be changed", fix="Use a project of your own.")

    def require_project(self, access: Literal["read", "write"], project: str) -> None:
        """Let a call that belongs to no one kind (blobs) pass, or refuse it.

        Raises:
            Forbidden: the key doesn't reach the project, or has no scope of that access at all.
        """
        scopes = [scope for scope in self.scopes if scope == "*" or scope.endswith(f":{access}")]
        if self.attempt is not None or not self.sees(project) or not scopes:
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


async def authenticate(request: Request, services: Services) -> Principal:
    """Return who sends the request.

    Raises:
        Unauthorized: no credential, or one that is unknown, expired, revoked, or of a finished attempt.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized(
            "the request has no API key",
            fix="Log in with `nodus login`, or set NODUS_API_KEY; sent as `Authorization: Bearer KEY`.",
        )
    if token.startswith(ATTEMPT_PREFIX):
        principal = await _authenticate_attempt(token, services)
    else:
        principal = await _authenticate_key(token, services)
    request.scope["state"]["user"] = principal.name
    return principal


async def _authenticate_key(token: str, services: Services) -> Principal:
    candidates = [found.digest for found in services.signer.candidate_hashes(token)]
    found = await services.store.read(_find_key, candidates)
    if found is None:
        raise Unauthorized(
            "the API key is not known here", fix="Log in again with `nodus login`, or check NODUS_API_KEY."
        )
    obj, record = found
    now = services.clock.now()
    if record.expired(now):
        raise Unauthorized(f"the API key {obj.name} has expired", fix="Create another with `nodus create apikey`.")
    if record.used_at is None or (now - record.used_at).total_seconds() > _USE_INTERVAL_S:
        with contextlib.suppress(StoreError):  # a full disk must not keep anybody from reading
            await services.store.write(keys.used, obj.uid)
    return Principal(
        kind="APIKey",
        name=obj.name,
        uid=obj.uid,
        user=obj.labels.get(CREATED_BY) or f"usr_{obj.name}",
        scopes=tuple(obj.spec.get("scopes", ["*"])),
        projects=tuple(obj.spec.get("projects", [])),
    )


def _find_key(conn: Connection, digests: list[str]) -> tuple[Object, keys.KeyRecord] | None:
    """The key with one of these HMACs. The index compares HMACs, so the time it takes says nothing about a key."""
    record = keys.find(conn, digests)
    obj = objects.find_by_uid(conn, record.uid) if record is not None else None
    if record is None or obj is None or obj.deleted_at is not None:
        return None
    return obj, record


async def _authenticate_attempt(token: str, services: Services) -> Principal:
    uid = services.signer.verify_attempt_token(token)
    identity = await services.store.read(_attempt_identity, uid) if uid is not None else None
    if identity is None:
        raise Unauthorized(
            "the attempt's token is not valid (any more)",
            fix="It works while the attempt runs; outside use an API key.",
        )
    return Principal(
        kind="Attempt",
        name=identity.name,
        uid=identity.uid,
        user=f"attempt_{identity.name}"[:63],
        scopes=(),
        projects=(identity.project,),
        attempt=identity,
    )


def _attempt_identity(conn: Connection, uid: str) -> AttemptIdentity | None:
    attempt = objects.find_by_uid(conn, uid)
    if attempt is None or attempt.kind != ATTEMPT.name or attempt.project is None or attempt.deleted_at is not None:
        return None
    if ATTEMPT.is_terminal(attempt.status.get("phase")):
        return None
    job = objects.find(conn, JOB, attempt.project, str(attempt.spec["job"]))
    return AttemptIdentity(
        uid=uid,
        name=attempt.name,
        project=attempt.project,
        job=str(attempt.spec["job"]),
        epoch=int(attempt.spec.get("epoch", 1)),
        index=int(attempt.spec.get("slot", 0)),
        training_job=_training_job(attempt, job),
    )


def _training_job(attempt: Object, job: Object | None) -> str | None:
    """The TrainingJob by owner reference of the Job: a label is the user's to write, an owner is not."""
    for reference in job.owner_references if job is not None else ():
        if reference.get("kind") == "TrainingJob":
            return str(reference["name"])
    return None


def whoami(principal: Principal, org_uid: str, org_name: str, projects: list[str]) -> dict[str, object]:
    """The body of ``GET /auth/whoami``."""
    return {
        "kind": principal.kind,
        "user": principal.user,
        "name": principal.name,
        "org": org_uid,
        "orgName": org_name,
        "role": "Owner" if "*" in principal.scopes else "Member",
        "projects": projects,
        "scopes": list(principal.scopes),
    }
