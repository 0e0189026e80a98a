"""Member, APIKey, ServiceAccount, SSHKey and AuditEvent: who may do what, and who did it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictStr

from nodus.core.kinds.base import AGE, NAME, READ_VERBS, Column, Kind, Model, joined
from nodus.core.roles import Role
from nodus.core.validity import check_expiry, check_timestamp

Expiry = Annotated[StrictStr, AfterValidator(check_expiry), Field(examples=["720h", "2026-12-31"])]
"""A duration from creation (``720h``, ``90d``), a date (through its end, UTC) or an RFC 3339 time."""
Timestamp = Annotated[StrictStr, AfterValidator(check_timestamp), Field(examples=["2026-12-31T00:00:00Z"])]
"""An RFC 3339 time."""

_PHASE = Column("Phase", "status.phase", description="State")


def _all_when_empty(path: str) -> Any:
    """A column of a list whose emptiness means everything."""
    show = joined(path)

    def text(wire_object: Mapping[str, Any], now: datetime) -> str | None:
        return show(wire_object, now) or "all"

    return text


class MemberSpec(Model):
    """A person of the organization."""

    role: Role = "Developer"
    """Owner may do everything; Admin all but change Owners and the organization; Developer works in projects; Viewer
    reads."""
    email: str | None = Field(default=None, max_length=254)
    """For people; nothing is sent to it."""
    display_name: str | None = Field(default=None, max_length=128)
    """Name for people."""
    projects: list[str] = Field(default_factory=list, max_length=100)
    """Projects the member reaches; all when empty."""


class MemberUser(Model):
    """How a member stands in labels and in the audit trail."""

    id: str | None = None
    """Value of the label ``nodus.dev/created-by`` of what the member makes."""
    email: str | None = None
    """The member's address, where it has one."""


class MemberStatus(Model):
    """State of a member."""

    phase: Literal["Active"] | None = None
    """Active."""
    user: MemberUser | None = None
    """Who it is in labels."""


MEMBER = Kind(
    name="Member",
    plural="members",
    singular="member",
    version="v1",
    scope="Org",
    spec_model=MemberSpec,
    status_model=MemberStatus,
    summary="A person of the organization, with a role that bounds what their keys may do.",
    columns=(
        NAME,
        Column("Role", "spec.role", description="Owner, Admin, Developer or Viewer"),
        Column("Email", "spec.email", description="For people"),
        Column("Projects", _all_when_empty("spec.projects"), description="Projects the member reaches"),
        _PHASE,
        AGE,
    ),
    phases={"Active": ()},
    selectable_fields=("status.phase", "spec.role"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Member",
        "metadata": {"name": "ada"},
        "spec": {"role": "Developer", "email": "ada@example.com", "projects": ["default"]},
    },
)


class APIKeySpec(Model):
    """What a key may do, and whose it is."""

    scopes: list[str] = Field(default_factory=list, max_length=100)
    """``<plural>:read``, ``<plural>:write``, ``<plural>:invoke``, ``*`` for any plural, or ``*`` alone. Those of the
    key that asks when left out. The member's role bounds them."""
    projects: list[str] = Field(default_factory=list, max_length=100)
    """Projects it sees; all that its member reaches when empty."""
    expires: Expiry | None = None
    """Lifetime such as ``720h`` or ``90d``, or the date or time after which it is refused; never when left out."""
    expiration_time: Timestamp | None = None
    """The same as an RFC 3339 time; give one of the two."""
    description: str | None = Field(default=None, max_length=256)
    """For people."""
    member: str | None = None
    """Member it belongs to; whoever asks when left out. Only an Owner or Admin makes keys of others."""
    service_account_name: str | None = None
    """ServiceAccount it belongs to instead of a member; its project stands in `project`."""
    project: str | None = None
    """Project of `serviceAccountName`, the only one the key sees."""
    attempt: str | None = None
    """Attempt in `project` that the key ends with; for keys of a ServiceAccount."""


class APIKeyStatus(Model):
    """What is known of a key; the key itself is shown once, in the reply that creates it."""

    phase: Literal["Active", "Expired"] | None = None
    """Active or Expired. A revoked key is gone."""
    token: str | None = None
    """The key, only in the reply that creates it."""
    prefix: str | None = None
    """Its first characters, to recognise it by."""
    expiration_time: str | None = None
    """When it stops working; never when absent."""
    last_used_time: str | None = None
    """When it was last used, to the minute."""


def _key_reach(wire: Mapping[str, Any], now: datetime) -> str | None:
    spec = wire.get("spec") or {}
    return spec.get("project") if spec.get("serviceAccountName") else _all_when_empty("spec.projects")(wire, now)


def _key_owner(wire: Mapping[str, Any], now: datetime) -> str | None:
    spec = wire.get("spec") or {}
    account = spec.get("serviceAccountName")
    return f"sa/{account}" if account else spec.get("member")


API_KEY = Kind(
    name="APIKey",
    plural="apikeys",
    singular="apikey",
    version="v1",
    scope="Org",
    spec_model=APIKeySpec,
    status_model=APIKeyStatus,
    summary="A credential with scopes, projects and an expiry; deleting it revokes it.",
    columns=(
        NAME,
        Column("Owner", _key_owner, description="Member or ServiceAccount it belongs to"),
        _PHASE,
        Column("Prefix", "status.prefix", description="First characters"),
        Column("Scopes", joined("spec.scopes"), description="What it may do"),
        Column("Projects", _key_reach, wide=True, description="Projects it sees"),
        Column("Expires", "status.expirationTime", description="When it stops working"),
        Column("Last-Used", "status.lastUsedTime", description="When it was last used"),
        AGE,
    ),
    immutable=("scopes", "projects", "member", "serviceAccountName", "project", "attempt"),
    phases={"Active": ("Expired",), "Expired": ()},
    selectable_fields=("status.phase", "spec.member", "spec.serviceAccountName"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "APIKey",
        "metadata": {"name": "ci"},
        "spec": {"scopes": ["trainingjobs:read"], "projects": ["default"], "expires": "90d"},
    },
)


