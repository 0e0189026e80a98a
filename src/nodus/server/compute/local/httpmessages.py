"""Reading HTTP/1.1 messages from sockets: just what the attempt's proxy needs. Standard library only."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import NamedTuple

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 8 * 1024 * 1024


class Refused(Exception):
    """The message isn't one that is passed on; ``status`` and the message say why."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class Request(NamedTuple):
    """A request as the command sent it, body and all."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the first header of that name, or None."""
        return next((value for key, value in self.headers if key.lower() == name), None)


def read_request(connection: socket.socket) -> Request | None:
    """Read one request and its body; None when the peer closed without sending one.

    Raises:
        Refused: When it is no HTTP/1.1 request, or too large.
    """
    head, rest = read_head(connection)
    if not head:
        return None
    try:
        text = head.decode("latin-1")
        line, *fields = text.split("\r\n")
        method, target, version = line.split(" ")
        headers = [(k.strip(), v.strip()) for k, v in (field.split(":", 1) for field in fields if field)]
    except ValueError:
        raise Refused(400, "BadRequest", "this is not an HTTP/1.1 request") from None
    if {"\r", "\n"} & set(text.replace("\r\n", "")):
        raise Refused(400, "BadRequest", "the head has a line break that is none of HTTP's")  # it would begin a header
    if not version.startswith("HTTP/1.") or not target.startswith("/") or not method.isalpha():
        raise Refused(400, "BadRequest", f"{line[:200]!r} is not a request this socket takes")
    request = Request(method, target, headers, b"")
    if (request.header("expect") or "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if "chunked" in (request.header("transfer-encoding") or "").lower():
        body = b"".join(_chunks(connection, rest))
    else:
        body = read_exactly(connection, rest, _content_length(request.header("content-length")))
    return request._replace(body=body)


def _content_length(text: str | None) -> int:
    if text is None:
        return 0
    # Not every sign that Unicode has for a digit is one, and Python refuses to read a number of thousands of them.
    if not (text.isascii() and text.isdecimal()):
        raise Refused(400, "BadRequest", f"Content-Length {text[:40]!r} is not a number")
    if len(text) > 18 or int(text) > MAX_BODY_BYTES:
        raise _too_large()
    return int(text)


def _too_large() -> Refused:
    return Refused(413, "RequestEntityTooLarge", f"the body is over {MAX_BODY_BYTES} bytes; send it in parts")


def read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return a message's head without the empty line, and what came after it. Both empty at a clean end."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        if len(data) > MAX_HEAD_BYTES:
            raise Refused(431, "BadRequest", f"the head is over {MAX_HEAD_BYTES} bytes")
        block = connection.recv(65536)
        if not block:
            if data:
                raise ConnectionError("the connection ended within a head")
            return b"", b""
        data += block
    return data[:end], data[end + 4 :]


def read_exactly(connection: socket.socket, rest: bytes, length: int) -> bytes:
    """Return ``length`` bytes, of which ``rest`` was read already.

    Raises:
        ConnectionError: When the connection ended before.
    """
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
            raise Refused(400, "BadRequest", "the chunked body is malformed") from None
        total += length
        if length < 0 or total > MAX_BODY_BYTES:
            raise _too_large()
        block = read_exactly(connection, rest, length + 2)
        rest = rest[length + 2 :]
        if length == 0:
            return
        yield block[:length]


def parse_reply_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return a reply's status and its headers, names in lower case.

    Raises:
        ConnectionError: When it has no status line.
    """
    lines = head.decode("latin-1").split("\r\n")
    try:
        status = int(lines[0].split(" ")[1])
    except (IndexError, ValueError):
        raise ConnectionError("the reply has no status line") from None
    fields = (line.partition(":") for line in lines[1:])
    return status, {key.strip().lower(): value.strip() for key, _, value in fields}


def closing(head: bytes) -> bytes:
    """Return a reply's head that says, whatever it said, that the connection is closed after it."""
    line, *fields = head.split(b"\r\n")
    kept = [field for field in fields if field.partition(b":")[0].strip().lower() not in (b"connection", b"keep-alive")]
    return b"\r\n".join([line, *kept, b"Connection: close"])


def retry_after(headers: dict[str, str]) -> float | None:
    """Return the seconds of a Retry-After header, or None."""
    try:
        return float(headers["retry-after"])
    except (KeyError, ValueError):
        return None
