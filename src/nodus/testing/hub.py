"""A small server that speaks the model hub's HTTP API, for tests: point `HF_ENDPOINT` at it.

Runs in a thread of the test process; standard library only. It serves what huggingface_hub asks for when it looks up a
repository, lists a revision and downloads files, and it can misbehave on purpose: be slow, cut a file short, lose a
revision, answer 5xx, ask for a token.

Example:
    with FakeHub() as hub:
        commit = hub.add("acme/tiny", {"config.json": b"{}"})
        os.environ["HF_ENDPOINT"] = hub.url
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

LFS_FROM_BYTES = 1024
"""Files this large are served as large files, whose ETag is their sha256, as the real hub does."""


@dataclass
class Repo:
    """One repository: the files of each commit, and where its branches point."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    token: str | None = None
    """Bearer token it asks for; None means public."""


@dataclass
class Faults:
    """What goes wrong, changed by a test while the server runs."""

    delay_s: float = 0.0
    """Wait before every answer."""
    truncate: dict[str, int] = field(default_factory=dict)
    """Path to the number of bytes after which its connection is cut."""
    corrupt: set[str] = field(default_factory=set)
    """Paths whose bytes come altered, at full length."""
    status: int | None = None
    """Answer everything with this HTTP status."""


class FakeHub:
    """The server; a context manager. Repositories are `owner/name` to `Repo`, downloads are counted by path."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults = Faults()
        self.downloads: Counter[str] = Counter()
        """GETs of file bytes, by path."""
        self.requests: list[str] = []
        """Every request as `METHOD path`."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self._stop = threading.Event()

    @property
    def url(self) -> str:
        """Base address, for `HF_ENDPOINT`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, name: str, files: Mapping[str, bytes], *, branch: str = "main", token: str | None = None) -> str:
        """Commit files as a new revision of a repository and move a branch to it.

        Returns:
            The commit: 40 hex digits that depend on the content alone.
        """
        listing = {path: hashlib.sha256(body).hexdigest() for path, body in files.items()}
        commit = hashlib.sha1(json.dumps([name, listing], sort_keys=True).encode(), usedforsecurity=False).hexdigest()
        repo = self.repos.setdefault(name, Repo())
        repo.commits[commit] = dict(files)
        repo.branches[branch] = commit
        repo.token = token
        return commit

    def forget(self, name: str, commit: str) -> None:
        """Lose a revision, as after a force push and a clean-up."""
        del self.repos[name].commits[commit]

    def wait(self) -> None:
        """Sit out the configured delay, but not past the end of the server."""
        if self.faults.delay_s:
            self._stop.wait(self.faults.delay_s)

    def __enter__(self) -> FakeHub:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    hub: FakeHub

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that goes away in the middle is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    _api: ClassVar[re.Pattern[str]] = re.compile(
        r"/api/models/(?P<repo>[^/]+/[^/]+?)(?:/(?P<verb>revision|tree)/(?P<rev>[^/]+))?/?"
    )
    _file: ClassVar[re.Pattern[str]] = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<path>.+)")

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the test's output clean."""

    def _answer(self) -> None:
        hub = self.server.hub
        path = unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        hub.wait()
        if hub.faults.status is not None:
            return self._error(hub.faults.status, None, "the hub has a bad day")
        match = self._api.fullmatch(path) or self._file.fullmatch(path)
        if match is None:
            return self._error(404, None, "no such route")
        parts = match.groupdict()
        repo = hub.repos.get(parts["repo"])
        if repo is None:
            return self._error(401, "RepoNotFound", "Repository not found")
        if repo.token and self.headers.get("Authorization") != f"Bearer {repo.token}":
            return self._error(403, "GatedRepo", "Access to this model is restricted")
        commit = repo.branches.get(parts["rev"] or "main", parts["rev"])
        files = repo.commits.get(commit)
        if files is None:
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {parts['rev']}")
        if "path" in parts:
            return self._send_file(files, parts["path"], commit)
        if parts["verb"] == "tree":
            return self._json([_tree_row(name, body) for name, body in sorted(files.items())])
        return self._json(_info(parts["repo"], commit, files))

    def _send_file(self, files: Mapping[str, bytes], path: str, commit: str) -> None:
        hub = self.server.hub
        body = files.get(path)
        if body is None:
            return self._error(404, "EntryNotFound", "Entry not found")
        etag, full = _etag(body), len(body)
        if path in hub.faults.corrupt:
            body = bytes([body[0] ^ 1]) + body[1:]
        start = 0
        ranged = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if ranged:
            start = min(int(ranged[1]), full)
        self.send_response(206 if ranged else 200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Accept-Ranges", "bytes")
        if full >= LFS_FROM_BYTES:
            self.send_header("X-Linked-Etag", f'"{etag}"')
            self.send_header("X-Linked-Size", str(full))
        if ranged:
            self.send_header("Content-Range", f"bytes {start}-{full - 1}/{full}")
        self.send_header("Content-Length", str(full - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        hub.downloads[path] += 1
        limit = hub.faults.truncate.get(path)
        if limit is None:
            self.wfile.write(body[start:])
            return
        self.wfile.write(body[start:limit])
        self.close_connection = True

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str | None, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _info(name: str, commit: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    siblings = []
    for path, body in sorted(files.items()):
        row = _tree_row(path, body)
        sibling: dict[str, Any] = {"rfilename": path, "size": row["size"], "blobId": row["oid"]}
        if "lfs" in row:
            sibling["lfs"] = {"sha256": row["lfs"]["oid"], "size": row["size"], "pointerSize": 134}
        siblings.append(sibling)
    return {
        "_id": commit[:24],
        "id": name,
        "modelId": name,
        "sha": commit,
        "private": False,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "createdAt": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(0)),
        "siblings": siblings,
    }


def _tree_row(path: str, body: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "file", "path": path, "size": len(body), "oid": _git_blob_id(body)}
    if len(body) >= LFS_FROM_BYTES:
        row["lfs"] = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
    return row


def _etag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest() if len(body) >= LFS_FROM_BYTES else _git_blob_id(body)


def _git_blob_id(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
