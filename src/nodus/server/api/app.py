"""The ASGI application: routes, and the layers every request passes through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from nodus._version import __version__
from nodus.core.errors import Forbidden, NotFound
from nodus.core.ids import new_id
from nodus.core.kinds import KINDS, PROJECT
from nodus.core.money import format_usd
from nodus.server import machine, metrics
from nodus.server.api import (
    attach,
    attempt_api,
    auditing,
    blobs,
    discovery,
    openapi,
    reading,
    resources,
    usage,
    volumesync,
)
from nodus.server.api.auth import CATALOG_PROJECT, Standing, authenticate, whoami
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import error_response, json_response
from nodus.server.api.middleware import RequestMiddleware
from nodus.server.api.routes import Operation, Param, subresource
from nodus.server.api.streaming import StreamResponse
from nodus.server.login import routes as login_routes
from nodus.server.login.grants import org_name
from nodus.server.login.limits import Limits
from nodus.server.services import Services
from nodus.server.store import ledger, listing, objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

READY_TIMEOUT_S = 5.0


def create_app(services: Services) -> ASGIApp:
    """The application of one server."""
    services.limits = services.limits or Limits(services.clock)
    return RequestMiddleware(_App(services), services.metrics)


class _App:
    """A router that knows the services. Its routes raise; the middleware outside turns errors into Status bodies."""

    def __init__(self, services: Services) -> None:
        self.router = Router(routes=_routes(services), redirect_slashes=False)
        sockets = [WebSocketRoute(attach.PATH, attach.endpoint(services))] if "api" in services.settings.roles else []
        self._sockets = Router(routes=sockets, redirect_slashes=False, default=_no_socket)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
            return
        scope["app"] = self  # makes the router raise instead of answering in plain text
        await self.router(scope, receive, send)


async def _no_socket(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a WebSocket where there is none, with a Status like any other refusal."""
    request_id = new_id("req")
    error = NotFound("there is no WebSocket at this path", fix="A process has one: .../processes/NAME/attach.")
    refusal = error_response(error, request_id, {"X-Request-Id": request_id})
    await WebSocket(scope, receive, send).send_denial_response(refusal)


def _routes(services: Services) -> list[Route]:
    if "api" not in services.settings.roles:
        return [_public(services, operation) for operation in HEALTH]
    rest = [
        (_public if operation.public else _authenticated)(services, operation) for operation in (*HEALTH, *OPERATIONS)
    ]
    namespaced, org = "/apis/nodus.dev/{version}/namespaces/{project}/{plural}", "/apis/nodus.dev/{version}/{plural}"
    found: list[Route] = []
    # These first: they are asked for most, and routes are tried one by one.
    for path, handler in (
        (namespaced, resources.collection),
        (namespaced + "/{name}", resources.item),
        (namespaced + "/{name}/{sub:path}", subresource),
        (org, resources.collection),
        (org + "/{name}", resources.item),
        (org + "/{name}/{sub:path}", subresource),
    ):
        found.append(_authenticated(services, Operation(path, handler, _ALL)))
    return found + rest


_ALL = ("GET", "POST", "PUT", "PATCH", "DELETE")


def _authenticated(services: Services, operation: Operation) -> Route:
    async def answer(request: Request) -> Response:
        principal = await authenticate(request, services)
        params = dict(request.path_params)
        if "project" in params:
            params["project"] = checked_name(PROJECT, params["project"])
        call = Call(request, services, principal, params)
        response = await operation.handler(call)
        if isinstance(response, StreamResponse):
            response.check = Standing(request, services, principal).check
        await auditing.note_request(call, response)
        return response

    return Route(operation.path, _Endpoint(operation, answer), methods=list(operation.methods))


def _public(services: Services, operation: Operation) -> Route:
    async def answer(request: Request) -> Response:
        response: Response = await operation.handler(request, services)
        return response

    return Route(operation.path, _Endpoint(operation, answer), methods=list(operation.methods))


class _Endpoint:
    """A route's end as ASGI. A plain function would do too, inside two handlers of errors that have none to handle."""

    def __init__(self, operation: Operation, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._path = operation.path
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["state"]["route"] = self._path
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)


# Single routes ------------------------------------------------------------------------------------------------


async def healthz(request: Request, services: Services) -> Response:
    """The process answers."""
    return PlainTextResponse("ok\n")


