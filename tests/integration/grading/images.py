"""Images for tests, made of this machine's own Python, and the distribution's registry to have them in."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodus.server.grading.oci.layers import Limits, RootDirectory
from nodus.testing.eventually import eventually
from tests.interop._published import cache

PROGRAMS = ("/bin/sh", "/bin/chmod", "/bin/mkdir", "/bin/grep", "/bin/cat")
_LEFT_OUT = re.compile(
    r"/(test|tests|__pycache__|idlelib|tkinter|ensurepip|lib2to3|turtledemo|pydoc_data|distutils|config-[^/]*)(/|$)"
    r"|(site|dist)-packages|/lib-dynload/(_ssl|_hashlib|_sqlite3|_tkinter|_?test|_x|_curses|readline|_g?dbm|nis|_codecs)"
)
"""What no runner needs; every test that builds an image packs it again."""
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def sha256(data: bytes) -> str:
    """The digest of bytes, as images name them."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer(files: Mapping[str, str | bytes | None], mode: int = 0o755) -> bytes:
    """A packed layer of files; None makes a directory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode = mode
            data = content.encode() if isinstance(content, str) else content or b""
            info.type, info.size = (tarfile.DIRTYPE if content is None else tarfile.REGTYPE), len(data)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), 1, mtime=0)


@functools.cache
def python_layer() -> bytes:
    """A packed layer with this interpreter as ``python3``, its standard library, a shell and what they need."""
    kept = cache() / "images" / f"python-{sys.version_info[0]}.{sys.version_info[1]}-{_fingerprint()}.tar.gz"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        for older in kept.parent.glob(f"{kept.name.rpartition('-')[0]}-*"):
            older.unlink(missing_ok=True)
        draft = kept.with_suffix(f".{os.getpid()}")
        with gzip.open(draft, "wb", 1) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
            _add_python(archive)
        draft.replace(kept)
    return kept.read_bytes()


def _fingerprint() -> str:
    return hashlib.sha256(Path(__file__).read_bytes() + os.path.realpath(sys.executable).encode()).hexdigest()[:12]


def _add_python(archive: tarfile.TarFile) -> None:
    program, library = os.path.realpath(sys.executable), sysconfig.get_path("stdlib")
    modules = [str(path) for path in Path(library, "lib-dynload").glob("*.so") if not _LEFT_OUT.search(str(path))]
    shared = {found for path in (program, *PROGRAMS, *modules) for found in _shared(path)}

    def chosen(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return None if _LEFT_OUT.search(f"/{info.name}") else info

    for name in ("etc", "opt", "root", "tmp", "proc", "dev", "usr/local/bin"):
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(info)
    archive.add(library, library.lstrip("/"), filter=chosen)
    for path in (program, *PROGRAMS, *sorted(shared)):
        archive.add(os.path.realpath(path), path.lstrip("/"), filter=lambda info: chosen(info) or info)
    if program != "/usr/local/bin/python3":
        info = tarfile.TarInfo("usr/local/bin/python3")
        info.type, info.linkname = tarfile.SYMTYPE, program
        archive.addfile(info)


def _shared(path: str) -> list[str]:
    """The libraries that a program or a library loads."""
    done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    return re.findall(r"(/\S+\.so\S*)", done.stdout)


def unpacked(place: Path, files: Mapping[str, str]) -> Path:
    """Return a new directory below ``place`` with Python's files and these, programs all."""
    for number, data in enumerate((python_layer(), layer(files))):
        (place / f"layer{number}").write_bytes(data)
    root = place / "root"
    root.mkdir()
    tree = RootDirectory(root, Limits())
    for number in range(2):
        tree.apply(place / f"layer{number}")
    return root


def on_env_base(module: str) -> dict[str, str]:
    """Return the files that env-base's Dockerfile and one more line make: the runner, and a module ``task``."""
    runner = Path(__file__).resolve().parents[3] / "src" / "nodus" / "grader"
    files = {f"opt/nodus/nodus/grader/{path.relative_to(runner)}": path.read_text() for path in runner.rglob("*.py")}
    wrapper = runner.parents[2] / "deploy" / "env-base" / "nodus-env"
    return {**files, "usr/local/bin/nodus-env": wrapper.read_text(), "opt/environment/task.py": module}


