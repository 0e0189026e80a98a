"""The attempt's door to the API: HTTP on ``api.sock``, forwarded to the server with the attempt's token.

Runs in the supervisor; standard library only. The command inside the sandbox has no network and no credentials; it
talks HTTP/1.1 to ``/run/nodus/api.sock``. Every request is read whole (at most 8 MiB of body), gets the attempt's
token, and an Idempotency-Key when it has none, and is sent to the server whose address is in ``<data>/server.json``.
While the server is away or restarting, also on another port, the request is held and sent again; the key makes that
safe. It is given up only when the command goes away or the server gives an answer other than 502 or 503.

A reply that says how long it is, is read whole before any of it is passed on, so that a server that dies in the middle
of it costs a repetition and not a broken reply. Other replies are passed on as they come.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nodus.server.compute.local.httpmessages import (
    Refused,
    Request,
    closing,
    parse_reply_head,
    read_exactly,
    read_head,
    read_request,
    retry_after,
)

MAX_BUFFERED_REPLY_BYTES = 64 * 1024 * 1024
MAX_CONNECTIONS = 64
BACKLOG = 1024
READ_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 3600.0
"""A batch of gradings may take long; the attempt's own timeout is the bound that matters."""
RETRY_FIRST_S, RETRY_MAX_S = 0.05, 1.0

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "proxy-authorization"}
)
_OURS = frozenset({"host", "authorization", "content-length"})


class _Away(Exception):
    """The server can't be reached for now, or went away before its reply was whole."""

    def __init__(self, retry_after_s: float | None = None) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s


Local = Callable[[Request], "tuple[int, dict[str, Any]] | None"]
"""Answers a request without the server: status and body, or None to pass it on. Raises Refused."""


class Proxy:
    """Serves one attempt's socket on threads of its own.

    Args:
        listener: A listening unix socket.
        server_json: The file in which the server writes where it listens: ``{"url": "http://127.0.0.1:8080"}``.
        token: The attempt's bearer token.
        local: Answers what is not the server's to answer.
    """

    def __init__(
        self, listener: socket.socket, server_json: Path, token: str, local: Local = lambda request: None
    ) -> None:
        self._listener = listener
        self._local = local
        self._server_json = server_json
        self._token = token
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = threading.Event()

    def start(self) -> None:
        """Begin to accept connections; returns at once."""
        threading.Thread(target=self._accept, name="api-proxy", daemon=True).start()

    def close(self) -> None:
        """Stop accepting; requests in flight end with the process."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            self._slots.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError:
                self._slots.release()
                return
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:
                # The machine is out of processes for now: one at a time is slow and still an answer.
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(READ_TIMEOUT_S)
                try:
                    request = read_request(connection)
                    if request is not None:
                        self._answer(request, connection)
                except Refused as refused:
                    connection.sendall(_status_reply(refused))
        except OSError:
            pass  # The command went away, or sent nothing for a minute.
        finally:
            self._slots.release()

    def _answer(self, request: Request, client: socket.socket) -> None:
        answer = self._local(request)
        if answer is None:
            self._forward(request, client)
        else:
            status, body = answer
            client.sendall(_reply(status, "OK", body))

    def _forward(self, request: Request, client: socket.socket) -> None:
        key = request.header("idempotency-key") or f"attempt-{uuid.uuid4()}"
        delay_s = RETRY_FIRST_S
        while True:
            try:
                self._exchange(request, key, client)
                return
            except _Away as away:
                pause_s = max(delay_s, min(away.retry_after_s or 0.0, 10.0))
                delay_s = min(delay_s * 2, RETRY_MAX_S)
            if _gone_within(client, pause_s) or self._closed.is_set():
                return

    def _exchange(self, request: Request, key: str, client: socket.socket) -> None:
        """Send the request to the server once and pass its reply on.

        Raises:
            _Away: When the server could not be reached, and nothing was passed on yet.
        """
        upstream = self._connect()
        with upstream:
            try:
                upstream.sendall(self._head(request, key, upstream) + request.body)
                head, rest = read_head(upstream)
                status, headers = parse_reply_head(head)
            except (OSError, Refused) as error:
                raise _Away from error
            if status in (502, 503):
                raise _Away(retry_after(headers))
            head = closing(head)
            _relay(head, headers, rest, upstream, client, bodiless=request.method == "HEAD" or status in (204, 304))

    def _connect(self) -> socket.socket:
        try:
            url = urlsplit(str(json.loads(self._server_json.read_bytes())["url"]))
            port = url.port or (443 if url.scheme == "https" else 80)
            plain = socket.create_connection((url.hostname or "127.0.0.1", port), CONNECT_TIMEOUT_S)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _Away from error
        plain.settimeout(REPLY_TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _secure(plain) if url.scheme == "https" else plain

    def _head(self, request: Request, key: str, upstream: socket.socket) -> bytes:
        host = f"{upstream.getpeername()[0]}:{upstream.getpeername()[1]}"
        lines = [f"{request.method} {request.target} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {self._token}"]
        lines += [f"{k}: {v}" for k, v in request.headers if k.lower() not in _HOP_BY_HOP | _OURS | {"idempotency-key"}]
        if request.method not in ("GET", "HEAD"):
            lines += [f"Idempotency-Key: {key}", f"Content-Length: {len(request.body)}"]
        return ("\r\n".join([*lines, "Connection: close", "", ""])).encode("latin-1")


def _secure(plain: socket.socket) -> socket.socket:
    import ssl  # Late: only servers with TLS need it, and it takes 10 ms.

    context = ssl.create_default_context()
    # The address is this machine's, read from the data directory; a certificate names the public host instead.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return context.wrap_socket(plain)
    except OSError as error:
        plain.close()
        raise _Away from error


def listen(path: str) -> socket.socket:
    """Return a listening unix socket that every user inside the sandbox may connect to, replacing a stale one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, 0o666)
    # A connect that finds the backlog full fails at once for callers with a time-out.
    listener.listen(BACKLOG)
    return listener


def _relay(
    head: bytes, headers: dict[str, str], rest: bytes, upstream: socket.socket, client: socket.socket, *, bodiless: bool
) -> None:
    """Pass a reply on; whole, when its length is known and bounded."""
    length = headers.get("content-length", "")
    if not bodiless and length.isdigit() and int(length) <= MAX_BUFFERED_REPLY_BYTES:
        try:
            rest = read_exactly(upstream, rest, int(length))
        except OSError as error:
            raise _Away from error
        client.sendall(head + b"\r\n\r\n" + rest)
        return
    client.sendall(head + b"\r\n\r\n" + rest)
    while block := upstream.recv(65536):
        client.sendall(block)


def _gone_within(client: socket.socket, seconds: float) -> bool:
    """Wait, and tell whether the peer closed its connection meanwhile."""
    end = time.monotonic() + seconds
    poller = select.poll()
    poller.register(client, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    while (left_s := end - time.monotonic()) > 0:
        if poller.poll(left_s * 1000):
            return True
    return False


def _status_reply(refused: Refused) -> bytes:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": refused.status,
        "reason": refused.reason,
        "message": refused.message,
    }
    return _reply(refused.status, refused.reason, body)


def _reply(status: int, word: str, content: dict[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} {word}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
