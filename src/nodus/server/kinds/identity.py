"""Admission of Member, APIKey, ServiceAccount and SSHKey: nobody gives away more than they have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, cast

from nodus.core import roles
from nodus.core.clock import parse_rfc3339, rfc3339
from nodus.core.errors import Conflict, Forbidden, NotFound
from nodus.core.ids import generated_name, new_api_key
from nodus.core.kinds import API_KEY, ATTEMPT, MEMBER, PROJECT, SERVICE_ACCOUNT, SSH_KEY
from nodus.core.kinds.identity import APIKeySpec, MemberSpec, ServiceAccountSpec, SSHKeySpec
from nodus.core.validity import expiry_of, ssh_fingerprint
from nodus.server.kinds.base import Admission, Draft
from nodus.server.store import keys, objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.api.principal import Principal
    from nodus.server.services import Services
    from nodus.server.store.objects import Object

_EMAIL = re.compile(r"[^@\s<>\"']+@[^@\s<>\"']+\.[^@\s<>\"']+")
_PREFIX_CHARACTERS = 12
_NAME_CHARACTERS = 59  # its user, usr_NAME, has to fit a label
_KEPT_ON_UPDATE = ("scopes", "projects", "member", "serviceAccountName", "project", "attempt")


def check_projects(conn: Connection, draft: Draft, projects: list[str]) -> None:
    """Note a mistake for every project that isn't there or that whoever asks doesn't reach."""
    for number, project in enumerate(projects):
        if objects.find(conn, PROJECT, None, project) is None or not (draft.actor is None or draft.actor.sees(project)):
            draft.reject(f"spec.projects[{number}]", f"there is no project {project!r}")


def _check_scopes(draft: Draft, scopes: list[str], had: Iterable[str] = ()) -> None:
    """Note a mistake for every scope that is none, or that neither it had before nor whoever asks has."""
    given = [*had, *(draft.actor.scopes if draft.actor is not None else (roles.ANY,))]
    for number, scope in enumerate(scopes):
        path = f"spec.scopes[{number}]"
        if not roles.is_scope(scope):
            draft.reject(path, f"{scope[:60]!r} is not a scope; write it like trainingjobs:read or *")
        elif not roles.covers(given, scope):
            draft.reject(path, f"your own key lacks {scope!r}")


class MemberAdmission(Admission[MemberSpec]):
    """Members get a role that whoever makes them may give; one Owner always stays."""

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: MemberSpec) -> None:
        """Check role, reach and email."""
        if draft.creating:
            draft.status = {"phase": "Active"}
            if len(draft.name or "") > _NAME_CHARACTERS:
                draft.reject("metadata.name", f"a member's name has at most {_NAME_CHARACTERS} characters")
        check_projects(conn, draft, spec.projects)
        if spec.role == "Owner" and spec.projects:
            draft.reject("spec.projects", "an Owner reaches every project; leave it out, or give another role")
        if spec.email is not None and not _EMAIL.fullmatch(spec.email):
            draft.reject("spec.email", f"{spec.email[:80]!r} is not an address like ada@example.com")
        actor = draft.actor
        if actor is not None:
            if not roles.outranks(actor.role, spec.role):
                raise Forbidden("only an Owner makes an Owner", details={"role": actor.role})
            if actor.projects and not spec.projects:
                draft.reject("spec.projects", f"your own key reaches only {', '.join(actor.projects)}; name some")
        if draft.old is not None and draft.old.spec.get("role") == "Owner" and spec.role != "Owner":
            _keep_an_owner(conn, draft.old)

    def render(self, wire: dict[str, Any]) -> dict[str, Any]:
        """Say by which label the member's objects are found."""
        name, email = (wire.get("metadata") or {}).get("name"), (wire.get("spec") or {}).get("email")
        if not name:
            return wire
        user = {"id": f"usr_{name}", **({"email": email} if email else {})}
        return {**wire, "status": {**(wire.get("status") or {}), "user": user}}

    def authorize(self, conn: Connection, actor: Principal, obj: Object) -> None:
        """Leave Owners to Owners, and whoever reaches further than the key to other keys."""
        if not actor.within(obj.spec.get("projects", [])):
            raise Forbidden(
                f"member {obj.name} reaches more than the key {actor.name}, which reaches {', '.join(actor.projects)}",
                fix="Use a key that reaches every project.",
            )
        if not roles.outranks(actor.role, str(obj.spec.get("role", "Developer"))):
            raise Forbidden(f"member {obj.name} is an Owner; only an Owner changes that", details={"role": actor.role})

    def deleting(self, conn: Connection, services: Services, obj: Object) -> None:
        """Keep an Owner."""
        if obj.spec.get("role") == "Owner":
            _keep_an_owner(conn, obj)


