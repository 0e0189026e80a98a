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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_BUFFERED_REPLY_BYTES = 64 * 1024 * 1024
MAX_CONNECTIONS = 64
READ_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 3600.0
"""A batch of gradings may take long; the attempt's own timeout is the bound that matters."""
RETRY_FIRST_S, RETRY_MAX_S = 0.05, 1.0

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "proxy-authorization"}
)
_OURS = frozenset({"host", "authorization", "content-length"})


class _Refused(Exception):
    """The request isn't forwarded; ``status`` and the message say why."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class _Away(Exception):
    """The server can't be reached for now, or went away before its reply was whole."""

    def __init__(self, retry_after_s: float | None = None) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s


class Request(NamedTuple):
    """A request as the command sent it, body and all."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the first header of that name, or None."""
        return next((value for key, value in self.headers if key.lower() == name), None)


class Proxy:
    """Serves one attempt's socket on threads of its own.

    Args:
        listener: A listening unix socket.
        server_json: The file in which the server writes where it listens: ``{"url": "http://127.0.0.1:8080"}``.
        token: The attempt's bearer token.
    """

    def __init__(self, listener: socket.socket, server_json: Path, token: str) -> None:
        self._listener = listener
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
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(READ_TIMEOUT_S)
                try:
                    request = read_request(connection)
                    if request is not None:
                        self._forward(request, connection)
                except _Refused as refused:
                    connection.sendall(_status_reply(refused))
        except OSError:
            pass  # The command went away, or sent nothing for a minute.
        finally:
            self._slots.release()

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
                head, rest = _read_head(upstream)
            except (OSError, _Refused) as error:
                raise _Away from error
            status, headers = _parse_reply_head(head)
            if status in (502, 503):
                raise _Away(_retry_after(headers))
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
        if url.scheme != "https":
            return plain
        return _secure(plain, self._server_json)

    def _head(self, request: Request, key: str, upstream: socket.socket) -> bytes:
        host = f"{upstream.getpeername()[0]}:{upstream.getpeername()[1]}"
        lines = [f"{request.method} {request.target} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {self._token}"]
        lines += [f"{k}: {v}" for k, v in request.headers if k.lower() not in _HOP_BY_HOP | _OURS | {"idempotency-key"}]
        if request.method not in ("GET", "HEAD"):
            lines += [f"Idempotency-Key: {key}", f"Content-Length: {len(request.body)}"]
        return ("\r\n".join([*lines, "Connection: close", "", ""])).encode("latin-1")


def _secure(plain: socket.socket, server_json: Path) -> socket.socket:
    import ssl  # Late: only servers with TLS need it, and it takes 10 ms.

    context = ssl.create_default_context()
    with contextlib.suppress(OSError, ValueError, KeyError):
        context.load_verify_locations(str(json.loads(server_json.read_bytes())["caFile"]))
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
    listener.listen(MAX_CONNECTIONS)
    return listener


def read_request(connection: socket.socket) -> Request | None:
    """Read one request and its body; None when the peer closed without sending one.

    Raises:
        _Refused: When it is no HTTP/1.1 request, or too large.
    """
    head, rest = _read_head(connection)
    if not head:
        return None
    try:
        line, *fields = head.decode("latin-1").split("\r\n")
        method, target, version = line.split(" ")
        headers = [(k.strip(), v.strip()) for k, v in (field.split(":", 1) for field in fields if field)]
    except ValueError:
        raise _Refused(400, "BadRequest", "this is not an HTTP/1.1 request") from None
    if not version.startswith("HTTP/1.") or not target.startswith("/") or not method.isalpha():
        raise _Refused(400, "BadRequest", f"{line[:200]!r} is not a request this socket takes")
    request = Request(method, target, headers, b"")
    if (request.header("expect") or "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if "chunked" in (request.header("transfer-encoding") or "").lower():
        body = b"".join(_chunks(connection, rest))
    else:
        body = _read_exactly(connection, rest, _content_length(request.header("content-length")))
    return request._replace(body=body)


def _content_length(text: str | None) -> int:
    if text is None:
        return 0
    if not text.isdigit():
        raise _Refused(400, "BadRequest", f"Content-Length {text[:40]!r} is not a number")
    if int(text) > MAX_BODY_BYTES:
        raise _too_large()
    return int(text)


def _too_large() -> _Refused:
    return _Refused(413, "RequestEntityTooLarge", f"the body is over {MAX_BODY_BYTES} bytes; send it in parts")


def _read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return a message's head without the empty line, and what came after it. Both empty at a clean end."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        if len(data) > MAX_HEAD_BYTES:
            raise _Refused(431, "BadRequest", f"the head is over {MAX_HEAD_BYTES} bytes")
        block = connection.recv(65536)
        if not block:
            if data:
                raise ConnectionError("the connection ended within a head")
            return b"", b""
        data += block
    return data[:end], data[end + 4 :]


def _read_exactly(connection: socket.socket, rest: bytes, length: int) -> bytes:
    parts, missing = [rest[:length]], length - len(rest)
    while missing > 0:
        block = connection.recv(min(missing, 1024 * 1024))
        if not block:
            raise ConnectionError("the connection ended within a body")
        parts.append(block)
        missing -= len(block)
    return b"".join(parts)


def _chunks(connection: socket.socket, rest: bytes) -> Iterator[bytes]:
    total = 0
    while True:
        while b"\r\n" not in rest:
            block = connection.recv(65536)
            if not block or len(rest) > MAX_HEAD_BYTES:
                raise ConnectionError("the connection ended within a chunked body")
            rest += block
        line, _, rest = rest.partition(b"\r\n")
        try:
            length = int(line.split(b";")[0], 16)
        except ValueError:
            raise _Refused(400, "BadRequest", "the chunked body is malformed") from None
        total += length
        if length < 0 or total > MAX_BODY_BYTES:
            raise _too_large()
        block = _read_exactly(connection, rest, length + 2)
        rest = rest[length + 2 :]
        if length == 0:
            return
        yield block[:length]


def _parse_reply_head(head: bytes) -> tuple[int, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    try:
        status = int(lines[0].split(" ")[1])
    except (IndexError, ValueError):
        raise _Away from None
    fields = (line.partition(":") for line in lines[1:])
    return status, {key.strip().lower(): value.strip() for key, _, value in fields}


def _retry_after(headers: dict[str, str]) -> float | None:
    try:
        return float(headers["retry-after"])
    except (KeyError, ValueError):
        return None


def _relay(
    head: bytes, headers: dict[str, str], rest: bytes, upstream: socket.socket, client: socket.socket, *, bodiless: bool
) -> None:
    """Pass a reply on; whole, when its length is known and bounded."""
    length = headers.get("content-length", "")
    if not bodiless and length.isdigit() and int(length) <= MAX_BUFFERED_REPLY_BYTES:
        try:
            rest = _read_exactly(upstream, rest, int(length))
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


def _status_reply(refused: _Refused) -> bytes:
    body = json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": refused.status,
            "reason": refused.reason,
            "message": refused.message,
        }
    ).encode()
    head = f"HTTP/1.1 {refused.status} {refused.reason}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
