"""Sends one HTTP request, blocking or awaited: the only place where the client's logic touches a socket.

`open_exchange` and `pause` are the client's whole input and output. Driven by a blocking call they use the standard
library's ``http.client`` (a third of httpx's import time, which the command line feels) and block; in an event loop
they use httpx. Neither follows redirects: where a redirect leads and which headers go along is the caller's decision.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ParamSpec, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, finalize

from nodus.client.blocking import is_blocking
from nodus.core.errors import NodusError

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
R = TypeVar("R")
CONNECT_TIMEOUT_S = 10.0
CHUNK_BYTES = 256 * 1024


class TransportError(Exception):
    """No answer came: refused, reset, timed out. ``sent`` tells whether the server may have seen the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class FilePart:
    """A stretch of a file, as a request's body."""

    path: Path
    offset: int
    size: int
    """Bytes."""


Body = bytes | Path | FilePart
"""Bytes, a file to send whole, or a part of one."""


def length_of(body: Body) -> int:
    """Return how many bytes a body has."""
    if isinstance(body, FilePart):
        return body.size
    return body.stat().st_size if isinstance(body, Path) else len(body)


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, complete."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    timeout_s: float | None = 60.0
    """Longest silence of the server; None waits for ever."""
    sent: Callable[[int], None] | None = None
    """Is told the number of bytes of the body each time some are about to go out."""


class Exchange(Protocol):
    """A response whose body has not been read yet. Close it, or read it to its end."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives."""

    async def read(self) -> bytes:
        """Return the rest of the body and close."""

    async def close(self) -> None:
        """Drop the rest of the body."""


class Transport:
    """Opens exchanges with one server, over TCP, TLS or a unix socket. Thread-safe."""

    def __init__(self, *, socket_path: str | None = None, certificate_authority: str | None = None) -> None:
        self._socket_path = socket_path
        self._certificate_authority = certificate_authority
        self._idle: dict[str, list[http.client.HTTPConnection]] = {}
        # Nobody has to close a client: its sockets go with it.
        finalize(self, _close_all, self._idle)
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        # One client an event loop: httpx's connections belong to the loop that made them.
        self._clients: WeakKeyDictionary[Any, httpx.AsyncClient] = WeakKeyDictionary()

    async def open(self, request: Request) -> Exchange:
        """Send a request and return its response, body unread.

        Raises:
            TransportError: When no response came.
        """
        if is_blocking():
            return self._open_blocking(request)
        return await self._open_async(request)

    def close(self) -> None:
        """Close idle connections. The transport can still be used afterwards."""
        with self._lock:
            _close_all(self._idle)

    async def aclose(self) -> None:
        """Close what the running event loop holds. The transport can still be used afterwards."""
        import asyncio

        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    # ---------------------------------------------------------------------------------------------- blocking
    def _open_blocking(self, request: Request) -> Exchange:
        parts = urlsplit(request.url)
        origin = f"{parts.scheme}://{parts.netloc}"
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        while True:
            with self._lock:
                waiting = self._idle.get(origin)
                reused = waiting.pop() if waiting else None
            connection = reused or self._connect(parts.scheme, parts.hostname or "", parts.port, request)
            try:
                response = _exchange(connection, request, target)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if reused is not None and not isinstance(error, TimeoutError):
                    continue  # an idle connection the server had closed meanwhile; try a fresh one
                raise TransportError(_describe(error, origin), sent=True) from error
            except NodusError:
                connection.close()
                raise
            return _BlockingExchange(response, connection, partial(self._give_back, origin, connection))

    def _connect(self, scheme: str, host: str, port: int | None, request: Request) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._socket_path is not None and host == "nodus":
            connection = _UnixConnection(self._socket_path)
        elif scheme == "https":
            connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_S, context=self._ssl_context())
        else:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            where = (
                self._socket_path if isinstance(connection, _UnixConnection) else f"{scheme}://{host}:{connection.port}"
            )
            raise TransportError(_describe(error, str(where)), sent=False) from error
        return connection

    def _give_back(self, origin: str, connection: http.client.HTTPConnection) -> None:
        if connection.sock is None:
            return
        with self._lock:
            waiting = self._idle.setdefault(origin, [])
            if len(waiting) < 4:
                waiting.append(connection)
                return
        connection.close()

    def _ssl_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
            if self._certificate_authority:
                self._context.load_verify_locations(self._certificate_authority)
        return self._context

    # ------------------------------------------------------------------------------------------------- async
    async def _open_async(self, request: Request) -> Exchange:
        import httpx

        client = self._client()
        timeout = httpx.Timeout(request.timeout_s, connect=CONNECT_TIMEOUT_S)
        headers = dict(request.headers)
        content: bytes | AsyncIterator[bytes] | None = None
        if isinstance(request.body, bytes) and request.sent is None:
            content = request.body
        elif request.body is not None:
            headers["Content-Length"] = str(length_of(request.body))
            content = _chunks(request.body, request.sent)
        outgoing = client.build_request(request.method, request.url, headers=headers, content=content, timeout=timeout)
        try:
            return _AsyncExchange(await client.send(outgoing, stream=True))
        except httpx.HTTPError as error:
            sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise TransportError(_describe(error, request.url.split("?")[0]), sent=sent) from error

    def _client(self) -> httpx.AsyncClient:
        import asyncio

        import httpx

        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            # No idle connections: a loop that ends must not leave sockets open behind it.
            limits = httpx.Limits(max_keepalive_connections=0)
            transport = httpx.AsyncHTTPTransport(uds=self._socket_path, verify=self._ssl_context(), limits=limits)
            client = self._clients[loop] = httpx.AsyncClient(transport=transport, trust_env=False)
        return client


