"""Getting a key of one's own: through a browser on this machine (PKCE), or a code entered on another device (RFC 8628).

Used by ``nodus login``. Nothing here stores anything; what comes back is what the server made.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from nodus.client.http import Api
from nodus.client.transport import Request, TransportError, pause
from nodus.core.errors import NodusError, NodusTimeout, NotFound, Unauthorized, from_status

CLIENT_ID = "nodus-cli"
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"
BROWSER_TIMEOUT_S = 300.0
_SLOW_DOWN_S = 5.0
_LONGEST_REQUEST = 8192


@dataclass(frozen=True, slots=True)
class Granted:
    """A key that a login made."""

    key: str
    name: str
    org: str
    org_name: str
    project: str

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Granted:
        """Read one entry of the server's answer.

        Raises:
            NodusError: It holds no key.
        """
        key, name = entry.get("key"), entry.get("name")
        if not isinstance(key, str) or not isinstance(name, str):
            raise NodusError("the server's answer to the login holds no key")
        org = str(entry.get("org") or "nodus")
        return cls(key, name, org, str(entry.get("orgName") or org), str(entry.get("project") or "default"))


def _granted(answer: Any) -> list[Granted]:
    entries = answer.get("keys") if isinstance(answer, dict) else None
    granted = [Granted.of(entry) for entry in entries or []]
    if not granted:
        raise NodusError("the server's answer to the login holds no key")
    return granted


# Browser ------------------------------------------------------------------------------------------------------


async def console_of(api: Api) -> str:
    """Return where the server's approval pages are; the server itself where it doesn't say.

    Raises:
        NodusError: What it says is no address of a web page. A browser is started with it, which takes options too.
    """
    try:
        found = await api.call("GET", "/.well-known/nodus-configuration")
    except NotFound:
        found = {}
    console = found.get("consoleURL") if isinstance(found, dict) else None
    address = str(console or api.connection.url).rstrip("/")
    if not address.startswith(("http://", "https://")):
        fix = "Say where the approval page is with --console-url."
        raise NodusError(
            f"the server names {address[:80]!r} as its console, which is no address of a web page", fix=fix
        )
    return address


async def with_browser(api: Api, console: str, show: Callable[[str], None]) -> list[Granted]:
    """Let a person approve in the browser and return the keys they gave.

    Args:
        api: The server, without a key.
        console: Origin of the approval pages.
        show: Is given the page's address, to open or print it.

    Raises:
        NodusTimeout: Nobody approved within five minutes.
        Unauthorized: The person denied it, or the server refused the code.
    """
    verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(16)
    digest = hashlib.sha256(verifier.encode()).digest()
    with CallbackServer(state) as server:
        query = {
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "host": socket.gethostname()[:253],
            "port": server.port,
            "state": state,
        }
        show(f"{console}/cli-auth?{urlencode(query)}")
        code = server.wait(BROWSER_TIMEOUT_S)
    return _granted(await api.call("POST", "/auth/cli-keys/redeem", body={"code": code, "codeVerifier": verifier}))


class CallbackServer:
    """Listens on a loopback port for the browser that comes back; other requests are turned away.

    Example:
        >>> with CallbackServer(state) as server:
        ...     code = server.wait(300)
    """

    def __init__(self, state: str) -> None:
        self._answer: dict[str, str] = {}
        self._arrived = threading.Event()
        self._server = HTTPServer(("127.0.0.1", 0), self._handler(state))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    def __enter__(self) -> CallbackServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait(self, timeout_s: float) -> str:
        """Return the code that the browser brings.

        Raises:
            NodusTimeout: None came.
            Unauthorized: The person denied the login.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._arrived.wait(0.5):  # in pieces, so that Ctrl+C ends it everywhere
            if time.monotonic() > deadline_s:
                raise NodusTimeout(
                    f"nobody approved the login within {timeout_s / 60:g} minutes",
                    fix="Run `nodus login` again, or `nodus login --device`.",
                )
        if "code" not in self._answer:
            raise Unauthorized("the login was denied in the browser", fix="Run `nodus login` again.")
        return self._answer["code"]

    def _handler(self, state: str) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # a connection that says nothing must not keep the browser waiting

            def do_GET(self) -> None:
                given = parse_qs(urlsplit(self.path).query) if len(self.path) < _LONGEST_REQUEST else {}
                found: dict[str, str] = {name: values[0] for name, values in given.items()}
                right = hmac.compare_digest(found.get("state", "").encode(), state.encode())
                if urlsplit(self.path).path != "/callback" or not right:
                    self._say(404, "This is not the login that waits here.")
                    return
                done = "code" in found
                self._say(200, "Logged in." if done else "The login was denied.", " You can close this page.")
                outer._answer = found
                outer._arrived.set()

            def _say(self, status: int, *words: str) -> None:
                body = "".join(words).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: the address holds the code."""

        return Handler


def may_open_browser(environ: Mapping[str, str] | None = None) -> bool:
    """Tell whether this machine shows a browser to whoever runs the command."""
    env = os.environ if environ is None else environ
    if env.get("SSH_CONNECTION") and not env.get("DISPLAY"):
        return False
    return sys.platform == "darwin" or any(env.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


# Device -------------------------------------------------------------------------------------------------------


async def with_device(api: Api, show: Callable[[str, str, str], None]) -> list[Granted]:
    """Let a person approve on another device and return the keys they gave.

    Args:
        api: The server, without a key.
        show: Is given the page's address, the code to enter there, and an address that has the code in it.

    Raises:
        Unauthorized: The person denied it.
        NodusTimeout: Nobody entered the code in time.
    """
    started = await api.call("POST", "/auth/device/code", body={"client_id": CLIENT_ID})
    page, user_code = str(started["verification_uri"]), str(started["user_code"])
    show(page, user_code, str(started.get("verification_uri_complete") or page))
    interval_s = float(started.get("interval") or 5)
    deadline_s = time.monotonic() + float(started.get("expires_in") or 600)
    while time.monotonic() < deadline_s:
        await pause(interval_s)
        status, answer = await _poll(api, str(started["device_code"]))
        if status == 200:
            return _granted(answer)
        match answer.get("error"):
            case "authorization_pending":
                continue
            case "slow_down":
                interval_s += _SLOW_DOWN_S
            case "access_denied":
                raise Unauthorized("the login was denied", fix="Run `nodus login --device` again.")
            case "expired_token":
                break
            case _ if status == 429 or status >= 500:
                continue  # busy or restarting
            case _:
                raise from_status(answer, status)
    raise NodusTimeout("nobody entered the code in time", fix="Run `nodus login --device` again.")


async def _poll(api: Api, device_code: str) -> tuple[int, dict[str, Any]]:
    """Ask for the key. The answer is OAuth's, not a Status; a connection that fails is tried again at the next poll."""
    body = json.dumps({"device_code": device_code, "grant_type": GRANT_TYPE}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
    try:
        exchange = await api.transport.open(Request("POST", api.url("/auth/device/token"), headers, body))
        raw = await exchange.read()
    except TransportError:
        return 503, {"error": "authorization_pending"}
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = {}
    return exchange.status, answer if isinstance(answer, dict) else {}
