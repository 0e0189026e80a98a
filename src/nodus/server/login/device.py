"""Login from another device, after RFC 8628: a terminal shows a code, a person enters it on ``/device``."""

from __future__ import annotations

import secrets
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from nodus.core.errors import BadRequest, NodusError, NotFound, TooManyRequests
from nodus.server.api.blobs import origin
from nodus.server.api.http import json_response, parse_json, read_body
from nodus.server.login import pages
from nodus.server.login.grants import redeem
from nodus.server.login.limits import INTERVAL_S, Limits, address_of
from nodus.server.login.proofs import Approval, prove
from nodus.server.services import Services
from nodus.server.store import audit, logins
from nodus.server.store.context import lock_objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"
LIFETIME_S = 600.0
MOST_PENDING = 1000
_ALPHABET = "BCDFGHJKLMNPQRSTVWXZ"  # RFC 8628, 6.1: no vowels, nothing that is read as something else
_LENGTH = 8
_BODY_LIMIT_BYTES = 16 * 1024
_NO_STORE = {"Cache-Control": "no-store"}


async def start(request: Request, services: Services) -> Response:
    """``POST /auth/device/code``: begin a login that a person approves on another device."""
    services.limits.starts.take(address_of(request))
    client = (await _fields(request)).get("client_id", "")
    if not client or len(client) > 64 or not client.isprintable():
        raise BadRequest("client_id is missing or no name", fix='Send {"client_id": "nodus-cli"}.')
    device_code, user_code = secrets.token_urlsafe(32), "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))
    digests = services.signer.code_digest(device_code), services.signer.code_digest(user_code)
    await services.store.write(_start, *digests, client)
    shown = f"{user_code[:4]}-{user_code[4:]}"
    page = f"{origin(request, services)}/device"
    found = {
        "device_code": device_code,
        "user_code": shown,
        "verification_uri": page,
        "verification_uri_complete": f"{page}?user_code={shown}",
        "expires_in": int(LIFETIME_S),
        "interval": int(INTERVAL_S),
    }
    return json_response(found, headers=_NO_STORE)


def _start(conn: Connection, digest: str, user_digest: str, client: str) -> None:
    if logins.pending(conn) >= MOST_PENDING:
        raise TooManyRequests("too many logins are waiting", fix="Try again in a minute.", retry_after_s=60)
    logins.add(conn, "device", digest, client=client, lifetime_s=LIFETIME_S, user_digest=user_digest)


async def poll(request: Request, services: Services) -> Response:
    """``POST /auth/device/token``: the key once a person approved; until then why not, in OAuth's words."""
    services.limits.polls.take(address_of(request))
    fields = await _fields(request)
    if fields.get("grant_type") != GRANT_TYPE:
        return _refused("unsupported_grant_type")
    digest = services.signer.code_digest(fields.get("device_code", "")[:512])
    login = await services.store.read(logins.find, "device", digest)
    if login is None:
        return _refused("invalid_grant")
    if login.over:
        return _refused("expired_token")
    if services.limits.pace.too_fast(digest):
        return _refused("slow_down")
    if login.state == "Pending":
        return _refused("authorization_pending")
    if login.state == "Denied":
        await services.store.write(logins.consume, digest)
        return _refused("access_denied")
    answer = await services.store.write(redeem, services, login, request.scope["state"]["request_id"])
    return json_response(answer, headers=_NO_STORE)


def _refused(error: str) -> Response:
    return json_response({"error": error}, 400, _NO_STORE)


async def _fields(request: Request) -> dict[str, str]:
    """The body's text fields: a JSON object as the command lines send it, or a form as the RFC has it."""
    body = await read_body(request, _BODY_LIMIT_BYTES)
    media = request.headers.get("content-type", "").split(";")[0].strip().lower()
    found: Any
    if media == "application/x-www-form-urlencoded":
        try:
            found = dict(parse_qsl(body.decode("ascii"), max_num_fields=16, errors="strict"))
        except ValueError as error:
            raise BadRequest("the form can't be read") from error
    else:
        found = parse_json(body) if body.strip() else {}
    if not isinstance(found, dict):
        raise BadRequest("an object is expected")
    return {name: value for name, value in found.items() if isinstance(value, str)}


# The page -----------------------------------------------------------------------------------------------------


@pages.for_people
async def show(request: Request, services: Services) -> Response:
    """``GET /device``: the page on which a person enters the code that their terminal shows."""
    return _form(request, services, request.query_params.get("user_code", ""))


@pages.for_people
async def decide(request: Request, services: Services) -> Response:
    """``POST /device``: approve or deny the login that the code names."""
    given = await pages.read_form(request, services, ())
    limits: Limits = services.limits
    approve = given.get("decision") == "approve"
    try:
        limits.tries.take(address_of(request))
        limits.all_tries.take("")
        approval = await prove(services, given.get("credential", ""))
        digest = services.signer.code_digest(_plain(given.get("user_code", "")))
        request_id = request.scope["state"]["request_id"]
        client = await services.store.write(_decide, digest, approval, request_id, approve)
    except NodusError as error:
        if not pages.wants_html(request):
            raise
        return _form(request, services, given.get("user_code", ""), error)
    done = "Approved" if approve else "Denied"
    text = "The terminal goes on by itself; you can close this page." if approve else "It gets no key."
    return pages.page(done, f"<p>The login of <code>{escape(client)}</code> was {done.lower()}. {text}</p>")


def _form(request: Request, services: Services, user_code: str, error: NodusError | None = None) -> Response:
    intro = (
        f"<p>A terminal that ran <code>nodus login --device</code> asks for a key to "
        f"{escape(services.settings.org_name)}. It may do what you may, for 90 days, until you log out.</p>"
        "<p>Approve only a code that you see on your own terminal, never one that somebody sent you.</p>"
    )
    inputs = (
        '<label for="user_code">Code on the terminal</label>'
        f'<input id="user_code" name="user_code" value="{escape(user_code[:16])}" autocomplete="off" '
        'spellcheck="false" required placeholder="XXXX-XXXX">'
    )
    return pages.form(request, services, {}, intro=intro, inputs=inputs + pages.CREDENTIAL, error=error)


def _plain(user_code: str) -> str:
    """The code without what people put between its letters."""
    return "".join(letter for letter in user_code[:64].upper() if letter in _ALPHABET)


def _decide(conn: Connection, user_digest: str, approval: Approval, request_id: str, approve: bool) -> str:
    lock_objects(conn)
    login = logins.find_by_user_code(conn, user_digest)
    if login is None or login.over or login.state != "Pending":
        raise NotFound("no login waits under this code", fix="Look at the terminal again; a code works ten minutes")
    approval.use(conn)
    state: logins.State = "Approved" if approve else "Denied"
    if not logins.decide(conn, login.digest, state, approval.member, approval.grant):
        raise NotFound("somebody else was faster", fix="Run `nodus login --device` again")
    target = audit.Target("Login", login.client, subresource="device")
    audit.record(conn, approval.actor(request_id), "approve" if approve else "deny", target)
    return login.client