def _keep_an_owner(conn: Connection, member: Object) -> None:
    owners = objects.list_(conn, MEMBER, None, fields={"spec.role": "Owner"}).items
    if all(owner.uid == member.uid or owner.deleted_at is not None for owner in owners):
        raise Conflict(f"{member.name} is the last Owner", fix="Make another member an Owner first.")


class APIKeyAdmission(Admission[APIKeySpec]):
    """Makes the key itself; only its HMAC is stored, and only the reply that creates it shows it."""

    def prepare(self, draft: Draft) -> APIKeySpec | None:
        """Decode; what admission filled in when the key was made stays as it is."""
        if draft.old is not None and isinstance(draft.spec, dict):
            for name in _KEPT_ON_UPDATE:
                if name in draft.old.spec:
                    draft.spec.setdefault(name, draft.old.spec[name])
        return super().prepare(draft)

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: APIKeySpec) -> None:
        """Check owner, scopes, projects and expiry; nobody makes a key that may do more than their own."""
        if draft.creating:
            draft.status = {"phase": "Active"}
            if spec.service_account_name is not None:
                self._for_account(conn, draft, spec)
            else:
                self._for_member(conn, draft, spec)
            _check_scopes(draft, list(draft.spec.get("scopes") or []))
        expires = self._expires(services, draft, spec)
        draft.resolved["expires"] = expires
        if draft.creating and expires is not None:
            draft.status["expirationTime"] = rfc3339(expires)
        if draft.creating and not draft.dry_run:
            draft.resolved["key"] = new_api_key()
            draft.status["prefix"] = draft.resolved["key"][:_PREFIX_CHARACTERS]

    def _for_member(self, conn: Connection, draft: Draft, spec: APIKeySpec) -> None:
        actor = draft.actor
        for field, value in (("project", spec.project), ("attempt", spec.attempt)):
            if value is not None:
                draft.reject(f"spec.{field}", "goes with spec.serviceAccountName; a member's key has spec.projects")
        if "scopes" not in spec.model_fields_set:
            draft.spec["scopes"] = list(actor.scopes) if actor is not None else [roles.ANY]
        projects = list(spec.projects)
        if actor is not None and actor.key_projects and "projects" not in spec.model_fields_set:
            projects = draft.spec["projects"] = list(actor.key_projects)
        name = spec.member or (actor.member if actor is not None else None)
        owner = objects.find(conn, MEMBER, None, name) if name else None
        if owner is None:
            draft.reject("spec.member", f"there is no member {name!r}" if name else "required: whose key it is")
            return
        draft.spec["member"], draft.owner = owner.name, owner
        check_projects(conn, draft, projects)
        allowed = owner.spec.get("projects") or []
        beyond = [project for project in projects if allowed and project not in allowed]
        if beyond:
            draft.reject("spec.projects", f"member {owner.name} reaches only {', '.join(allowed)}")
        if actor is None:
            return
        if not _decides_over(actor, owner):
            raise Forbidden(f"only an Owner, or for others an Admin, makes keys of {owner.name}")
        if actor.projects and not projects and (actor.key_projects or owner.name != actor.member):
            draft.reject("spec.projects", f"your own key reaches only {', '.join(actor.projects)}; name some")

    def _for_account(self, conn: Connection, draft: Draft, spec: APIKeySpec) -> None:
        actor, project = draft.actor, spec.project
        if spec.member is not None:
            draft.reject("spec.member", "a key belongs to a member or to a ServiceAccount, not to both")
        if project is None:
            draft.reject("spec.project", "required: the ServiceAccount's project", "FieldValueRequired")
            return
        if spec.projects not in ([], [project]):
            draft.reject("spec.projects", f"a ServiceAccount's key sees its own project alone, {project}")
        if actor is not None:
            if not actor.sees(project):
                draft.reject("spec.project", f"there is no project {project!r}")
                return
            actor.require_scope(SERVICE_ACCOUNT.plural, "write")
        account = objects.find(conn, SERVICE_ACCOUNT, project, str(spec.service_account_name))
        if account is None:
            draft.reject(
                "spec.serviceAccountName", f"project {project} has no ServiceAccount {spec.service_account_name!r}"
            )
            return
        bound = account.spec.get("scopes", [roles.ANY])
        if "scopes" not in spec.model_fields_set:
            own = actor.scopes if actor is not None else [roles.ANY]
            draft.spec["scopes"] = roles.common_scopes(bound, own)
        for number, scope in enumerate(spec.scopes):
            if not roles.covers(bound, scope):
                draft.reject(f"spec.scopes[{number}]", f"ServiceAccount {account.name} lacks {scope!r}")
        draft.resolved["owner"], draft.owner = account.uid, account
        if spec.attempt is not None:
            self._bind(conn, draft, project, spec.attempt)

    @staticmethod
    def _bind(conn: Connection, draft: Draft, project: str, name: str) -> None:
        attempt = objects.find(conn, ATTEMPT, project, name)
        if attempt is None or ATTEMPT.is_terminal(attempt.status.get("phase")):
            draft.reject("spec.attempt", f"project {project} has no attempt {name!r} that is going on")
        else:
            draft.owner = attempt

    @staticmethod
    def _expires(services: Services, draft: Draft, spec: APIKeySpec) -> datetime | None:
        """When the key ends. Only a changed expiry is looked at: a duration counts from the change."""
        if spec.expires is not None and spec.expiration_time is not None:
            draft.reject("spec.expirationTime", "give spec.expires or spec.expirationTime, not both")
        text = spec.expires or spec.expiration_time
        old = draft.old
        if old is not None and text == (old.spec.get("expires") or old.spec.get("expirationTime")):
            known = old.status.get("expirationTime")
            return parse_rfc3339(known) if known else None
        if old is not None and old.status.get("phase") == "Expired":
            raise Conflict(f"the API key {old.name} has expired", fix="Create another with `nodus create apikey`.")
        if text is None:
            return None
        moment = expiry_of(text, services.clock.now())
        if moment <= services.clock.now():
            draft.reject("spec.expires" if spec.expires else "spec.expirationTime", f"{text} is in the past")
        return moment

    def authorize(self, conn: Connection, actor: Principal, obj: Object) -> None:
        """Leave Owners' keys to Owners."""
        if obj.uid != actor.uid:
            _leave_to_owners(conn, actor, obj)

    def stored(self, conn: Connection, services: Services, draft: Draft, obj: Object) -> None:
        """Store the HMAC of a new key; move the expiry of an old one."""
        expires = cast("datetime | None", draft.resolved["expires"])
        if not draft.creating:
            keys.expire(conn, obj.uid, expires)
            status = {key: value for key, value in obj.status.items() if key != "expirationTime"}
            status |= {"expirationTime": rfc3339(expires)} if expires is not None else {}
            objects.update_status(conn, obj.uid, status)
            return
        assert draft.owner is not None
        key = str(draft.resolved["key"])
        hashed = services.signer.hash_api_key(key)
        owner = str(draft.resolved.get("owner") or draft.owner.uid)
        keys.add(conn, obj.uid, hashed.digest, hashed.key_version, owner, expires)
        draft.reply_status["token"] = key


