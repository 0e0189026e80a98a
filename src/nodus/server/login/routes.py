"""The routes of logging in, for :mod:`nodus.server.api.app`."""

from __future__ import annotations

from typing import Any

from nodus.server.api.routes import Operation, Param
from nodus.server.login import browser, codes, device

_TEXT = {"type": "string"}


def _body(*required: str, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(required)}


_KEYS = _body(
    "keys",
    keys={
        "type": "array",
        "items": _body("key", "name", key=_TEXT, org=_TEXT, orgName=_TEXT, name=_TEXT, project=_TEXT),
    },
)
_USER_CODE = Param("user_code", "The code to fill in.")
_CLI_AUTH = (
    Param("code_challenge", "S256 challenge of the command line's verifier.", required=True),
    Param("host", "Name of its machine."),
    Param("port", "Loopback port it listens on.", "integer", required=True),
    Param("state", "Sent back to it as it is.", required=True),
)

OPERATIONS: tuple[Operation, ...] = (
    Operation("/cli-auth", browser.show, public=True, query=_CLI_AUTH, answer=None),
    Operation("/cli-auth", browser.decide, ("POST",), public=True, answer=None, status=303),
    Operation(
        "/auth/cli-keys/redeem", browser.redeem_code, ("POST",), public=True, answer=_KEYS,
        body=_body("code", "codeVerifier", code=_TEXT, codeVerifier=_TEXT),
    ),
    Operation(
        "/auth/device/code", device.start, ("POST",), public=True, body=_body("client_id", client_id=_TEXT),
    ),
    Operation(
        "/auth/device/token", device.poll, ("POST",), public=True, answer=_KEYS,
        body=_body("device_code", "grant_type", device_code=_TEXT, grant_type=_TEXT),
    ),
    Operation("/device", device.show, public=True, query=(_USER_CODE,), answer=None),
    Operation("/device", device.decide, ("POST",), public=True, answer=None),
    Operation(
        "/auth/login-codes", codes.make, ("POST",), status=201, body=_body(member=_TEXT, duration=_TEXT),
    ),
)  # fmt: skip
