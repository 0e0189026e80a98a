"""Who asks: API keys of members and ServiceAccounts, and tokens of running attempts.

What they may do is :mod:`nodus.server.api.principal`'s. An attempt's token opens what its own run needs and nothing
else; it ends with the attempt, as does a ServiceAccount's key that was bound to one.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from typing import TYPE_CHECKING

from starlette.requests import Request

from nodus.core import roles
from nodus.core.clock import rfc3339
from nodus.core.errors import Forbidden, StoreError, Unauthorized
from nodus.core.kinds import ATTEMPT, JOB, KINDS, MEMBER, SERVICE_ACCOUNT
from nodus.server.api.principal import CATALOG_PROJECT, CREATED_BY, READ_VERBS, AttemptIdentity, Principal
from nodus.server.services import Services
from nodus.server.signing import ATTEMPT_PREFIX
from nodus.server.store import keys, objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

__all__ = [
    "CATALOG_PROJECT",
    "CREATED_BY",
    "READ_VERBS",
    "AttemptIdentity",
    "Principal",
    "Standing",
    "authenticate",
    "principal_of",
    "user_of",
    "whoami",
]

_USE_INTERVAL_S = 60.0
_STANDING_S = 5.0
_LABEL_LENGTH = 63


async def authenticate(request: Request, services: Services) -> Principal:
    """Return who sends the request.

    Raises:
        Unauthorized: no credential, or one that is unknown, expired, revoked, or of a finished attempt.
        Forbidden: the key reaches no project (any more).
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized(
            "the request has no API key",
            fix="Log in with `nodus login`, or set NODUS_API_KEY; sent as `Authorization: Bearer KEY`.",
        )
    principal = await principal_of(token, services)
    request.scope["state"]["user"] = principal.name
    return principal


async def principal_of(token: str, services: Services) -> Principal:
    """Return whose credential a text is.

    Raises:
        Unauthorized: nobody's (any more).
        Forbidden: the key reaches no project (any more).
    """
    if token.startswith(ATTEMPT_PREFIX):
        return await _authenticate_attempt(token, services)
    return await _authenticate_key(token, services)


async def _authenticate_key(token: str, services: Services) -> Principal:
    candidates = services.signer.candidate_hashes(token)
    found = await services.store.read_memo(_find_key, tuple(candidate.digest for candidate in candidates))
    if found is None:
        raise Unauthorized(
            "the API key is not known here; it may have been revoked",
            fix="Log in again with `nodus login`, or check NODUS_API_KEY.",
        )
    obj, record, principal = found
    now = services.clock.now()
    if record.expired(now):
        raise Unauthorized(f"the API key {obj.name} has expired", fix="Create another with `nodus create apikey`.")
    stale = record.key_version != services.signer.current
    if stale or record.used_at is None or (now - record.used_at).total_seconds() > _USE_INTERVAL_S:
        with contextlib.suppress(StoreError):  # a full disk must not keep anybody from reading
            await services.store.write(keys.used, obj.uid)
            if stale:  # shown for the first time since the master key was rotated
                await services.store.write(keys.rehash, obj.uid, candidates[0].digest, candidates[0].key_version)
    return principal


def _find_key(conn: Connection, digests: tuple[str, ...]) -> tuple[Object, keys.KeyRecord, Principal] | None:
    """The key with one of these HMACs, and whose it is.

    The index compares HMACs, so the time it takes says nothing about a key.
    """
    found = keys.find(conn, digests)
    if found is None:
        return None
    obj, record = found
    owner = objects.find_by_uid(conn, record.owner)
    if obj.deleted_at is not None or owner is None or owner.deleted_at is not None:
        return None
    if not any(hmac.compare_digest(record.digest, digest) for digest in digests):
        return None
    attempt = obj.spec.get("attempt")
    if attempt is not None and not _is_going(objects.find(conn, ATTEMPT, owner.project, str(attempt)), obj):
        return None
    return obj, record, _principal(obj, record, owner)


def _is_going(attempt: Object | None, key: Object) -> bool:
    """Whether the attempt that a key was bound to still runs; another one of the same name does not count."""
    if attempt is None or attempt.deleted_at is not None or ATTEMPT.is_terminal(attempt.status.get("phase")):
        return False
    return attempt.uid in key.controllers


