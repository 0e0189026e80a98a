"""The generic verbs: get, list, create, patch, replace, delete and dry run, the same for every kind.

Reads are one snapshot, writes one transaction: object, change, rows beside it and idempotency record together.
Kinds differ only by their declaration (``core/kinds``) and their admission (``server/kinds``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response

from nodus.core.errors import MethodNotAllowed, NotFound
from nodus.core.kinds import BILLING_ACCOUNT, PROCESS, Kind
from nodus.server.api import grants, processes
from nodus.server.api.call import Call, kind_of
from nodus.server.api.changing import delete, patch, replace
from nodus.server.api.creating import create
from nodus.server.api.reading import get, list_objects
from nodus.server.api.watch import watch


async def collection(call: Call) -> Response:
    """``/apis/nodus.dev/{version}[/namespaces/{project}]/{plural}``."""
    kind = kind_of(call.params)
    handlers: dict[str, Callable[[Call, Kind], Awaitable[Response]]] = {"GET": list_objects, "POST": create}
    if call.method == "GET" and call.flag("watch"):
        _require_verb(kind, "watch")
        return await watch(call, kind)
    return await _handler(call, handlers, kind)(call, kind)


async def item(call: Call) -> Response:
    """``.../{plural}/{name}``."""
    kind = kind_of(call.params)
    if kind.namespaced and call.project is None:
        raise NotFound(f"{kind.plural} live in projects", fix=f"Use namespaces/PROJECT/{kind.plural}/NAME.")
    if kind is BILLING_ACCOUNT and call.method == "PATCH":
        return await grants.recharge(call)
    if kind is PROCESS and call.method == "GET":
        await processes.wait_for_end(call)
    handlers: dict[str, Callable[[Call, Kind], Awaitable[Response]]] = {
        "GET": get, "PATCH": patch, "PUT": replace, "DELETE": delete,
    }  # fmt: skip
    return await _handler(call, handlers, kind)(call, kind)


_VERB_OF = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


def _handler(
    call: Call, handlers: Mapping[str, Callable[[Call, Kind], Awaitable[Response]]], kind: Kind
) -> Callable[[Call, Kind], Awaitable[Response]]:
    handler = handlers.get(call.method)
    if handler is None:
        raise MethodNotAllowed(f"{call.request.method} does not fit this path", details={"allowed": sorted(handlers)})
    if call.method != "GET":
        _require_verb(kind, _VERB_OF[call.method])
    return handler


def _require_verb(kind: Kind, verb: str) -> None:
    if verb not in kind.verbs:
        raise MethodNotAllowed(f"{kind.plural} can't be used with {verb}", details={"allowed": list(kind.verbs)})
