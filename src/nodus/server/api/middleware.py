"""The outermost layer of every request: its id, its log line, its metrics, and the one place errors become Status."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nodus.core.errors import InternalError, MethodNotAllowed, NodusError, NotFound, class_for
from nodus.core.ids import new_id
from nodus.server.api.http import error_response
from nodus.server.logs import access_log, request_id_var
from nodus.server.metrics import Metrics

log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestMiddleware:
    """Gives every response an ``X-Request-Id`` and every failure a Status body, and writes one access line."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _given_request_id(scope) or new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id
        token = request_id_var.set(request_id)
        started = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        self.metrics.in_flight += 1
        try:
            await self.app(scope, receive, send_with_id)
        except Exception as raised:
            if status:
                log.exception("the response broke off", exc_info=raised)
                raise
            error = to_nodus_error(raised)
            if isinstance(error, InternalError):
                log.error("request failed", exc_info=raised)
            headers = getattr(raised, "headers", None)
            await error_response(error, request_id, headers)(scope, receive, send_with_id)
        finally:
            self.metrics.in_flight -= 1
            self._record(scope, status, time.perf_counter() - started)
            request_id_var.reset(token)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = _route_name(scope)
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        self.metrics.answered(route, method, status, seconds)
        state: dict[str, Any] = scope.get("state", {})
        ms, request_id = round(seconds * 1000, 1), state.get("request_id")
        access_log.note(scope["method"], scope["path"], status, ms, state.get("user"), request_id)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def _given_request_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            return text if _REQUEST_ID.fullmatch(text) else None
    return None


def _route_name(scope: Scope) -> str:
    """The route's template, never the path itself: labels must stay few."""
    return str(scope.get("state", {}).get("route") or "unmatched")


def to_nodus_error(raised: BaseException) -> NodusError:
    """Map anything a handler may raise to the error that is sent; an unknown one says nothing about its cause."""
    if isinstance(raised, NodusError):
        return raised
    if isinstance(raised, HTTPException):
        if raised.status_code == 404:
            return NotFound("there is nothing at this path", fix="`nodus api-resources` lists what this server has.")
        if raised.status_code == 405:
            return MethodNotAllowed("this path does not take that method")
        return class_for(None, raised.status_code)(str(raised.detail))
    return InternalError(
        "Nodus failed to handle this request; it is a fault of the server",
        fix="Look up the request id in the server's log.",
    )
