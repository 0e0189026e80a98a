"""HTTP over the run's own socket: the server's API with the run's identity, and what its supervisor answers itself."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

API_SOCKET = "/run/nodus/api.sock"
TIMEOUT_S = 600.0
"""Requests are held while the server is away."""


def call(
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    socket_path: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """Send a request and return the object that answers it.

    Args:
        method: HTTP method.
        path: Such as ``/self``.
        body: A JSON object.
        headers: Further ones.
        socket_path: The socket; the one of this run when left out.
        timeout_s: How long to wait for anything to come.

    Raises:
        nodus.errors.NodusError: Outside of a run, or the error that the answer says.
    """
    # Late: the errors load more than reporting needs.
    from nodus.core.errors import Unavailable, from_status

    at = socket_path or os.environ.get("NODUS_RUNTIME_SOCKET") or API_SOCKET
    connection = _UnixConnection(at, timeout_s)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        reply = connection.getresponse()
        text = reply.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"{method} {path}: the run's socket {at} can't be reached: {error}",
            fix="This works inside of a run of Nodus only, such as one started with `nodus run`.",
        ) from error
    finally:
        connection.close()
    try:
        answer = json.loads(text) if text.strip() else {}
    except ValueError:
        answer = {"message": text[:200].decode(errors="replace")}
    if not isinstance(answer, dict):
        answer = {"message": f"the answer is a {type(answer).__name__}"}
    if reply.status >= 400:
        raise from_status(answer, reply.status)
    return answer


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the unix socket in place of a host and port."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