class ServiceAccountSpec(Model):
    """A program of one project."""

    scopes: list[str] = Field(default_factory=lambda: ["*"], max_length=100)
    """What its keys may do at most. Whatever stands here, they never manage members, keys or projects."""
    description: str | None = Field(default=None, max_length=256)
    """For people."""


class ServiceAccountStatus(Model):
    """State of a ServiceAccount."""

    phase: Literal["Active"] | None = None
    """Active."""


SERVICE_ACCOUNT = Kind(
    name="ServiceAccount",
    plural="serviceaccounts",
    singular="serviceaccount",
    short_names=("sa",),
    version="v1",
    scope="Project",
    spec_model=ServiceAccountSpec,
    status_model=ServiceAccountStatus,
    summary="A program of one project; it has keys of its own, and no person behind them.",
    columns=(NAME, Column("Scopes", joined("spec.scopes"), description="What its keys may do"), _PHASE, AGE),
    phases={"Active": ()},
    subresources=("tokens",),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "nightly", "namespace": "default"},
        "spec": {"scopes": ["trainingjobs:read", "trainingjobs:write"]},
    },
)


class SSHKeySpec(Model):
    """A public key."""

    public_key: str = Field(max_length=16384)
    """OpenSSH public key, such as ``ssh-ed25519 AAAA... laptop``."""
    display_name: str | None = Field(default=None, max_length=128)
    """Name for people."""
    member: str | None = None
    """Member it belongs to; whoever asks when left out."""


class SSHKeyStatus(Model):
    """What is known of a public key."""

    phase: Literal["Active"] | None = None
    """Active."""
    fingerprint: str | None = None
    """SHA-256 fingerprint, as `ssh-keygen -l` prints it."""


SSH_KEY = Kind(
    name="SSHKey",
    plural="sshkeys",
    singular="sshkey",
    version="v1",
    scope="Org",
    spec_model=SSHKeySpec,
    status_model=SSHKeyStatus,
    summary="A member's public SSH key.",
    columns=(
        NAME,
        Column("Member", "spec.member", description="Whose it is"),
        Column("Fingerprint", "status.fingerprint", description="As ssh-keygen -l prints it"),
        AGE,
    ),
    immutable=("publicKey", "member"),
    phases={"Active": ()},
    selectable_fields=("status.phase", "spec.member"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "SSHKey",
        "metadata": {"name": "laptop"},
        "spec": {
            "publicKey": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f laptop",
            "displayName": "laptop",
        },
    },
)


class AuditObject(Model):
    """What an AuditEvent is about."""

    kind: str
    """Kind of the object."""
    name: str
    """Its name."""
    namespace: str | None = None
    """Its project; none for kinds of the organization."""
    uid: str | None = None
    """Its uid."""
    subresource: str | None = None
    """Path below the object, where the write went there."""


class AuditEventSpec(Model):
    """Who changed what, and when; never the values."""

    time: str
    """When it was done."""
    user: str
    """Who did it, such as ``usr_ada``."""
    credential: str
    """Name of the APIKey or Attempt it was done with."""
    verb: str
    """create, update, patch or delete an object; exec, attach, stdin, signal, write or remove in a Sandbox; upload,
    remove, commit or discard in a Volume."""
    object: AuditObject
    """What it was done to."""
    fields: list[str] = Field(default_factory=list)
    """Paths of the fields that changed."""
    request_id: str | None = None
    """Id of the request, as in the log."""


class AuditEventStatus(Model):
    """AuditEvents have no status."""


AUDIT_EVENT = Kind(
    name="AuditEvent",
    plural="auditevents",
    singular="auditevent",
    version="v1",
    scope="Org",
    spec_model=AuditEventSpec,
    status_model=AuditEventStatus,
    summary="A write that was done: who, what and when, never the values.",
    columns=(
        Column("Time", "spec.time", description="When it was done"),
        Column("User", "spec.user", description="Who did it"),
        Column("Verb", "spec.verb", description="What was done"),
        Column("Kind", "spec.object.kind", description="Kind of the object"),
        Column("Project", "spec.object.namespace", description="Its project"),
        Column("Object", "spec.object.name", description="Its name"),
        Column("Below", "spec.object.subresource", wide=True, description="Path below the object that was written to"),
        Column("Credential", "spec.credential", wide=True, description="Key it was done with"),
        Column("Fields", joined("spec.fields"), wide=True, description="Fields that changed"),
        Column("Request", "spec.requestId", description="Id of the request"),
    ),
    verbs=tuple(verb for verb in READ_VERBS if verb != "watch"),
    selectable_fields=(
        "spec.user", "spec.verb", "spec.object.kind", "spec.object.name", "spec.object.namespace", "spec.requestId",
    ),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "AuditEvent",
        "metadata": {"name": "audit-42"},
        "spec": {
            "time": "2026-01-31T12:00:00Z",
            "user": "usr_ada",
            "credential": "cli-laptop-x2m4k",
            "verb": "create",
            "object": {"kind": "TrainingJob", "name": "my-grpo", "namespace": "default"},
            "requestId": "req_01",
        },
    },
)  # fmt: skip
