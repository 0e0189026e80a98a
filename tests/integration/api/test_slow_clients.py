"""Clients that send or read slowly, or speak something else, against a real server on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from nodus.server import protocol
from nodus.server.api import http as bodies
from nodus.server.services import Services
from nodus.testing.eventually import eventually
from tests.integration.api.helpers import JOBS


class Server:
    """The application behind uvicorn, in a thread of its own."""

    def __init__(self, app: Any, key: str) -> None:
        self.key = key
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = self._listening.getsockname()
        config = uvicorn.Config(
            app, http=protocol.BoundedProtocol, ws="websockets-sansio", log_config=None, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        eventually(lambda: self._server.started)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._server.serve([self._listening]))

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._listening.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=10)

    def head(self, method: str, path: str, **headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.key}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def exchange(self, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send bytes as they are and return what is answered until the connection ends."""
        with self.connect() as client:
            client.sendall(sent)
            return answer(client)


def answer(client: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read one answer that says how long it is."""
    received = bytearray()
    while b"\r\n\r\n" not in received:
        received += _more(client, received)
    head, _, rest = bytes(received).partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    body = bytearray(rest)
    while len(body) < int(headers["content-length"]):
        body += _more(client, body)
    return int(lines[0].split()[1]), headers, bytes(body)


def _more(client: socket.socket, received: bytearray) -> bytes:
    piece = client.recv(65536)
    assert piece, f"the connection ended after {bytes(received[:200])!r}"
    return piece


def assert_status(found: tuple[int, dict[str, str], bytes], status: int, reason: str) -> dict[str, Any]:
    code, headers, body = found
    shown: dict[str, Any] = json.loads(body)
    assert (code, shown["kind"], shown["code"], shown["reason"]) == (status, "Status", status, reason)
    assert headers["x-request-id"] == shown["requestId"]
    return shown


@pytest.fixture
def server(app: Any, opened: tuple[Services, str]) -> Iterator[Server]:
    running = Server(app, opened[1])
    yield running
    running.stop()


def test_body_that_trickles_in_is_given_up_and_others_are_served(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "JSON_BODY_TIMEOUT_S", 0.5)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(server.connect()) for _ in range(50)]
        for client in slow:
            client.sendall(server.head("POST", JOBS, Content_Length="1000") + b'{"metadata"')
        assert server.exchange(server.head("GET", JOBS))[0] == 200
        for client in slow:
            found = answer(client)
            assert "0.5 seconds" in assert_status(found, 400, "BadRequest")["message"]
            assert found[1]["connection"] == "close"
            assert client.recv(1) == b""


def test_upload_of_which_nothing_comes_any_more_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BODY_STALL_S", 0.2)
    with server.connect() as client:
        client.sendall(server.head("POST", JOBS, Transfer_Encoding="chunked") + b"5\r\n     \r\n")
        with contextlib.suppress(ConnectionError):
            assert client.recv(100) == b""


def test_watcher_that_does_not_read_is_cut_off(
    server: Server, services: Services, monkeypatch: pytest.MonkeyPatch, put: Any
) -> None:
    monkeypatch.setattr(protocol, "READER_STALL_S", 0.3)
    with server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(server.head("GET", f"{JOBS}?watch=true"))
        eventually(lambda: services.metrics.watches._value.get() == 1)
        for number in range(400):
            put("Job", f"j{number}", annotations={"a": "x" * 20_000})
        eventually(lambda: services.metrics.watches._value.get() == 0)
    assert server.exchange(server.head("GET", f"{JOBS}?limit=1"))[0] == 200


def test_slow_reader_that_goes_on_gets_all_of_a_large_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch, put: Any
) -> None:
    monkeypatch.setattr(protocol, "READER_STALL_S", 0.2)
    for number in range(100):
        put("Job", f"j{number}", annotations={"a": "x" * 20_000})
    with server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        client.sendall(server.head("GET", JOBS))
        status, _, body = answer(client)
    assert (status, len(json.loads(body)["items"])) == (200, 100)


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
        b"POST /apis HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /apis HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /apis HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=range(8),
)
def test_what_is_no_http_is_a_bad_request(server: Server, sent: bytes) -> None:
    code, headers, body = server.exchange(sent)
    if code != 401:  # the request line was fine, so that a handler answered before the rest was seen
        assert_status((code, headers, body), 400, "BadRequest")


def test_headers_without_end_are_refused_with_a_status(server: Server) -> None:
    with server.connect() as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * (protocol.HEADERS_LIMIT_BYTES + 1))
        assert_status(answer(client), 431, "BadRequest")


def test_header_values_of_a_client_come_back_in_no_header(server: Server) -> None:
    sent = server.head("GET", "/nope%0d%0aSet-Cookie:%20a=b", X_Request_Id="a\tb", Accept="x\ty")
    status, headers, _ = server.exchange(sent)
    assert status == 404
    assert "set-cookie" not in headers
    assert headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("path", ["/healthz", JOBS, f"{JOBS}?watch=true", f"{JOBS}/nope", "/nope", "/openapi/v3"])
def test_head_has_the_headers_of_get_and_no_body(server: Server, path: str) -> None:
    with server.connect() as client:
        client.sendall(server.head("HEAD", path) + server.head("GET", "/healthz", Connection="close"))
        received = b""
        while piece := client.recv(65536):
            received += piece
    first, second = received.split(b"HTTP/1.1 ")[1:]
    assert first.partition(b"\r\n\r\n")[2] == b""
    assert b"x-request-id" in first
    assert second.endswith(b"ok\n")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("OPTIONS", JOBS, None),
        ("PUT", JOBS, {"GET", "POST"}),
        ("POST", f"{JOBS}/x", {"GET", "PUT", "PATCH", "DELETE"}),
        ("DELETE", "/apis/nodus.dev/v1/offerings/x", {"GET"}),
        ("TRACE", "/healthz", None),
    ],
)
def test_methods_that_do_not_fit_name_those_that_do(
    server: Server, method: str, path: str, allowed: set[str] | None
) -> None:
    found = server.exchange(server.head(method, path))
    assert_status(found, 405, "MethodNotAllowed")
    named = set(found[1]["allow"].split(", "))
    assert named == allowed if allowed is not None else named


def test_a_websocket_where_there_is_none_is_refused_with_a_status(server: Server) -> None:
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": key}
    assert_status(server.exchange(server.head("GET", "/apis", **upgrade)), 404, "NotFound")
