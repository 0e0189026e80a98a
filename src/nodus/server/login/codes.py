"""Sign-in codes: ``POST /auth/login-codes`` makes one, which shows who a person is on an approval page, once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core import roles
from nodus.core.clock import rfc3339
from nodus.core.durations import parse_duration
from nodus.core.errors import BadRequest, Cause, Forbidden, Invalid
from nodus.core.kinds import MEMBER
from nodus.server.api import auditing
from nodus.server.api.blobs import origin
from nodus.server.api.call import Call, not_found
from nodus.server.api.http import json_response, read_object
from nodus.server.login.proofs import new_sign_in_code
from nodus.server.store import audit, logins, objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

DEFAULT_DURATION = "15m"
LONGEST_S = 7 * 86400.0


async def make(call: Call) -> Response:
    """``POST /auth/login-codes``: a code that shows once, on an approval page, that a person is this member."""
    principal = call.principal
    principal.require_scope("apikeys", "write")
    body = await read_object(call.request, optional=True)
    name, lifetime_s = _read(body, principal.member)
    if name != principal.member and not principal.manages:
        raise Forbidden("only an Owner or Admin makes sign-in codes of others")
    if not roles.covers(principal.scopes, roles.ANY) or principal.key_projects:
        # Whoever signs in with it may do all that the member may.
        raise Forbidden(
            f"the key {principal.name} may do less than its member, and a sign-in code may do all of it",
            fix="Use a key with the scope * and without projects.",
            details={"missingScope": roles.ANY},
        )
    code = new_sign_in_code()
    expires = await call.services.store.write(_store, call, name, call.services.signer.code_digest(code), lifetime_s)
    page = f"{origin(call.request, call.services)}/device"
    answer = {"code": code, "member": name, "expirationTime": rfc3339(expires), "deviceURL": page}
    return json_response(answer, 201, {"Cache-Control": "no-store"})


def _read(body: dict[str, Any], own: str | None) -> tuple[str, float]:
    causes = [Cause(key, "FieldValueNotSupported", "unknown field") for key in body.keys() - {"member", "duration"}]
    name, duration = body.get("member", own), body.get("duration", DEFAULT_DURATION)
    if not isinstance(name, str) or not name:
        raise BadRequest("member names whom the code is for")
    lifetime_s = 0.0
    try:
        lifetime_s = parse_duration(duration if isinstance(duration, str) else "")
        if not 0 < lifetime_s <= LONGEST_S:
            raise ValueError(f"{duration} is not between 1s and 168h")
    except ValueError as error:
        causes.append(Cause("duration", "FieldValueInvalid", str(error)))
    if causes:
        raise Invalid("the sign-in code can't be made as asked", causes=causes[:20])
    return name, lifetime_s


def _store(conn: Connection, call: Call, name: str, digest: str, lifetime_s: float) -> datetime:
    member = objects.find(conn, MEMBER, None, name)
    if member is None or not call.principal.sees_object(MEMBER, member):
        raise not_found(MEMBER, name)
    if name != call.principal.member and not roles.outranks(call.principal.role, str(member.spec.get("role"))):
        raise Forbidden(f"member {name} is an Owner; only an Owner makes a sign-in code of an Owner")
    logins.add(
        conn, "code", digest, client="sign-in code", lifetime_s=lifetime_s, state="Approved", member=member.uid,
        grant={"approver": call.principal.uid},
    )  # fmt: skip
    target = audit.Target(MEMBER.name, member.name, uid=member.uid, subresource="login-codes")
    audit.record(conn, auditing.actor_of(call), "create", target)
    call.audited = True
    return call.services.clock.now() + timedelta(seconds=lifetime_s)