def make_key(
    conn: Connection,
    services: Services,
    name: str,
    spec: Mapping[str, Any],
    *,
    labels: Mapping[str, str] | None = None,
    actor: Principal | None = None,
) -> tuple[Object, str]:
    """Create an APIKey in this transaction and return it with the key itself.

    Args:
        conn: a write transaction.
        services: the server.
        name: of the object; one that ends in a dash gets a random ending.
        spec: as a client would send it.
        labels: of the object.
        actor: on whose behalf; None for the server's own.

    Raises:
        Invalid: the spec has mistakes.
        Forbidden: the actor may not give that away.
    """
    while name.endswith("-") or objects.find(conn, API_KEY, None, name) is not None:
        final = generated_name(name)
        if objects.find(conn, API_KEY, None, final) is None:
            name = final
            break
    draft = Draft(
        kind=API_KEY, project=None, name=name, generate_name=None, labels=dict(labels or {}), annotations={},
        finalizers=[], spec=dict(spec), model=None, user="", actor=actor,
    )  # fmt: skip
    admission = APIKeyAdmission(API_KEY)
    model = admission.prepare(draft)
    if model is not None:
        admission.admit(conn, services, draft, model)
    draft.raise_causes()
    obj = objects.create(
        conn, API_KEY, None, name, draft.spec, labels=draft.labels, status=draft.status, owner=draft.owner
    )
    admission.stored(conn, services, draft, obj)
    return obj, str(draft.reply_status["token"])