def _principal(obj: Object, record: keys.KeyRecord, owner: Object) -> Principal:
    scopes = tuple(obj.spec.get("scopes") or ())
    own = tuple(obj.spec.get("projects") or ())
    if owner.kind == SERVICE_ACCOUNT.name:
        bound = owner.spec.get("scopes", [roles.ANY])
        return Principal(
            kind="ServiceAccount", name=obj.name, uid=obj.uid, user=user_of(owner),
            scopes=tuple(roles.common_scopes(scopes, bound)), projects=(str(owner.project),),
            key_projects=(str(owner.project),), role=roles.SERVICE_ACCOUNT, expires_at=record.expires_at,
            owner=owner.uid,
        )  # fmt: skip
    return Principal(
        kind="APIKey", name=obj.name, uid=obj.uid, user=user_of(owner), scopes=scopes,
        projects=_reach(obj, owner), key_projects=own, role=str(owner.spec.get("role", "Developer")),
        owner=owner.uid, member=owner.name, email=owner.spec.get("email"), expires_at=record.expires_at,
    )  # fmt: skip


def _reach(key: Object, member: Object) -> tuple[str, ...]:
    """The projects that key and member both reach; empty means all.

    Raises:
        Forbidden: there is none left.
    """
    own, allowed = key.spec.get("projects") or [], member.spec.get("projects") or []
    if not own or not allowed:
        return tuple(own or allowed)
    both = tuple(project for project in own if project in allowed)
    if not both:
        raise Forbidden(
            f"the key {key.name} reaches {', '.join(own)} and its member {member.name} only {', '.join(allowed)}",
            fix="Create a key for a project that the member reaches.",
        )
    return both


def user_of(owner: Object) -> str:
    """The created-by label of what a Member or ServiceAccount makes."""
    if owner.kind == MEMBER.name:
        return f"usr_{owner.name}"
    text = f"sa_{owner.project}_{owner.name}"
    if len(text) <= _LABEL_LENGTH:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[: _LABEL_LENGTH - 9]}_{digest}"


# Attempts -----------------------------------------------------------------------------------------------------


async def _authenticate_attempt(token: str, services: Services) -> Principal:
    uid = services.signer.verify_attempt_token(token)
    identity = await services.store.read_memo(_attempt_identity, uid) if uid is not None else None
    if identity is None:
        raise Unauthorized(
            "the attempt's token is not valid (any more)",
            fix="It works while the attempt runs; outside use an API key.",
        )
    return Principal(
        kind="Attempt",
        name=identity.name,
        uid=identity.uid,
        user=f"attempt_{identity.name}"[:_LABEL_LENGTH],
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
    job = objects.find(conn, JOB, attempt.project, str(attempt.spec.get("job")))
    return AttemptIdentity(
        uid=uid,
        name=attempt.name,
        project=attempt.project,
        job=str(attempt.spec.get("job") or ""),
        sandbox=attempt.spec.get("sandbox"),
        epoch=int(attempt.spec.get("epoch", 1)),
        index=int(attempt.spec.get("slot", 0)),
        training_job=_training_job(attempt, job),
    )


def _training_job(attempt: Object, job: Object | None) -> str | None:
    """The TrainingJob that runs the Job: labels and other owners are the user's to write, that one is not."""
    for reference in job.owner_references if job is not None else ():
        if reference.get("kind") == "TrainingJob" and reference.get("controller") is True:
            return str(reference["name"])
    return None


# Long answers -------------------------------------------------------------------------------------------------


class Standing:
    """Whether the credential of a long answer (a watch, a followed log) still holds while it goes on.

    Args:
        request: what the answer answers.
        services: the server.
        principal: who asked for it, as they were then.
    """

    def __init__(self, request: Request, services: Services, principal: Principal) -> None:
        self._request, self._services, self._principal = request, services, principal
        self._checked_s = services.clock.monotonic()

    async def check(self) -> None:
        """Look again, at most once in five seconds.

        Raises:
            Unauthorized: the credential was revoked or has expired.
            Forbidden: what it may do changed, or it reaches no project any more.
        """
        now_s = self._services.clock.monotonic()
        if now_s - self._checked_s >= _STANDING_S:
            self._checked_s = now_s
            principal = await authenticate(self._request, self._services)
            if principal.rights != self._principal.rights:
                raise Forbidden(f"what {principal.name} may do was changed", fix="Ask again.")


# Identity -----------------------------------------------------------------------------------------------------


def whoami(principal: Principal, org_uid: str, org_name: str, projects: list[str]) -> dict[str, object]:
    """The body of ``GET /auth/whoami``."""
    plurals = [kind.plural for kind in KINDS.values()]
    found = {
        "kind": principal.kind,
        "user": principal.user,
        "name": principal.name,
        "member": principal.member,
        "email": principal.email,
        "org": org_uid,
        "orgName": org_name,
        "role": principal.role or principal.kind,
        "projects": projects,
        "scopes": roles.effective_scopes(principal.scopes, principal.role, plurals),
        "expirationTime": rfc3339(principal.expires_at) if principal.expires_at is not None else None,
    }
    return {key: value for key, value in found.items() if value is not None}
