"""The approval pages as HTML: no scripts, nothing from elsewhere, no credential in an address, nothing cached.

A form carries a token that belongs to a cookie of this browser (`SameSite=Strict`) and to what the form says, so that
no other site can send it. Text of strangers is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from html import escape
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from nodus.core.errors import BadRequest, Forbidden, NodusError, UnsupportedMediaType
from nodus.server.api.http import read_body
from nodus.server.services import Services

COOKIE = "nodus_form"
COOKIE_S = 3600
FORM_LIMIT_BYTES = 16 * 1024
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:4rem auto;padding:0 1rem;color:#1a1a1a;"
    "background:#fff}h1{font-size:1.4rem}label{display:block;margin:1rem 0 .3rem;font-weight:600}"
    "input{font:inherit;width:100%;padding:.5rem;box-sizing:border-box;border:1px solid #888;border-radius:4px}"
    "button{font:inherit;padding:.5rem 1.2rem;margin:1.2rem .6rem 0 0;border:1px solid #333;border-radius:4px;"
    "background:#fff;cursor:pointer}button.main{background:#1a1a1a;color:#fff}code{background:#eee;padding:0 .2rem}"
    ".error{border-left:4px solid #b00020;padding:.2rem .8rem;background:#fdecee}.note{color:#555}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


def wants_html(request: Request) -> bool:
    """Whether a browser asks."""
    return "text/html" in request.headers.get("accept", "")


def page(title: str, body: str, status: int = 200, forms_to: str = "") -> Response:
    """A page.

    Args:
        title: of the page; escaped here.
        body: HTML, escaped by whoever wrote it.
        status: HTTP status.
        forms_to: where a form's answer may lead to besides this server.
    """
    html = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1>{body}</body></html>"
    )
    return HTMLResponse(html, status, headers(forms_to))


def headers(forms_to: str = "") -> dict[str, str]:
    """Headers that keep a page out of frames and caches, and everything foreign out of it."""
    policy = (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self' {forms_to}".rstrip()
        + "; base-uri 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        # Not no-referrer: the browser would then send `Origin: null` with the form, which says nothing.
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def form(
    request: Request,
    services: Services,
    fields: Mapping[str, str],
    *,
    intro: str,
    inputs: str,
    error: NodusError | None,
    forms_to: str = "",
) -> Response:
    """A page with a form that is sent to its own path.

    Args:
        request: which the page answers.
        services: the server.
        fields: hidden fields; the form's token covers them.
        intro: HTML before the form.
        inputs: HTML of the visible fields.
        error: what was wrong with the last try.
        forms_to: where the form's answer may lead to besides this server.
    """
    cookie = _cookie_of(request) or secrets.token_urlsafe(32)
    path = request.url.path
    hidden = {**fields, "token": services.signer.form_token(cookie, _covered(path, fields))}
    inner = "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">' for name, value in hidden.items()
    )
    buttons = (
        '<button class="main" name="decision" value="approve">Approve</button>'
        '<button name="decision" value="deny" formnovalidate>Deny</button>'
    )
    body = f'{intro}{_shown(error)}<form method="post" action="{escape(path)}">{inner}{inputs}{buttons}</form>'
    response = page("Log in to Nodus", body, error.status if error is not None else 200, forms_to)
    response.set_cookie(
        COOKIE, cookie, max_age=COOKIE_S, path="/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https" or services.base_url.startswith("https:"),
    )  # fmt: skip
    return response


CREDENTIAL = (
    '<label for="credential">Your API key, or a sign-in code</label>'
    '<input id="credential" name="credential" type="password" autocomplete="off" spellcheck="false" required>'
    '<p class="note">It is used this once, to show who you are, and not kept. On a machine where you are logged in, '
    "<code>nodus admin login-link</code> prints a sign-in code.</p>"
)
"""The field in which a person shows who they are."""


def _shown(error: NodusError | None) -> str:
    if error is None:
        return ""
    fix = f" {escape(error.fix)}" if error.fix else ""
    return f'<p class="error" role="alert">{escape(error.message)}.{fix}</p>'


def _covered(path: str, fields: Mapping[str, str]) -> str:
    return "\n".join([path, *(f"{name}={value}" for name, value in sorted(fields.items()))])


def _cookie_of(request: Request) -> str | None:
    value = request.cookies.get(COOKIE, "")
    return value if _COOKIE.fullmatch(value) else None


async def read_form(request: Request, services: Services, hidden: tuple[str, ...]) -> dict[str, str]:
    """Return the fields of a form that one of our pages sent.

    Args:
        request: the POST.
        services: the server.
        hidden: names of the hidden fields, which the token covers.

    Raises:
        Forbidden: another site sent it, or another browser.
        BadRequest: it is no form.
    """
    media = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media != "application/x-www-form-urlencoded":
        raise UnsupportedMediaType(f"a form is expected, not {media[:60] or 'nothing'!r}")
    body = await read_body(request, FORM_LIMIT_BYTES)
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=32, errors="strict")
    except ValueError as error:
        raise BadRequest("the form can't be read") from error
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadRequest("the form has a field twice")
    _check_origin(request, services)
    cookie, fields = _cookie_of(request), {name: found.get(name, "") for name in hidden}
    expected = services.signer.form_token(cookie or "", _covered(request.url.path, fields))
    if cookie is None or not hmac.compare_digest(expected.encode(), found.get("token", "").encode()):
        raise Forbidden("the form was not sent by this server's page, or is too old", fix="Open the page again.")
    return found


def _check_origin(request: Request, services: Services) -> None:
    """Refuse what a browser says comes from another site; the token decides where it says nothing."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = {f"{request.url.scheme}://{request.headers.get('host', '')}", services.base_url}
    if site not in (None, "same-origin") or (origin is not None and origin not in own):
        raise Forbidden(
            "the form was sent by another site",
            fix="Open the page again. Behind a proxy that changes the host, start the server with --public-url.",
        )


Handler = Callable[[Request, Services], Awaitable[Response]]


def for_people(handler: Handler) -> Handler:
    """Show a browser the errors of a handler as a page; programs get the Status as everywhere."""

    async def wrapped(request: Request, services: Services) -> Response:
        try:
            return await handler(request, services)
        except NodusError as error:
            if not wants_html(request):
                raise
            return page("Log in to Nodus", _shown(error), error.status)

    wrapped.__doc__ = handler.__doc__
    wrapped.__name__ = handler.__name__
    return wrapped
