"""Keys of ServiceAccounts: ``POST .../serviceaccounts/{N}/tokens`` makes one that ends by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.durations import parse_duration
from nodus.core.errors import Cause, Invalid
from nodus.core.kinds import API_KEY, SERVICE_ACCOUNT
from nodus.server.api import auditing, idempotent
from nodus.server.api.auth import CREATED_BY
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import json_response, read_object
from nodus.server.api.reading import find
from nodus.server.kinds.identity import make_key
from nodus.server.store.context import lock_objects
from nodus.server.store.idempotency import Reply

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.core.kinds import Kind

DEFAULT_DURATION = "2160h0m0s"
LONGEST_S = 8760 * 3600.0
_FIELDS = {"duration": str, "scopes": list, "attempt": str, "description": str}


async def mint(call: Call, kind: Kind) -> Response:
    """``POST .../tokens``: a new APIKey of the ServiceAccount, for 90 days unless told otherwise; shown once."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("create", kind, call.project, name, "tokens")
    body = await read_object(call.request, optional=True)
    spec = _spec(call, name, body)
    request = idempotent.key_of(call, body)
    answer = await call.services.store.write(_mint, call, name, spec, request)
    return idempotent.replayed(answer) if isinstance(answer, Reply) else json_response(answer, 201)


def _spec(call: Call, name: str, body: dict[str, Any]) -> dict[str, Any]:
    causes = [
        Cause(key, "FieldValueNotSupported", "unknown field")
        if key not in _FIELDS
        else Cause(key, "FieldValueInvalid", f"a {'list' if _FIELDS[key] is list else 'string'} is expected")
        for key, value in body.items()
        if not isinstance(value, _FIELDS.get(key, ()))
    ]
    duration = body.get("duration", DEFAULT_DURATION)
    if isinstance(duration, str):
        try:
            if not 0 < parse_duration(duration) <= LONGEST_S:
                raise ValueError(f"{duration} is not between 1s and 8760h")
        except ValueError as error:
            causes.append(Cause("duration", "FieldValueInvalid", str(error)))
    if causes:
        raise Invalid(f"the key of ServiceAccount {name} can't be made as asked", causes=causes[:20])
    given: dict[str, Any] = {key: body[key] for key in ("scopes", "attempt", "description") if key in body}
    return {"serviceAccountName": name, "project": call.project, "expires": duration, **given}


def _mint(
    conn: Connection, call: Call, name: str, spec: dict[str, Any], request: idempotent.Keyed | None
) -> dict[str, Any] | Reply:
    lock_objects(conn)
    if request is not None and (reply := idempotent.begin(conn, call, request)) is not None:
        return reply
    account = find(conn, call, SERVICE_ACCOUNT, name)
    labels = {CREATED_BY: call.principal.user}
    obj, key = make_key(conn, call.services, f"{account.name[:50]}-", spec, labels=labels, actor=call.principal)
    auditing.note(conn, call, "create", API_KEY, obj)
    wire = obj.to_wire()
    wire = {**wire, "status": {**wire["status"], "token": key}}
    # Published clients read the key and its end beside the object.
    wire |= {"token": key, "expirationTime": wire["status"]["expirationTime"]}
    if request is not None:
        idempotent.complete(conn, call, request, 201, wire, sealed=True)
    return wire
