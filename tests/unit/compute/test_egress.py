"""What a build may reach: its proxy passes public and allowed places on, and nothing else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodus.server.compute.local.egress import Egress
from nodus.server.sources.guard import Guard
from tests.integration.grading.packageindex import Index


@pytest.fixture
def index() -> Iterator[Index]:
    found = Index()
    found.files["words"] = ("words", b"some words")
    yield found
    found.close()


Ask = Callable[[bytes], bytes]


@pytest.fixture
def refusals() -> list[str]:
    return []


@pytest.fixture
def ask(tmp_path: Path, index: Index, refusals: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Return what sends bytes to a proxy that may reach the index, and returns its answer."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    deep = tmp_path / ("d" * 90)  # longer than a socket's path may be
    deep.mkdir()
    egress = Egress(deep / "net.sock", Guard(()), [("127.0.0.1", index.port)], refusals.append)

    def send(data: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            monkeypatch.chdir(deep)
            client.connect("net.sock")
            client.sendall(data)
            answer = b""
            while block := client.recv(65536):
                answer += block
            return answer

    yield send
    egress.close()


def test_an_allowed_place_is_reached_both_ways(ask: Ask, index: Index) -> None:
    url = f"http://127.0.0.1:{index.port}/files/words".encode()
    answer = ask(b"GET " + url + b" HTTP/1.1\r\nHost: x\r\nProxy-Connection: keep-alive\r\n\r\n")
    assert answer.endswith(b"some words")
    tunnel = f"CONNECT 127.0.0.1:{index.port} HTTP/1.1\r\n\r\n".encode()
    answer = ask(tunnel + b"GET /files/words HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\n")
    assert answer.endswith(b"some words")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("CONNECT 127.0.0.1:1 HTTP/1.1", b"403"),
        ("CONNECT 169.254.169.254:80 HTTP/1.1", b"403"),
        ("CONNECT [::1]:80 HTTP/1.1", b"403"),
        ("CONNECT 0x7f000001:80 HTTP/1.1", b"403"),
        ("CONNECT 10.0.0.1:443 HTTP/1.1", b"403"),
        ("GET http://localhost/ HTTP/1.1", b"403"),
        ("GET http://127.1:8080/ HTTP/1.1", b"403"),
        ("GET ftp://127.0.0.1/ HTTP/1.1", b"400"),
        ("GET / HTTP/1.1", b"400"),
        ("CONNECT  HTTP/1.1", b"400"),
        ("CONNECT a:99999999 HTTP/1.1", b"400"),
        ("nonsense", b"400"),
        ("GET /" + "a" * 70_000 + " HTTP/1.1", b"431"),
    ],
)
def test_others_are_refused_and_told_of(ask: Ask, refusals: list[str], request_line: str, status: bytes) -> None:
    assert ask(request_line.encode() + b"\r\n\r\n").split(b" ")[1] == status
    assert len(refusals) == 1


def test_a_place_that_does_not_answer(ask: Ask, index: Index) -> None:
    index.close()
    assert b" 502 " in ask(f"CONNECT 127.0.0.1:{index.port} HTTP/1.1\r\n\r\n".encode())


def test_many_at_once(ask: Ask, index: Index) -> None:
    request = f"GET http://127.0.0.1:{index.port}/files/words HTTP/1.1\r\n\r\n".encode()
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(request))) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answer.endswith(b"some words") for answer in answers)
    assert len(answers) == 40


@pytest.mark.parametrize(
    "request_line", [b"CONNECT [ HTTP/1.1", b"GET http://[::/ HTTP/1.1", b"CONNECT x:99999 HTTP/1.1"]
)
def test_what_is_no_address_is_answered(request_line: bytes, ask: Ask) -> None:
    assert ask(request_line + b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "[::ffff:127.0.0.1]"])
@pytest.mark.parametrize("port", ["another", "proxy"])
def test_the_operators_proxy_is_no_place_to_ask_for(
    ask: Ask, refusals: list[str], monkeypatch: pytest.MonkeyPatch, host: str, port: str
) -> None:
    other = Index()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{other.port}")
    monkeypatch.setenv("https_proxy", f"http://localhost:{other.port}")
    wanted = other.port if port == "proxy" else 1
    assert b" 403 " in ask(f"CONNECT {host}:{wanted} HTTP/1.1\r\n\r\n".encode())
    assert b" 403 " in ask(f"GET http://{host}:{wanted}/ HTTP/1.1\r\n\r\n".encode())
    assert len(refusals) == 2
    assert other.asked == []
    other.close()


def ask_once(directory: Path, guard: Guard, ports: list[int], request: str) -> str:
    """Return the first line, then the refusals, of a proxy with these ports."""
    refusals: list[str] = []
    egress = Egress(directory / "net.sock", guard, (), refusals.append, ports=ports)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(directory / "net.sock"))
            client.sendall(request.encode() + b"\r\n\r\n")
            return client.recv(4096).decode().split("\r\n")[0] + "".join(refusals)
    finally:
        egress.close()


@pytest.mark.parametrize("request_line", ["CONNECT 8.8.8.8:22 HTTP/1.1", "GET http://8.8.8.8:6379/ HTTP/1.1"])
def test_other_ports_of_public_places_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_line: str
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 22))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
    answer = ask_once(tmp_path, Guard(()), [8443], request_line)
    assert answer.startswith("HTTP/1.1 403 ")
    assert "a build reaches ports 80, 443, 8443; the operator can allow this host" in answer


def test_every_port_of_a_place_that_the_operator_allows(tmp_path: Path, index: Index) -> None:
    request = f"CONNECT 127.0.0.1:{index.port} HTTP/1.1"
    assert ask_once(tmp_path, Guard(["127.0.0.0/8"]), [], request).startswith("HTTP/1.1 200 ")
    # A listed port alone makes no address public.
    assert ask_once(tmp_path, Guard(()), [index.port], request).startswith("HTTP/1.1 403 ")
