"""Login with a browser on the same machine, with PKCE.

The command line listens on a loopback port and opens ``/cli-auth``; the person approves; the browser is sent to that
port with a code, and the command line redeems the code with the verifier that only it knows. A code lives two minutes
and works once; a wrong verifier uses it up.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from nodus.core.errors import BadRequest, NodusError, Unauthorized
from nodus.server.api.http import json_response, read_object
from nodus.server.login import pages
from nodus.server.login.grants import redeem
from nodus.server.login.limits import Limits, address_of
from nodus.server.login.proofs import Approval, prove
from nodus.server.services import Services
from nodus.server.store import audit, logins
from nodus.server.store.context import lock_objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

CODE_LIFETIME_S = 120.0
_FIELDS = ("code_challenge", "host", "port", "state")
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_STATE = re.compile(r"[\x21-\x7e]{1,512}")
_LONGEST_HOST = 253


@pages.for_people
async def show(request: Request, services: Services) -> Response:
    """``GET /cli-auth``: the page on which a person approves the login of a command line on the same machine."""
    return _form(request, services, _checked(dict(request.query_params)))


@pages.for_people
async def decide(request: Request, services: Services) -> Response:
    """``POST /cli-auth``: approve or deny, and send the browser back to the command line."""
    given = await pages.read_form(request, services, _FIELDS)
    fields = _checked(given)
    if given.get("decision") != "approve":
        return _back(fields, {"error": "access_denied"})
    limits: Limits = services.limits
    code = secrets.token_urlsafe(32)
    try:
        limits.tries.take(address_of(request))
        limits.all_tries.take("")
        approval = await prove(services, given.get("credential", ""))
        digest, request_id = services.signer.code_digest(code), request.scope["state"]["request_id"]
        await services.store.write(_approve, digest, fields, approval, request_id)
    except NodusError as error:
        if not pages.wants_html(request):
            raise
        return _form(request, services, fields, error)
    return _back(fields, {"code": code})


def _checked(given: dict[str, str]) -> dict[str, str]:
    fields = {name: given.get(name, "") for name in _FIELDS}
    host = fields["host"]
    if not _CHALLENGE.fullmatch(fields["code_challenge"]):
        raise BadRequest("code_challenge is no S256 challenge", fix="Run `nodus login` again.")
    if not _PORT.fullmatch(fields["port"]) or int(fields["port"]) > 65535:
        raise BadRequest(f"port={fields['port'][:20]!r} is no port", fix="Run `nodus login` again.")
    if not _STATE.fullmatch(fields["state"]):
        raise BadRequest("state is missing or too long", fix="Run `nodus login` again.")
    if len(host) > _LONGEST_HOST or not host.isprintable():
        raise BadRequest("host is no name of a machine", fix="Run `nodus login` again.")
    return fields


def _form(request: Request, services: Services, fields: dict[str, str], error: NodusError | None = None) -> Response:
    host = f" on <code>{escape(fields['host'])}</code>" if fields["host"] else ""
    intro = (
        f"<p><code>nodus login</code>{host} asks for a key to {escape(services.settings.org_name)}. It may do what you "
        "may, for 90 days, until you log out.</p>"
        "<p>Approve only if you ran <code>nodus login</code> on this machine just now.</p>"
    )
    # Browsers hold a form's redirect to its page's policy as well.
    back = f"http://127.0.0.1:{fields['port']}"
    return pages.form(request, services, fields, intro=intro, inputs=pages.CREDENTIAL, error=error, forms_to=back)


def _back(fields: dict[str, str], answer: dict[str, str]) -> Response:
    query = urlencode({**answer, "state": fields["state"]})
    location = f"http://127.0.0.1:{fields['port']}/callback?{query}"
    return Response(b"", 303, {**pages.headers(), "Location": location})


def _approve(conn: Connection, digest: str, fields: dict[str, str], approval: Approval, request_id: str) -> None:
    lock_objects(conn)
    approval.use(conn)
    logins.add(
        conn, "cli", digest, client=fields["host"] or "cli", lifetime_s=CODE_LIFETIME_S, state="Approved",
        challenge=fields["code_challenge"], member=approval.member, grant=approval.grant,
    )  # fmt: skip
    target = audit.Target("Login", fields["host"] or "cli", subresource="cli-auth")
    audit.record(conn, approval.actor(request_id), "approve", target)


async def redeem_code(request: Request, services: Services) -> Response:
    """``POST /auth/cli-keys/redeem``: the key of an approved login, for the code and its PKCE verifier."""
    services.limits.redeems.take(address_of(request))
    body = await read_object(request)
    code, verifier = body.get("code"), body.get("codeVerifier")
    if not isinstance(code, str) or not isinstance(verifier, str) or not _VERIFIER.fullmatch(verifier):
        raise BadRequest("code and codeVerifier are expected", fix="Run `nodus login` again.")
    if not code:  # some clients come for the key all the same when the browser told them of a refusal
        raise Unauthorized("the login was denied in the browser", fix="Run `nodus login` again.")
    digest, request_id = services.signer.code_digest(code[:512]), request.scope["state"]["request_id"]
    answer = await services.store.write(_redeem, services, digest, _challenge_of(verifier), request_id)
    if answer is None:
        raise Unauthorized("the login code is not valid (any more)", fix="Run `nodus login` again.")
    return json_response(answer, headers={"Cache-Control": "no-store"})


def _challenge_of(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _redeem(
    conn: Connection, services: Services, digest: str, challenge: str, request_id: str
) -> dict[str, Any] | None:
    """None for a code that is no good; returned, not raised, so that using it up is kept."""
    login = logins.find(conn, "cli", digest)
    if login is None or login.over:
        return None
    if not hmac.compare_digest(str(login.challenge).encode(), challenge.encode()):
        logins.consume(conn, digest)
        return None
    return redeem(conn, services, login, request_id)
