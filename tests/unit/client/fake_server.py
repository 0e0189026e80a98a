"""A scripted HTTP server on a real socket, so that both ways of calling go through their real transport."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from nodus.client.client import Client
from nodus.client.config import Connection
from nodus.client.http import RetryPolicy

QUICK = RetryPolicy(budget_s=5.0, first_contact_s=0.0, internal_error_s=5.0)


@dataclass
class Asked:
    """A request as the server saw it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


@dataclass
class Reply:
    """What the server answers."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Close the connection in the middle of the body."""
    lost: bool = False
    """Close the connection without an answer."""


Script = Callable[[Asked], Reply]


@dataclass
class FakeServer:
    """Answers by a list of replies, or by a function of the request; keeps what it was asked."""

    url: str
    asked: list[Asked] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    script: Script | None = None

    def answer(self, request: Asked) -> Reply:
        """Return the next reply."""
        self.asked.append(request)
        if self.replies:
            return self.replies.pop(0)
        if self.script is not None:
            return self.script(request)
        return Reply({"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "message": "nothing here"}, 404)

    def client(self, project: str = "default") -> Client:
        """Return a client of this server."""
        return Client(connection=Connection(url=self.url, api_key="nodus_key", project=project), retry=QUICK)


@contextlib.contextmanager
def serving() -> Iterator[FakeServer]:
    """Run a scripted server."""
    fake = FakeServer(url="")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            headers = {key.lower(): value for key, value in self.headers.items()}
            reply = fake.answer(Asked(self.command, parts.path, query, headers, self.rfile.read(length)))
            if reply.lost:
                self.close_connection = True
                return
            raw = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            sent = {"Content-Type": "application/json", "Content-Length": str(len(raw) + (10 if reply.cut else 0))}
            for key, value in (sent | reply.headers).items():
                self.send_header(key, value)
            self.close_connection = self.close_connection or reply.cut
            with contextlib.suppress(OSError):  # the client may have left
                self.end_headers()
                self.wfile.write(raw)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def log_message(self, format: str, *args: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    fake.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    try:
        yield fake
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def status(reason: str, code: int, message: str = "no", **extra: Any) -> Reply:
    """Return an error reply."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "code": code,
        "message": message,
    }
    headers = extra.pop("headers", {})
    return Reply(body | extra, code, headers)