def _close_all(idle: dict[str, list[http.client.HTTPConnection]]) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()
    idle.clear()


async def pause(seconds: float) -> None:
    """Wait, on the thread in a blocking call, in the event loop otherwise."""
    if is_blocking():
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs this: a blocking call does
        return
    import asyncio

    await asyncio.sleep(seconds)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("nodus", timeout=CONNECT_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_TIMEOUT_S)
        self.sock.connect(self._path)


def _exchange(connection: http.client.HTTPConnection, request: Request, target: str) -> http.client.HTTPResponse:
    assert connection.sock is not None
    connection.sock.settimeout(request.timeout_s)
    headers = dict(request.headers)
    body: bytes | Iterator[bytes] | None = None
    if isinstance(request.body, bytes) and request.sent is None:
        body = request.body
    elif request.body is not None:
        headers["Content-Length"] = str(length_of(request.body))
        body = _pieces(request.body, request.sent)
    try:
        connection.request(request.method, target, body=body, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        if request.body is None:
            raise
        # A server that refuses says so before it has read the whole body; what it said may be here already.
        return connection.getresponse()
    return connection.getresponse()


def _pieces(body: Body, sent: Callable[[int], None] | None) -> Iterator[bytes]:
    left = length_of(body)
    with _opened(body) as file:
        while left and (chunk := file.read(min(CHUNK_BYTES, left))):
            left -= len(chunk)
            if sent is not None:
                sent(len(chunk))
            yield chunk
    if left:
        # Not an OSError: sending it again would not help.
        raise NodusError(f"{getattr(body, 'path', body)} became shorter while it was sent", fix="Send it again.")


def _opened(body: Body) -> BinaryIO:
    if isinstance(body, bytes):
        return BytesIO(body)
    file = (body.path if isinstance(body, FilePart) else body).open("rb")
    if isinstance(body, FilePart):
        file.seek(body.offset)
    return file


def _describe(error: Exception, where: str) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {where}"
    if isinstance(error, FileNotFoundError):
        return f"there is no socket at {where}"
    if isinstance(error, TimeoutError) or "timeout" in type(error).__name__.lower():
        return f"{where} did not answer in time"
    if isinstance(error, socket.gaierror):
        return f"{where}: the host name is unknown"
    if isinstance(error, OSError) and error.errno:
        return f"{where}: {os.strerror(error.errno) if error.errno > 0 else error}"
    return f"{where}: {error or type(error).__name__}"


class _BlockingExchange:
    def __init__(self, response: http.client.HTTPResponse, connection: http.client.HTTPConnection, done: Any) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.getheaders()}
        self._response, self._connection, self._done = response, connection, done
        self._ended = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for chunk in self._chunks():
            yield chunk

    def _chunks(self) -> Iterator[bytes]:
        finished = False
        try:
            while chunk := self._response.read1(CHUNK_BYTES):
                yield chunk
            if self._response.length:
                raise http.client.IncompleteRead(b"", self._response.length)
            finished = True
        except (OSError, http.client.HTTPException) as error:
            raise TransportError(
                f"the connection broke while reading: {error or type(error).__name__}", sent=True
            ) from error
        finally:
            self._end(reusable=finished)

    async def read(self) -> bytes:
        return b"".join(self._chunks())

    async def close(self) -> None:
        self._end(reusable=False)

    def _end(self, *, reusable: bool) -> None:
        if self._ended:
            return  # read to its end and then closed: the connection may serve another request by now
        self._ended = True
        reusable = reusable and not self._response.will_close
        self._response.close()
        if reusable:
            self._done()
        else:
            self._connection.close()


class _AsyncExchange:
    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self._response = response

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        import httpx

        try:
            async for chunk in self._response.aiter_raw():
                yield chunk
        except httpx.HTTPError as error:
            raise TransportError(
                f"the connection broke while reading: {error or type(error).__name__}", sent=True
            ) from error
        finally:
            await self._response.aclose()

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def close(self) -> None:
        await self._response.aclose()


async def _chunks(body: Body, sent: Callable[[int], None] | None) -> AsyncIterator[bytes]:
    for chunk in _pieces(body, sent):
        yield chunk


async def off_loop(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function that reads or computes for long: here in a blocking call, in a thread in an event loop."""
    if is_blocking():
        return function(*args, **kwargs)
    import asyncio

    return await asyncio.to_thread(function, *args, **kwargs)