def _decides_over(actor: Principal, member: Object) -> bool:
    """Whether somebody may add keys of a member: their own, else as a manager whom the member does not outrank."""
    return member.name == actor.member or roles.outranks(actor.role, str(member.spec.get("role", "Developer")))


def _leave_to_owners(conn: Connection, actor: Principal, key: Object) -> None:
    """Refuse a change of another's key where that other is an Owner, and whoever asks is none."""
    owner = objects.find(conn, MEMBER, None, str(key.spec.get("member")))
    role = str(owner.spec.get("role")) if owner is not None else ""
    if key.spec.get("member") != actor.member and not roles.outranks(actor.role, role):
        raise Forbidden(f"the key {key.name} is an Owner's; only an Owner changes it")


class ServiceAccountAdmission(Admission[ServiceAccountSpec]):
    """A program's account; it never manages people, keys or projects."""

    defaults: ClassVar = {"scopes": [roles.ANY]}

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: ServiceAccountSpec) -> None:
        """Check its scopes."""
        if draft.creating:
            draft.status = {"phase": "Active"}
        _check_scopes(draft, spec.scopes, had=(draft.old.spec if draft.old is not None else {}).get("scopes", ()))
        for number, scope in enumerate(spec.scopes):
            plural, _, access = scope.partition(":")
            if not access or plural == roles.ANY or not roles.is_scope(scope):
                continue
            if not roles.role_allows(roles.SERVICE_ACCOUNT, plural, cast("roles.Access", access)):
                draft.reject(f"spec.scopes[{number}]", f"a ServiceAccount never gets {scope!r}")


class SSHKeyAdmission(Admission[SSHKeySpec]):
    """A member's public key; a private one is refused without being quoted."""

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: SSHKeySpec) -> None:
        """Check the key and whose it is."""
        try:
            fingerprint = ssh_fingerprint(spec.public_key)
        except ValueError as error:
            draft.reject("spec.publicKey", str(error))
            return
        if not draft.creating:
            return
        draft.status = {"phase": "Active", "fingerprint": fingerprint}
        actor = draft.actor
        name = spec.member or (actor.member if actor is not None else None)
        owner = objects.find(conn, MEMBER, None, name) if name else None
        if owner is None:
            draft.reject("spec.member", f"there is no member {name!r}" if name else "required: whose key it is")
            return
        if actor is not None and not _decides_over(actor, owner):
            raise Forbidden(f"only an Owner, or for others an Admin, adds keys of {owner.name}")
        draft.spec["member"], draft.owner = owner.name, owner

    def authorize(self, conn: Connection, actor: Principal, obj: Object) -> None:
        """Leave Owners' keys to Owners."""
        _leave_to_owners(conn, actor, obj)

    def prepare(self, draft: Draft) -> SSHKeySpec | None:
        """Decode; whose it is stays as it is."""
        if draft.old is not None and isinstance(draft.spec, dict):
            draft.spec.setdefault("member", draft.old.spec.get("member"))
        return super().prepare(draft)


def member_of(conn: Connection, uid: str | None) -> Object:
    """Return a member by uid.

    Raises:
        NotFound: there is none (any more).
    """
    found = objects.find_by_uid(conn, uid) if uid else None
    if found is None or found.kind != MEMBER.name or found.deleted_at is not None:
        raise NotFound("the member is gone")
    return found


ADMISSIONS = (
    MemberAdmission(MEMBER),
    APIKeyAdmission(API_KEY),
    ServiceAccountAdmission(SERVICE_ACCOUNT),
    SSHKeyAdmission(SSH_KEY),
)
