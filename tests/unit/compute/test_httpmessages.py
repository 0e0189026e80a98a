"""Requests as commands inside a sandbox may send them to the attempt's socket: right ones, and hostile ones."""

from __future__ import annotations

import socket

import pytest

from nodus.server.compute.local.httpmessages import Refused, Request, read_request


def read(sent: bytes) -> Request | None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        return read_request(ours)


def post(*headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([b"POST /x HTTP/1.1", *headers, b"", body])


def test_a_body_of_the_announced_length_and_one_in_chunks() -> None:
    whole = read(post(b"Content-Length: 5", body=b"hello"))
    chunked = read(post(b"Transfer-Encoding: chunked", body=b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"))
    assert whole is not None
    assert chunked is not None
    assert whole.body == chunked.body == b"hello"


@pytest.mark.parametrize(
    ("length", "status"),
    [("-1", 400), ("5x", 400), ("\u00b2", 400), ("9" * 5000, 413), (str(9 * 1024 * 1024), 413)],
    ids=["negative", "letters", "superscript", "thousands of digits", "too large"],
)
def test_a_length_that_is_none_or_too_large_is_refused(length: str, status: int) -> None:
    with pytest.raises(Refused) as refused:
        read(post(b"Content-Length: " + length.encode("latin-1")))
    assert refused.value.status == status


@pytest.mark.parametrize("sign", [b"\n", b"\r"])
def test_a_header_can_not_smuggle_in_another(sign: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read(post(b"X-A: 1" + sign + b"Authorization: Bearer other"))
    assert refused.value.status == 400


@pytest.mark.parametrize("line", [b"GET  / HTTP/1.1", b"GET x HTTP/1.1", b"\x16\x03\x01", b"G:T / HTTP/1.1"])
def test_what_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read(line + b"\r\n\r\n")
    assert refused.value.status == 400
