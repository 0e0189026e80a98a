"""Servers that imports are fetched from, and the importer as a process, as the server runs it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from nodus.server.sources.base import FILES_DIR
from nodus.server.training import importer

LOOPBACK = ("127.0.0.1",)
Import = Callable[..., dict[str, Any]]


@pytest.fixture
def run_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Runs an import: ``run_import(url={...})`` returns its result, with ``content`` by path when it succeeded."""
    directory = tmp_path / "import"
    directory.mkdir()
    for name in os.environ:
        if "proxy" in name.lower():
            monkeypatch.delenv(name)

    def run(*, limit: int = 1 << 20, allowed: tuple[str, ...] = LOOPBACK, **request: Any) -> dict[str, Any]:
        request |= {"directory": str(directory), "limitBytes": limit, "allowed": allowed}
        with monkeypatch.context() as patch:
            # An import guards its whole process, and takes the environment's credentials away: not this one's for good.
            patch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
            patch.setattr(os, "environ", dict(os.environ))
            result = importer.run(request, directory)
        if result["ok"]:
            root = directory / FILES_DIR
            result["content"] = {file["path"]: (root / file["path"]).read_bytes() for file in result["files"]}
            result["modes"] = {file["path"]: oct(file["mode"]) for file in result["files"]}
        return result

    return run


@pytest.fixture
def run_process(tmp_path: Path) -> Import:
    """Runs an import as the server does, in a process of its own; returns its result."""
    directory = tmp_path / "process"

    def run(*, limit: int = 1 << 20, allowed: tuple[str, ...] = LOOPBACK, **request: Any) -> dict[str, Any]:
        request |= {"directory": str(directory), "limitBytes": limit, "allowed": allowed}
        command = [sys.executable, "-m", "nodus.server.training.importer"]
        subprocess.run(command, input=json.dumps(request).encode(), check=False, timeout=50)
        found: dict[str, Any] = json.loads((directory / "result.json").read_text())
        return found

    return run


class FileServer:
    """Serves bytes by path, with ranges, and what tests make it do instead."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.statuses: dict[str, int] = {}
        self.cut_after: dict[str, int] = {}
        """Path to the number of bytes after which its connection is cut, once."""
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.repositories: Path | None = None
        """Directory of git repositories, served by git's own server program."""
        self.password: str | None = None

    def __enter__(self) -> FileServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._answer(self)

            do_POST = do_GET

            def log_message(self, *args: Any) -> None:
                """Keep the test's output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda request, address: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *exc: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, http: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(http.path).path)
        self.asked.append((path, dict(http.headers)))
        if self.repositories is not None:
            self._git(http, self.repositories)
        elif path in self.redirects:
            self._send(http, 302, b"", {"Location": self.redirects[path]})
        elif path in self.statuses or path not in self.files:
            self._send(http, self.statuses.get(path, 404), b"no")
        else:
            self._send_file(http, path)

    def _send_file(self, http: BaseHTTPRequestHandler, path: str) -> None:
        body, headers = self.files[path], {"ETag": '"1"', **self.headers}
        ranged = re.fullmatch(r"bytes=(\d+)-", http.headers.get("Range") or "")
        if ranged and http.headers.get("If-Range") == headers["ETag"]:
            start = int(ranged[1])
            if start >= len(body):
                self._send(http, 416, b"")
                return
            self._send(http, 206, body[start:], headers | {"Content-Range": f"bytes {start}-{len(body) - 1}/x"})
            return
        cut = self.cut_after.pop(path, None)
        self._send(http, 200, body, headers, cut)

    def _send(
        self,
        http: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        http.send_response(status)
        for name, value in (headers or {}).items():
            http.send_header(name, value)
        http.send_header("Content-Length", str(len(body)))
        http.end_headers()
        http.wfile.write(body[:cut])
        if cut is not None:
            http.close_connection = True

    def _git(self, http: BaseHTTPRequestHandler, root: Path) -> None:
        parts = urlsplit(http.path)
        if self.password is not None and not (http.headers.get("Authorization") or "").endswith(self.password):
            self._send(http, 401, b"", {"WWW-Authenticate": "Basic"})
            return
        environment = {
            **os.environ, "GIT_PROJECT_ROOT": str(root), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": parts.path,
            "QUERY_STRING": parts.query, "REQUEST_METHOD": http.command,
            "CONTENT_TYPE": http.headers.get("Content-Type") or "",
            "GIT_PROTOCOL": http.headers.get("Git-Protocol") or "",
            "HTTP_CONTENT_ENCODING": http.headers.get("Content-Encoding") or "",
        }  # fmt: skip
        sent = http.rfile.read(int(http.headers.get("Content-Length") or 0))
        out = subprocess.run(["git", "http-backend"], input=sent, env=environment, capture_output=True, check=False)
        head, _, body = out.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self._send(http, int(headers.pop("Status", "200").split()[0]), body, headers)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as made:
        yield made
