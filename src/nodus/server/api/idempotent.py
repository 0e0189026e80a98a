"""Idempotency-Key: a repeated request gets its first answer, another request with the same key is refused."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.digests import canonical_json
from nodus.core.errors import BadRequest
from nodus.server.api.call import Call
from nodus.server.api.http import json_bytes
from nodus.server.store import idempotency
from nodus.server.store.idempotency import Reply

if TYPE_CHECKING:
    from sqlalchemy import Connection

HEADER = "idempotency-key"
_KEY = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,254}")


@dataclass(frozen=True, slots=True)
class Keyed:
    """A request that carries a key."""

    scope: str
    """Uid of the API key or attempt that sends it."""
    key: str
    request_hash: str


def key_of(call: Call, body: Any) -> Keyed | None:
    """The key of a request with its hash, or ``None`` when it has none.

    Raises:
        BadRequest: the header is not a key.
    """
    key = call.request.headers.get(HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise BadRequest("Idempotency-Key must be 1 to 255 printable ASCII characters")
    request = canonical_json([call.method, call.request.scope["path"], body]).encode()
    return Keyed(call.principal.uid, key, call.services.signer.request_hash(request))


def begin(conn: Connection, call: Call, request: Keyed) -> Reply | None:
    """Claim the key within the transaction that does the work; the kept answer when there is one."""
    sealer = call.services.signer
    return idempotency.begin(conn, request.scope, request.key, request.request_hash, sealer=sealer)


def complete(
    conn: Connection, call: Call, request: Keyed, status: int, body: dict[str, Any], *, sealed: bool = False
) -> None:
    """Keep the answer, in the transaction that did the work; ``sealed`` where it holds something secret."""
    sealer = call.services.signer if sealed else None
    idempotency.complete(conn, request.scope, request.key, Reply(status, {}, json_bytes(body)), sealer=sealer)


def recall(conn: Connection, call: Call, request: Keyed) -> Reply | None:
    """The kept answer when there is one; for work that is done in this transaction and ends with :func:`keep`."""
    sealer = call.services.signer
    return idempotency.recall(conn, request.scope, request.key, request.request_hash, sealer=sealer)


def keep(
    conn: Connection, call: Call, request: Keyed, status: int, body: dict[str, Any], *, sealed: bool = False
) -> None:
    """Keep the answer to what :func:`recall` knew nothing of; ``sealed`` where it holds something secret."""
    reply, sealer = Reply(status, {}, json_bytes(body)), call.services.signer if sealed else None
    idempotency.keep(conn, request.scope, request.key, request.request_hash, reply, sealer=sealer)


def abandon(conn: Connection, request: Keyed) -> None:
    """Let the request be repeated: it failed."""
    idempotency.abandon(conn, request.scope, request.key)


def replayed(reply: Reply) -> Response:
    """The response that repeats a kept answer."""
    headers = {"Idempotent-Replayed": "true", **dict(reply.headers)}
    return Response(reply.body, reply.status, headers, "application/json")


def body_of(reply: Reply) -> dict[str, Any]:
    """The JSON body of a kept answer."""
    found: dict[str, Any] = json.loads(reply.body)
    return found