@dataclass
class Image:
    """An image in the making: its blobs by digest, and its manifest.

    Attributes:
        layers: Packed layers, the lowest first.
        env: Its environment.
        cwd: Where its programs start.
        architecture: What it is for.
    """

    layers: Sequence[bytes]
    env: Sequence[str] = ("PATH=/usr/local/bin:/usr/bin:/bin",)
    cwd: str = ""
    architecture: str = ARCHITECTURE
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifest: bytes = b""

    def __post_init__(self) -> None:
        settings = {"Env": list(self.env), "WorkingDir": self.cwd, "Entrypoint": ["/never/run"], "User": "root"}
        diffs = [sha256(gzip.decompress(data)) for data in self.layers]
        config = {
            "architecture": self.architecture, "os": "linux", "config": settings,
            "rootfs": {"type": "layers", "diff_ids": diffs},
        }  # fmt: skip
        about = self._blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
        packed = [self._blob(data, "application/vnd.oci.image.layer.v1.tar+gzip") for data in self.layers]
        self.manifest = json.dumps(
            {"schemaVersion": 2, "mediaType": MANIFEST, "config": about, "layers": packed}
        ).encode()

    @property
    def digest(self) -> str:
        """Its digest."""
        return sha256(self.manifest)

    def _blob(self, data: bytes, kind: str) -> dict[str, Any]:
        self.blobs[sha256(data)] = data
        return {"mediaType": kind, "digest": sha256(data), "size": len(data)}


def index_of(images: Sequence[Image]) -> bytes:
    """A list of images for several machines."""
    entries = [
        {
            "mediaType": MANIFEST, "digest": image.digest, "size": len(image.manifest),
            "platform": {"os": "linux", "architecture": image.architecture},
        }
        for image in images
    ]  # fmt: skip
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()


class Registry:
    """The distribution's registry, on this machine.

    Args:
        directory: Where it keeps images.
        port: Where it listens.
    """

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.host = f"127.0.0.1:{port}"

    def push(self, name: str, image: Image) -> str:
        """Push an image; return its reference."""
        for data in image.blobs.values():
            self._push_blob(name, data)
        return self.push_manifest(name, image.manifest, MANIFEST)

    def push_manifest(self, name: str, manifest: bytes, kind: str) -> str:
        """Push a manifest alone; return the reference of its digest."""
        self._send("PUT", f"/v2/{name}/manifests/{sha256(manifest)}", manifest, kind)
        return f"{self.host}/{name}@{sha256(manifest)}"

    def _push_blob(self, name: str, data: bytes) -> None:
        location = self._send("POST", f"/v2/{name}/blobs/uploads/", b"", "application/octet-stream")
        joint = "&" if "?" in location else "?"
        self._send("PUT", f"{location}{joint}digest={sha256(data)}", data, "application/octet-stream")

    def _send(self, method: str, path: str, data: bytes, kind: str) -> str:
        address = path if path.startswith("http") else f"http://{self.host}{path}"
        request = urllib.request.Request(address, data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.headers.get("Location", ""))


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def running_registry(directory: Path) -> Iterator[Registry]:
    """Run the distribution's registry until the block ends."""
    program, port = shutil.which("docker-registry"), free_port()
    assert program, "apt-get install docker-registry; scripts/setup --test does that"
    settings = directory / "registry.json"  # YAML, as JSON is
    settings.write_text(
        json.dumps(
            {
                "version": 0.1,
                "log": {"level": "error", "accesslog": {"disabled": True}},
                "storage": {"filesystem": {"rootdirectory": str(directory / "images")}},
                "http": {"addr": f"127.0.0.1:{port}"},
            }
        )
    )
    with (directory / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(settings)], stdout=log, stderr=log)
    try:
        eventually(lambda: _answers(port))
        yield Registry(directory, port)
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=1):
        return True
    return False
