"""The attempt's API socket: what reaches the server, and what happens while the server is away."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from nodus.server.compute.local import proxy
from nodus.testing.eventually import eventually

from .conftest import Members


class Api:
    """An HTTP server that records what it is asked, and can be stopped and started on another port.

    Attributes:
        seen: (method, path, headers, body) of each request that was answered.
        failures: Statuses to answer next, before it answers 200 again.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.failures: list[int] = []
        self.cut_next = False
        self._server: http.server.ThreadingHTTPServer | None = None

    def up(self) -> int:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        port = int(self._server.server_address[1])
        (self.data_dir / "server.json").write_text(json.dumps({"url": f"http://127.0.0.1:{port}"}))
        return port

    def down(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _handler(api) -> type[http.server.BaseHTTPRequestHandler]:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if api.failures:
                    self.reply(api.failures.pop(0), b"{}")
                    return
                if api.cut_next:
                    api.cut_next = False
                    self.send_response(200)
                    self.send_header("Content-Length", "100")
                    self.end_headers()
                    self.wfile.write(b"only this")
                    self.close_connection = True
                    return
                api.seen.append((self.command, self.path, dict(self.headers), body))
                if self.path == "/stream":
                    self.stream()
                    return
                self.reply(200, b'{"got": %d}' % len(body))

            def reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def stream(self) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for number in range(3):
                    data = b"part%d\n" % number
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.flush()
                    api.stream_goes_on.wait(5)
                    api.stream_goes_on.clear()
                self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *arguments: Any) -> None:
                pass

        api.stream_goes_on = threading.Event()
        return Handler

    stream_goes_on: threading.Event


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    made = Api(tmp_path)
    made.up()
    yield made
    made.down()


@pytest.fixture
def client(api: Api, tmp_path: Path) -> Iterator[httpx.Client]:
    path = str(tmp_path / "api.sock")
    served = proxy.Proxy(proxy.listen(path), tmp_path / "server.json", "the-token")
    served.start()
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://nodus", timeout=20) as made:
        yield made
    served.close()


def test_request_gets_token_and_key_and_keeps_the_rest(api: Api, client: httpx.Client) -> None:
    reply = client.post("/apis/x?y=1", json={"a": 1}, headers={"Authorization": "Bearer stolen", "X-Mine": "kept"})
    [(method, path, headers, body)] = api.seen
    assert (reply.status_code, reply.json()) == (200, {"got": len(body)})
    assert (method, path, headers["Authorization"], headers["X-Mine"]) == (
        "POST",
        "/apis/x?y=1",
        "Bearer the-token",
        "kept",
    )
    assert headers["Idempotency-Key"]
    client.post("/apis/x", headers={"Idempotency-Key": "mine"})
    assert api.seen[1][2]["Idempotency-Key"] == "mine"
    # Each connection carries one request: a client that would keep it must be told.
    assert (reply.headers["Connection"], api.seen[0][2]["Connection"]) == ("close", "close")


def test_post_waits_for_a_server_that_is_away_and_arrives_once_at_its_new_port(api: Api, client: httpx.Client) -> None:
    old = client.get("/self").status_code
    api.down()
    replies: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: replies.append(client.post("/gradings", content=b"x" * 100_000)))
    thread.start()
    eventually(thread.is_alive)
    seen = len(api.seen)
    with socket.socket() as blocker:
        # The old port now belongs to somebody who never answers: the new address must be read again.
        blocker.bind(("127.0.0.1", 0))
        api.up()
        thread.join(10)
    assert (old, [reply.status_code for reply in replies], len(api.seen) - seen) == (200, [200], 1)


def test_503_and_502_are_tried_again_with_the_same_key_and_other_errors_are_passed_on(
    api: Api, client: httpx.Client
) -> None:
    api.failures = [503, 502, 422]
    assert client.post("/gradings", content=b"x").status_code == 422
    api.failures = [503]
    assert client.post("/gradings", content=b"x").json() == {"got": 1}


def test_reply_that_breaks_off_is_asked_for_again(api: Api, client: httpx.Client) -> None:
    api.cut_next = True
    assert client.post("/gradings", content=b"x").json() == {"got": 1}


def test_chunked_request_body_arrives_whole(api: Api, client: httpx.Client) -> None:
    client.post("/gradings", content=iter([b"a" * 70_000, b"b" * 10]))
    assert api.seen[0][3] == b"a" * 70_000 + b"b" * 10


def test_streamed_reply_comes_as_it_is_written(api: Api, client: httpx.Client) -> None:
    with client.stream("GET", "/stream") as reply:
        parts = reply.iter_lines()
        assert next(parts) == "part0"
        api.stream_goes_on.set()
        assert next(parts) == "part1"
        api.stream_goes_on.set()
        assert next(parts) == "part2"
        api.stream_goes_on.set()
        assert list(parts) == []


def test_body_over_8_mib_is_refused(api: Api, client: httpx.Client) -> None:
    reply = client.post("/gradings", content=b"x" * (8 * 1024 * 1024 + 1))
    assert (reply.status_code, reply.json()["reason"], api.seen) == (413, "RequestEntityTooLarge", [])


@pytest.mark.parametrize(
    "text", [b"NONSENSE\r\n\r\n", b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", b"GET / HTTP/9\r\n\r\n"]
)
def test_what_is_no_request_gets_400(api: Api, client: httpx.Client, tmp_path: Path, text: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(tmp_path / "api.sock"))
        raw.sendall(text)
        assert raw.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert api.seen == []


def test_many_connections_at_once_are_served(api: Api, client: httpx.Client, tmp_path: Path) -> None:
    replies: list[bytes] = []

    def ask() -> None:
        with socket.socket(socket.AF_UNIX) as own:
            own.settimeout(30)
            own.connect(str(tmp_path / "api.sock"))
            own.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 1\r\n\r\n1")
            replies.append(own.recv(1000).split(b"\r\n")[0])

    threads = [threading.Thread(target=ask) for _ in range(150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (set(replies), len(api.seen)) == ({b"HTTP/1.1 200 OK"}, 150)


@pytest.mark.sandbox
def test_command_in_a_sandbox_reaches_the_server_by_its_socket_alone(members: Members) -> None:
    api = Api(members.data_dir)
    api.up()
    script = (
        "import http.client, socket\n"
        "c = http.client.HTTPConnection('nodus'); c.sock = socket.socket(socket.AF_UNIX)\n"
        "c.sock.connect('/run/nodus/api.sock'); c.request('POST', '/self', b'hi')\n"
        "print(c.getresponse().read().decode())\n"
        "try:\n    socket.create_connection(('127.0.0.1', %d), 2)\n    print('reached')\n"
        "except OSError:\n    print('refused')\n"
    )
    port = json.loads((members.data_dir / "server.json").read_text())["url"].rsplit(":", 1)[1]
    state = members.run("python", "-c", script % int(port))
    api.down()
    assert (state.exit_code, members.output()) == (0, '{"got": 2}\nrefused\n')
    assert api.seen[0][2]["Authorization"] == "Bearer the-token"
