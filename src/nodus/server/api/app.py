"""The ASGI application: routes, and the layers every request passes through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from nodus._version import __version__
from nodus.core.errors import Forbidden, MethodNotAllowed, NotFound
from nodus.core.kinds import KINDS, PROJECT, VOLUME, Kind
from nodus.server import machine, metrics
from nodus.server.api import attempt_api, blobs, discovery, reading, resources, streams, volumes
from nodus.server.api.auth import CATALOG_PROJECT, authenticate, whoami
from nodus.server.api.call import Call, checked_name, kind_of
from nodus.server.api.http import json_response
from nodus.server.api.middleware import RequestMiddleware
from nodus.server.services import Services
from nodus.server.store import listing, objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

Handler = Callable[[Call], Awaitable[Response]]
PublicHandler = Callable[[Request, Services], Awaitable[Response]]
READY_TIMEOUT_S = 5.0


def create_app(services: Services) -> ASGIApp:
    """The application of one server."""
    return RequestMiddleware(_App(services), services.metrics)


class _App:
    """A router that knows the services. Its routes raise; the middleware outside turns errors into Status bodies."""

    def __init__(self, services: Services) -> None:
        self.router = Router(routes=_routes(services), redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        scope["app"] = self  # makes the router raise instead of answering in plain text
        await self.router(scope, receive, send)


def _routes(services: Services) -> list[Route]:
    health = [_public(services, "/healthz", healthz), _public(services, "/readyz", readyz)]
    if "api" not in services.settings.roles:
        return health
    namespaced, org = "/apis/nodus.dev/{version}/namespaces/{project}/{plural}", "/apis/nodus.dev/{version}/{plural}"
    found = [
        *health,
        _public(services, blobs.DOWNLOAD_PATH + "{sha256}", blobs.get_signed),
        _public(services, blobs.UPLOAD_PATH + "{sha256}", blobs.put_upload, ("PUT",)),
        _public(services, "/.well-known/nodus-configuration", configuration),
    ]
    for path, handler, methods in (
        ("/metrics", metrics_text, ("GET",)),
        ("/self", attempt_api.self_, ("GET",)),
        ("/auth/whoami", get_whoami, ("GET",)),
        ("/api", discovery.core, ("GET",)),
        ("/api/v1/namespaces/{project}", get_namespace, ("GET",)),
        ("/apis", discovery.groups, ("GET",)),
        ("/apis/nodus.dev/{version}", get_version, ("GET",)),
        ("/blobs/v1/namespaces/{project}/uploads", blobs.grant_upload, ("POST",)),
        ("/blobs/v1/namespaces/{project}/blobs/{sha256}", blobs.get_blob, ("GET",)),
        (namespaced, resources.collection, _ALL),
        (namespaced + "/{name}", resources.item, _ALL),
        (namespaced + "/{name}/{sub:path}", subresource, _ALL),
        (org, resources.collection, _ALL),
        (org + "/{name}", resources.item, _ALL),
        (org + "/{name}/{sub:path}", subresource, _ALL),
    ):
        found.append(_authenticated(services, path, handler, methods))
    return found


_ALL = ("GET", "POST", "PUT", "PATCH", "DELETE")


def _authenticated(services: Services, path: str, handler: Handler, methods: tuple[str, ...]) -> Route:
    async def endpoint(request: Request) -> Response:
        request.scope["state"]["route"] = path
        principal = await authenticate(request, services)
        params = dict(request.path_params)
        if "project" in params:
            params["project"] = checked_name(PROJECT, params["project"])
        return await handler(Call(request, services, principal, params))

    return Route(path, endpoint, methods=list(methods))


def _public(services: Services, path: str, handler: PublicHandler, methods: tuple[str, ...] = ("GET",)) -> Route:
    async def endpoint(request: Request) -> Response:
        request.scope["state"]["route"] = path
        return await handler(request, services)

    return Route(path, endpoint, methods=list(methods))


# Subresources -------------------------------------------------------------------------------------------------


async def subresource(call: Call) -> Response:
    """``.../{plural}/{name}/{sub}``: what a kind has besides its objects."""
    kind = kind_of(call.params)
    first, _, rest = call.params["sub"].partition("/")
    if first not in kind.subresources or (kind.namespaced and call.project is None):
        raise NotFound(
            f"{kind.plural} have no {first[:60]!r}",
            fix=f"They have: {', '.join(kind.subresources) or 'nothing below'}.",
        )
    if kind is VOLUME:
        return await _volume_subresource(call, first, rest)
    return await _run_subresource(call, kind, first, rest)


async def _run_subresource(call: Call, kind: Kind, first: str, rest: str) -> Response:
    if first == "outputs" and call.method == "GET":
        return await (streams.output(call, kind, rest) if rest else streams.outputs(call, kind))
    handlers: dict[tuple[str, str], Callable[[Call, Kind], Awaitable[Response]]] = {
        ("log", "GET"): streams.log,
        ("taskevents", "GET"): attempt_api.get_taskevents,
        ("taskevents", "POST"): attempt_api.post_taskevents,
        ("tasks", "POST"): attempt_api.tasks,
        ("gradings", "POST"): attempt_api.gradings,
    }
    handler = handlers.get((first, call.method))
    if handler is None or rest:
        raise _no_method(call, [method for sub, method in handlers if sub == first] or ["GET"])
    return await handler(call, kind)


async def _volume_subresource(call: Call, first: str, rest: str) -> Response:
    match (first, rest.split("/") if rest else [], call.method):
        case ("revisions", [], "GET"):
            return await volumes.revisions(call)
        case ("files", [], "GET"):
            return await volumes.files(call)
        case ("uploads", [], "POST"):
            return await volumes.begin_upload(call)
        case ("uploads", [upload], "PUT"):
            return await volumes.commit_upload(call, upload)
        case ("uploads", [upload, "files"], "PUT"):
            return await volumes.put_file(call, upload)
        case ("uploads", [upload, "files"], "DELETE"):
            return await volumes.delete_file(call, upload)
    raise _no_method(call, ["GET", "POST", "PUT"])


def _no_method(call: Call, allowed: list[str]) -> MethodNotAllowed:
    return MethodNotAllowed(f"{call.request.method} does not fit this path", details={"allowed": sorted(set(allowed))})


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
        "consoleURL": services.base_url,
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
    return json_response(whoami(call.principal, store.org, call.services.settings.org_name, projects))


async def get_namespace(call: Call) -> Response:
    """``/api/v1/namespaces/{project}``: whether a project is there, in the form clients probe for."""
    name = call.params["project"]
    if not call.principal.sees(name):
        raise NotFound(f'projects "{name[:63]}" not found')
    await call.services.store.read(reading.require_project, name)
    return json_response({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}})


async def get_version(call: Call) -> Response:
    """The resources of one API version."""
    if call.params["version"] not in discovery.VERSIONS:
        raise NotFound(f"the API has no version {call.params['version'][:60]!r}", fix="It has v1 and v1beta1.")
    return await discovery.resources(call)


def describe_routes(app: Any) -> list[tuple[str, frozenset[str]]]:
    """Path templates and methods of an application, for tests over all routes."""
    return [(route.path, frozenset(route.methods or ())) for route in app.app.router.routes]