async def readyz(request: Request, services: Services) -> Response:
    """The process can do its work: 200 with ``degraded`` lines, or 503 whose first line is the failing check."""
    headers = {"X-Nodus-Release": __version__}
    if services.stopping.is_set():
        return PlainTextResponse("stopping\n", 503, headers)
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await services.store.read(objects.list_, PROJECT, None, limit=1)
    except Exception as error:  # noqa: BLE001 - whatever keeps the store from answering, the server is not ready
        return PlainTextResponse(f"store: {type(error).__name__}\n", 503, headers)
    lines = ["ok", *(f"degraded {line}" for line in services.degraded())]
    return PlainTextResponse("\n".join(lines) + "\n", 200, headers)


async def metrics_text(call: Call) -> Response:
    """Prometheus' text form, for keys that reach every project: the counts are over all of them."""
    if call.principal.projects:
        raise Forbidden(f"{call.principal.name} does not reach every project", fix="Use a key without projects.")
    counts = await call.services.store.read(_count_objects)
    return Response(call.services.metrics.render(counts), media_type=metrics.CONTENT_TYPE)


def _count_objects(conn: Connection) -> dict[str, int]:
    return {kind.name: listing.count(conn, kind, None) for kind in KINDS.values()}


async def configuration(request: Request, services: Services) -> Response:
    """What a client may know before it logs in: where the console is, and which model a run gets that names none."""
    has_gpu = bool(machine.describe().gpus)
    found = {
        "consoleURL": blobs.origin(request, services),
        "version": __version__,
        "device": "GPU" if has_gpu else "CPU",
        "defaultModel": services.models.default_model(has_gpu=has_gpu) if services.models is not None else None,
    }
    return json_response({key: value for key, value in found.items() if value is not None})


async def get_whoami(call: Call) -> Response:
    """Who the key or token is."""
    store = call.services.store
    found = await store.read(objects.list_, PROJECT, None)
    reach = call.principal.projects
    projects = [project.name for project in found.items if project.name != CATALOG_PROJECT]
    projects = [name for name in projects if not reach or name in reach]
    org = await store.read(objects.find_by_uid, store.org)
    body = whoami(call.principal, store.org, org_name(call.services, org), projects)
    if call.principal.attempt is None:
        body["availableUSD"] = format_usd((await store.read(ledger.balance)).available)
    return json_response(body)


async def get_namespace(call: Call) -> Response:
    """``/api/v1/namespaces/{project}``: whether a project is there, in the form clients probe for."""
    name = call.params["project"]
    if not call.principal.sees(name):
        raise NotFound(f'projects "{name[:63]}" not found')
    await call.services.store.read(reading.require_project, name)
    return json_response({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}})


HEALTH: tuple[Operation, ...] = (
    Operation("/healthz", healthz, public=True, answer=None),
    Operation("/readyz", readyz, public=True, answer=None),
)
"""What a server of any role answers."""

OPERATIONS: tuple[Operation, ...] = (
    Operation(blobs.DOWNLOAD_PATH + "{sha256}", blobs.get_signed, public=True, answer=None),
    Operation(
        blobs.UPLOAD_PATH + "{sha256}", blobs.put_upload, ("PUT",), public=True, status=201,
        body={"type": "string", "format": "binary"},
    ),
    Operation("/.well-known/nodus-configuration", configuration, public=True),
    Operation("/metrics", metrics_text, answer=None),
    Operation(
        usage.PATH, usage.query, ("GET", "POST"), query=(Param("query", "What is asked; POST takes it as a form."),)
    ),
    Operation("/self", attempt_api.self_),
    Operation("/_nodus/v1/volumes/{name}/{verb}", volumesync.sync, ("POST",)),
    Operation("/auth/whoami", get_whoami),
    Operation(openapi.INDEX, openapi.index),
    Operation(openapi.INDEX + "/apis/nodus.dev/{version}", openapi.of_version),
    Operation(openapi.INDEX + "/" + openapi.SERVER, openapi.of_server),
    Operation("/openapi.json", openapi.everything),
    Operation("/api", discovery.core),
    Operation("/api/v1/namespaces/{project}", get_namespace),
    Operation("/apis", discovery.groups),
    Operation("/apis/nodus.dev", discovery.group),
    Operation("/apis/nodus.dev/{version}", discovery.resources),
    Operation("/blobs/v1/namespaces/{project}/uploads", blobs.grant_upload, ("POST",), body={"type": "object"}),
    Operation("/blobs/v1/namespaces/{project}/blobs/{sha256}", blobs.get_blob, answer=None, status=302),
    *login_routes.OPERATIONS,
)  # fmt: skip
"""Every route beside the kinds' own."""


def describe_routes(app: Any) -> list[tuple[str, frozenset[str]]]:
    """Path templates and methods of an application, for tests over all routes."""
    return [(route.path, frozenset(route.methods or ())) for route in app.app.router.routes]
