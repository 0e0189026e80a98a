"""How a person shows who they are on an approval page: an API key they have, or a sign-in code.

Neither is kept by the browser: what is pasted is sent once in a form's body, over the connection that the page came by.
A sign-in code is made by somebody who has a key (``nodus admin login-link``), works once and for a short time.

To add another proof, such as OIDC, make :class:`Approval` from what it shows; nothing else here knows where it is from.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodus.core import roles
from nodus.core.errors import BadRequest, Forbidden, Unauthorized
from nodus.core.kinds import API_KEY
from nodus.server.api.auth import principal_of, user_of
from nodus.server.kinds.identity import member_of
from nodus.server.services import Services
from nodus.server.store import logins, objects
from nodus.server.store.audit import Actor

if TYPE_CHECKING:
    from sqlalchemy import Connection

CODE_PREFIX = "nodusin_"
_LONGEST = 512


@dataclass(frozen=True, slots=True)
class Approval:
    """Who approves, and what the key they give may do."""

    member: str
    """Uid of the Member."""
    user: str
    credential: str
    """Name of the APIKey they showed, or ``sign-in code``; for the audit trail."""
    scopes: tuple[str, ...]
    projects: tuple[str, ...]
    approver: str | None = None
    """Uid of the APIKey they showed, or that made the code they showed."""
    code: str | None = None
    """Digest of the sign-in code they showed; it is used up with the approval."""

    @property
    def grant(self) -> dict[str, Any]:
        """What is kept until the key is made."""
        return {"scopes": list(self.scopes), "projects": list(self.projects), "approver": self.approver}

    def actor(self, request_id: str) -> Actor:
        """Who it was, for the audit trail."""
        return Actor(self.user, self.credential, request_id)

    def use(self, conn: Connection) -> None:
        """Use the sign-in code up, in the transaction that approves.

        Raises:
            Unauthorized: somebody was faster.
        """
        if self.code is not None and not logins.consume(conn, self.code):
            raise _unknown_code()


async def prove(services: Services, credential: str) -> Approval:
    """Find out whom a pasted credential shows.

    Raises:
        BadRequest: nothing was pasted.
        Unauthorized: it is not known, has expired, or was used.
        Forbidden: it shows a program, or may not make keys.
    """
    text = credential.strip()
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise BadRequest("an API key or a sign-in code is expected", fix="Paste one into the field.")
    if text.startswith(CODE_PREFIX):
        return await services.store.read(_by_code, services.signer.code_digest(text))
    principal = await principal_of(text, services)
    if principal.kind != "APIKey":
        raise Forbidden(
            "this is a program's credential; a person's is needed", fix="Use a key of a member, or a sign-in code."
        )
    if not principal.may("apikeys", "write"):
        raise Forbidden(
            f"the key {principal.name} may not make other keys",
            fix="Use one with the scope apikeys:write, or a sign-in code.",
            details={"missingScope": "apikeys:write"},
        )
    return Approval(
        member=principal.owner, user=principal.user, credential=principal.name, scopes=principal.scopes,
        projects=principal.projects if principal.key_projects else (), approver=principal.uid,
    )  # fmt: skip


def stands(conn: Connection, approver: str | None) -> bool:
    """Whether the APIKey that vouched for a login was not revoked; nothing vouches for those of before it was kept."""
    key = objects.find_by_uid(conn, approver) if approver is not None else None
    return approver is None or (key is not None and key.kind == API_KEY.name and key.deleted_at is None)


def _by_code(conn: Connection, digest: str) -> Approval:
    found = logins.find(conn, "code", digest)
    if found is None or found.over:
        raise _unknown_code()
    # A leaked key that is revoked must leave nothing behind that nobody sees.
    if not stands(conn, found.grant.get("approver")):
        raise _unknown_code()
    member = member_of(conn, found.member)
    return Approval(
        member=member.uid, user=user_of(member), credential="sign-in code", scopes=(roles.ANY,), projects=(),
        approver=found.grant.get("approver"), code=digest,
    )  # fmt: skip


def _unknown_code() -> Unauthorized:
    return Unauthorized(
        "the sign-in code is not known (any more)", fix="Get another with `nodus admin login-link`; it works once."
    )


def new_sign_in_code() -> str:
    """Return a new sign-in code: 192 random bits."""
    return CODE_PREFIX + secrets.token_urlsafe(24)
