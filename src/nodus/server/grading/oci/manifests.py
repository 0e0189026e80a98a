"""What an image's manifest and configuration say, checked: they are a stranger's."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from nodus.server.grading.oci.layers import BadImage, Limits

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_INDEX = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFEST = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENVIRONMENT_BYTES = 64 * 1024
_MAX_SIZE = (1 << 63) - 1
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Blob:
    """A part of an image.

    Attributes:
        digest: ``sha256:`` of its bytes.
        size: In bytes.
    """

    digest: str
    size: int

    @property
    def file(self) -> str:
        """Its name in a directory of ``skopeo copy``."""
        return self.digest.removeprefix("sha256:")


@dataclass(frozen=True, slots=True)
class Manifest:
    """An image for one platform.

    Attributes:
        config: Its configuration.
        layers: Its layers, the lowest first.
    """

    config: Blob
    layers: tuple[Blob, ...]

    @property
    def bytes(self) -> int:
        """Of everything, as the registry has it."""
        return self.config.size + sum(layer.size for layer in self.layers)


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How programs of an image are run.

    Attributes:
        env: Their environment.
        cwd: Where they start.
    """

    env: Mapping[str, str]
    cwd: str


def architecture() -> str:
    """Return what images call this machine's processor."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def parse_manifest(data: bytes, limits: Limits) -> Manifest | str:
    """Return what a manifest says: an image, or, where it lists several, the digest of the one for this machine.

    Raises:
        BadImage: It is none, too much, or for other machines only.
    """
    found = _json(data, "manifest")
    kind = str(found.get("mediaType") or (_INDEX[0] if "manifests" in found else _MANIFEST[0]))
    if kind in _INDEX:
        return _for_this_machine(found)
    if kind not in _MANIFEST:
        raise BadImage(
            f"its manifest is of the type {kind[:100]!r}, which is no image that can be run",
            fix="Push it again with a current tool: docker, podman or buildah.",
        )
    layers = found.get("layers")
    if not isinstance(layers, list) or not layers:
        raise BadImage("its manifest has no layers")
    if len(layers) > limits.layers:
        raise BadImage(f"it has {len(layers)} layers; at most {limits.layers} are unpacked")
    if any(isinstance(layer, Mapping) and layer.get("urls") for layer in layers):
        raise BadImage("a layer is to be fetched from another place than its registry")
    manifest = Manifest(_blob(found.get("config"), "config"), tuple(_blob(layer, "layers") for layer in layers))
    if manifest.bytes > limits.packed_bytes:
        raise BadImage(f"it has {manifest.bytes >> 20} MiB; at most {limits.packed_bytes >> 20} MiB are pulled")
    return manifest


def parse_config(data: bytes) -> ImageConfig:
    """Return what an image's configuration says.

    Raises:
        BadImage: It is none, or for other machines.
    """
    found = _json(data, "configuration")
    system, processor = str(found.get("os") or "linux"), str(found.get("architecture") or "")
    if system != "linux" or processor != architecture():
        raise BadImage(
            f"it is for {system[:40]}/{processor[:40]}; this machine is linux/{architecture()}",
            fix=f"Build it for this machine, such as with `--platform linux/{architecture()}`.",
        )
    config = found.get("config")
    config = config if isinstance(config, Mapping) else {}
    entries = config.get("Env") or []
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise BadImage("its configuration's Env is no list of texts")
    if sum(len(entry.encode("utf-8", "replace")) + 1 for entry in entries) > _ENVIRONMENT_BYTES:
        raise BadImage(f"its configuration's Env is larger than {_ENVIRONMENT_BYTES >> 10} KiB")
    env = dict(entry.split("=", 1) for entry in entries if "=" in entry and _plain(entry))
    cwd = config.get("WorkingDir")
    cwd = cwd if isinstance(cwd, str) and cwd.startswith("/") and _plain(cwd) else "/"
    return ImageConfig({k: v for k, v in env.items() if _NAME.fullmatch(k)}, str(PurePosixPath(cwd)))


def _plain(text: str) -> bool:
    """Say whether a program can be given a text: no NUL, and no half of a surrogate pair."""
    return "\0" not in text and text == text.encode("utf-8", "replace").decode()


def _for_this_machine(index: Mapping[str, Any]) -> str:
    offered = []
    entries = index.get("manifests") or []
    if not isinstance(entries, list):
        raise BadImage("its manifest's list of images is no list")
    for entry in entries:
        where = entry.get("platform") if isinstance(entry, Mapping) else None
        if not isinstance(where, Mapping):
            continue
        offered.append(f"{where.get('os')}/{where.get('architecture')}"[:40])
        if offered[-1] == f"linux/{architecture()}":
            return _blob(entry, "manifests").digest
    shown = ", ".join(dict.fromkeys(offered[:10])) or "nothing"
    raise BadImage(
        f"it is for {shown}; this machine is linux/{architecture()}",
        fix=f"Build it for this machine too, such as with `--platform linux/{architecture()}`.",
    )


def _blob(value: Any, field: str) -> Blob:
    value = value if isinstance(value, Mapping) else {}
    digest, size = value.get("digest"), value.get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BadImage(f"its manifest's {field} has no sha256 digest")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_SIZE:
        raise BadImage(f"its manifest's {field} has no size")
    return Blob(digest, size)


def _json(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadImage(f"its {what} is no JSON object")
    return found
