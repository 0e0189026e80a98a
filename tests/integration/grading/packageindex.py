"""Wheels made from source text, and simple indexes on loopback that serve them."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from packaging.utils import canonicalize_name

TASKS = """
def tasks(split):
    return [{"prompt": f"{split} {number}", "answer": str(number)} for number in range(4)]

def reward(completion, answer):
    return float(answer in completion)
"""


def wheel(
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    *,
    requires: Sequence[str] = (),
    python: str = ">=3.9",
    tag: str = "py3-none-any",
) -> tuple[str, bytes]:
    """Return a wheel's file name and bytes."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {python}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    content = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    content[f"{info}/METADATA"] = metadata.encode()
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    rows = [f"{path},sha256={_b64(data)},{len(data)}" for path, data in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return f"{stem}-{tag}.whl", buffer.getvalue()


def sdist(name: str, version: str, setup: str) -> tuple[str, bytes]:
    """Return the file name and bytes of a source distribution whose build runs ``setup`` as its backend."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": setup,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{stem}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return f"{stem}.tar.gz", buffer.getvalue()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@dataclass
class Index:
    """A simple index; what it was asked for is noted."""

    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    yanked: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    status: int = 200

    def __post_init__(self) -> None:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                status, kind, body = index.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.server.server_address[1])

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/simple/"

    def add(self, *packages: tuple[str, bytes], yanked: bool = False) -> None:
        """Serve packages."""
        for name, data in packages:
            self.files[name] = (str(canonicalize_name(name.split("-")[0])), data)
            if yanked:
                self.yanked.add(name)

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return status, type and body for a path."""
        if self.status != 200:
            return self.status, "text/plain", b"no"
        name = path.strip("/").split("/")[-1]
        if name in self.files:
            return 200, "application/octet-stream", self.files[name][1]
        found = [file for file, (package, _) in self.files.items() if package == name]
        if not found:
            return 404, "text/plain", b"not here"
        marks = {file: ' data-yanked="broken"' if file in self.yanked else "" for file in found}
        links = "".join(f'<a href="/files/{file}"{marks[file]}>{file}</a><br>' for file in found)
        return 200, "text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode()

    def close(self) -> None:
        """Serve no more."""
        self.server.shutdown()
        self.server.server_close()
