"""The control plane's HTTP as the client speaks it: credentials, retries, and errors rebuilt as their own class.

A request that may be repeated (every verb but POST, and POST with an Idempotency-Key) is retried on connection errors
and on the reasons whose class is ``retryable``. The wait is the server's ``Retry-After``, else half a second doubling
to 30 s. How long to go on is the `RetryPolicy`'s.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack
from urllib.parse import quote, urlencode

from nodus._version import __version__
from nodus.client.config import Connection
from nodus.client.transport import (
    Body,
    Exchange,
    FilePart,
    Request,
    Transport,
    TransportError,
    length_of,
    pause,
)
from nodus.core.errors import InternalError, NodusError, from_status

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
TIMEOUT_S = 60.0
METERED_BYTES = 1024 * 1024
Meter = Callable[[str, int], Callable[[int], None]]


class ConnectionFailed(NodusError):
    """The server can't be reached; the message names the address."""

    reason, status, retryable = "ConnectionFailed", 503, True


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a client goes on trying.

    Example::

        client = nodus.Client(retry=nodus.RetryPolicy(budget_s=30))
    """

    budget_s: float = 300.0
    """For a server that answered before: it may be restarting."""
    first_contact_s: float = 3.0
    """For connection errors while the server has never answered: it is probably not running."""
    internal_error_s: float = 20.0
    """For HTTP 500: repeating a fault for long looks like a hang."""
    only_when_told: bool = False
    """Retry an answer only where it carries ``Retry-After`` (the command line's manner)."""


PATIENT = RetryPolicy()
"""For programs: rides out a restart of the server."""
PROMPT = RetryPolicy(budget_s=30.0, first_contact_s=0.0, internal_error_s=0.0, only_when_told=True)
"""For the command line: a person is waiting."""


class RequestOptions(TypedDict, total=False):
    """What a request may carry besides its method and path."""

    query: Mapping[str, object] | None
    """None values are left out."""
    body: object
    """JSON; bytes, files and parts of files go as they are."""
    headers: Mapping[str, str] | None
    """Beside or instead of the client's own."""
    idempotency_key: str | None
    """Makes a POST repeatable."""
    sent: Callable[[int], None] | None
    """Is told of each stretch of the body that goes out; the client's meter is then not asked."""
    timeout_s: float | None
    """Longest silence of the server, in seconds; the client's own when left out (120 for `Api.lines`), None waits for
    ever."""
    budget_s: float | None
    """Go on trying for this long at most, whatever the `RetryPolicy` allows."""


class Api:
    """Speaks HTTP to one server with one key. Thread-safe.

    Args:
        connection: Address, key and project.
        retry: How long to go on trying.
        timeout_s: Longest silence of the server within one answer, in seconds.
        agent: The User-Agent header; the Python client's when None.
        meter: Is asked, for each file of a megabyte or more that is sent or fetched, with its name and its bytes, for a
            function that is then told of each piece.
        log: Is given a line for each request and its answer: method, URL, status, milliseconds and request id; never
            a header, a body or the query of a signed URL.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        retry: RetryPolicy = PATIENT,
        timeout_s: float = TIMEOUT_S,
        agent: str | None = None,
        meter: Meter | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.connection = connection
        self.retry = retry
        self.timeout_s = timeout_s
        self.meter = meter
        self.log = log
        self.transport = Transport(
            socket_path=connection.socket, certificate_authority=connection.certificate_authority
        )
        self._answered = False
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        self._agent = agent or f"nodus-python/{__version__} python/{version}"

    async def call(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Any:
        """Send a request and return its decoded JSON answer; text where the answer is not JSON.

        Raises:
            NodusError: Of the class the server names; `ConnectionFailed` when no answer came.
        """
        return (await self.answer(method, path, **options)).content()

    async def answer(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Answer:
        """Like `call`, with status and headers beside the body."""
        for last in (method != "GET", True):
            exchange = await self.stream(method, path, **options)
            try:
                return Answer(exchange.status, exchange.headers, await exchange.read())
            except TransportError as error:
                if last:  # the body of a GET that broke off is asked for once more: the request is harmless
                    raise self._unreachable(error) from error
        raise AssertionError("the second try answers or raises")

    async def stream(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Exchange:
        """Send a request and return its successful (below 400) answer, body unread; retried like every request.

        Raises:
            NodusError: As `call`.
        """
        request = self._request(method, path, options)
        repeatable = method != "POST" or options.get("idempotency_key") is not None
        # A JSON patch that may have gone through must not be made twice: it can append to a list.
        harmless = repeatable and request.headers.get("Content-Type") != JSON_PATCH
        bound_s = options.get("budget_s")
        started, attempt = time.monotonic(), 0
        while True:
            try:
                exchange = await self._open(request)
            except TransportError as broken:
                error: NodusError = self._unreachable(broken)
                again = harmless or not broken.sent
                budget_s = self.retry.budget_s if self._answered else self.retry.first_contact_s
                told_s = None
            else:
                self._answered = True
                if exchange.status < 400:
                    return exchange
                error = await _error(exchange)
                told_s = error.retry_after_s
                again = repeatable and error.retryable and (told_s is not None or not self.retry.only_when_told)
                budget_s = self.retry.internal_error_s if isinstance(error, InternalError) else self.retry.budget_s
            wait_s = told_s if told_s is not None else min(30.0, 0.5 * 2**attempt)
            if bound_s is not None:
                budget_s = min(budget_s, bound_s)
            if not again or time.monotonic() - started + wait_s > budget_s:
                raise error
            await pause(wait_s)
            attempt += 1

    async def _open(self, request: Request, *, signed: bool = False) -> Exchange:
        """Send one request; its line in the log leaves out the query of a signed URL, which is a permission."""
        if self.meter is not None and request.body is not None and request.sent is None:
            size = length_of(request.body)
            if size >= METERED_BYTES:
                name = request.body.name if isinstance(request.body, Path) else "upload"
                request = replace(request, sent=self.meter(name, size))
        if self.log is None:
            return await self.transport.open(request)
        shown = f"{request.method} {request.url.partition('?')[0] if signed else request.url}"
        begun = time.monotonic()
        try:
            exchange = await self.transport.open(request)
        except TransportError as error:
            self.log(f"{shown} failed: {error}")
            raise
        identity = exchange.headers.get("x-request-id") or exchange.headers.get("nodus-request-id") or ""
        self.log(f"{shown} {exchange.status} in {(time.monotonic() - begun) * 1000:.0f} ms {identity}".rstrip())
        return exchange

    async def lines(self, method: str, path: str, **options: Unpack[RequestOptions]) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a streamed answer as they come, without their newline.

        Raises:
            NodusError: Before the first line as `call`; `ConnectionFailed` when the stream breaks off.
        """
        options.setdefault("timeout_s", 120.0)
        async with aclosing(self.lines_of(await self.stream(method, path, **options))) as lines:
            async for line in lines:
                yield line

    async def lines_of(self, exchange: Exchange) -> AsyncGenerator[bytes, None]:
        """Yield the lines of an open answer and close it.

        Raises:
            ConnectionFailed: When the stream breaks off.
        """
        rest = b""
        try:
            async with aclosing(exchange.chunks()) as chunks:
                async for chunk in chunks:
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line
            if rest:
                yield rest
        except TransportError as error:
            raise self._unreachable(error) from error
        finally:
            await exchange.close()

    async def fetch(self, url: str, what: str = "download", offset: int = 0) -> Exchange:
        """Open an absolute URL that a redirect or a grant named, without credentials.

        Args:
            url: Where the bytes are.
            what: What the meter calls them.
            offset: Ask for the bytes from there on; the answer is 206 where the server does that.

        Raises:
            NodusError: When it answers with an error or not at all.
        """
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
        try:
            exchange = await self._open(Request("GET", url, headers), signed=True)
        except TransportError as error:
            raise self._unreachable(error) from error
        if exchange.status >= 400:
            raise await _error(exchange)
        length = exchange.headers.get("content-length", "")
        if self.meter is not None and length.isdigit() and int(length) >= METERED_BYTES:
            return _Metered(exchange, self.meter(what, int(length)))
        return exchange

    async def put_grant(self, url: str, body: bytes | Path, headers: Mapping[str, str]) -> None:
        """Upload bytes to a granted URL, with the grant's headers and no credentials."""
        try:
            exchange = await self._open(Request("PUT", url, dict(headers), body, timeout_s=300.0), signed=True)
        except TransportError as error:
            raise self._unreachable(error) from error
        if exchange.status >= 400:
            raise await _error(exchange)
        await exchange.read()

    def url(self, path: str, query: Mapping[str, object] | None = None) -> str:
        """Return the absolute URL of an API path; None values are left out of the query.

        Raises:
            NodusError: When a name or a value is no text that a URL can hold, such as bytes of another encoding.
        """
        given = {key: _text(value) for key, value in (query or {}).items() if value is not None}
        try:
            quoted = quote(path, safe="/:@,;=~!$&'()*+") + (f"?{urlencode(given)}" if given else "")
        except UnicodeEncodeError as error:
            raise NodusError(f"{error.object!a} is not UTF-8 text", fix="Check the name for odd bytes.") from error
        return self.connection.url + quoted

    def _request(self, method: str, path: str, options: RequestOptions) -> Request:
        sent = {"User-Agent": self._agent, "Accept": JSON, "Accept-Encoding": "identity"}
        if self.connection.api_key:
            sent["Authorization"] = f"Bearer {self.connection.api_key}"
        if self.connection.org and not (self.connection.api_key or "").startswith("nodus_"):
            sent["Nodus-Org"] = self.connection.org
        key = options.get("idempotency_key")
        if key:
            sent["Idempotency-Key"] = key
        body = options.get("body")
        content: Body | None
        if body is None or isinstance(body, bytes | Path | FilePart):
            content = body
        else:
            sent["Content-Type"] = JSON
            content = json.dumps(body, allow_nan=False).encode()
        sent.update(options.get("headers") or {})
        silence_s = options.get("timeout_s", self.timeout_s)
        return Request(method, self.url(path, options.get("query")), sent, content, silence_s, options.get("sent"))

    def _unreachable(self, error: TransportError) -> ConnectionFailed:
        fix = "Start the server with `nodus up`, or check NODUS_API_URL."
        return ConnectionFailed(f"the Nodus server can't be reached: {error}", fix=None if error.sent else fix)


class _Metered:
    """An exchange that tells of every piece of its body that has arrived."""

    def __init__(self, exchange: Exchange, arrived: Callable[[int], None]) -> None:
        self.status, self.headers = exchange.status, exchange.headers
        self._exchange, self._arrived = exchange, arrived

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._exchange.chunks()) as chunks:
            async for chunk in chunks:
                self._arrived(len(chunk))
                yield chunk

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def close(self) -> None:
        await self._exchange.close()


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    def content(self) -> Any:
        """Return the body as JSON where it says so, else as text."""
        if not self.headers.get("content-type", "").startswith(JSON):
            return self.body.decode("utf-8", "replace")
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise NodusError(f"the server's answer is not valid JSON ({len(self.body)} bytes)") from error


def new_key(site: str) -> str:
    """Return a fresh Idempotency-Key for a call site, such as ``sdk:create:<32 hex digits>``."""
    return f"sdk:{site}:{os.urandom(16).hex()}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _error(exchange: Exchange) -> NodusError:
    request_id = exchange.headers.get("x-request-id") or exchange.headers.get("nodus-request-id")
    try:
        raw = await exchange.read()
    except TransportError:
        raw = b""
    try:
        body = json.loads(raw)
    except ValueError:
        body = {}
    error = from_status(body if isinstance(body, dict) else {}, exchange.status, request_id)
    told = exchange.headers.get("retry-after")
    if error.retry_after_s is None and told is not None:
        error.retry_after_s = _seconds(told)
    return error


def _seconds(retry_after: str) -> float | None:
    """Return what Retry-After says in seconds: it is a number of them, or the time to wait for."""
    if retry_after.isdigit():
        return float(retry_after)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None
