"""Managed images: what an image name means on this machine.

A managed image is this installation's own Python, seen read-only, with a stated list of host paths; nothing is copied.
Its digest says what would run: Nodus' trainer sources and the versions of the stack they run on. Runs in the server.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from nodus.core.errors import Unsupported
from nodus.server.compute.local.mounts import Mount, interpreter_mounts, package_root, system_mounts

TRAINER_STACK = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "tokenizers",
    "safetensors",
    "datasets",
    "numpy",
    "bitsandbytes",
)
"""Distributions whose versions are part of a trainer image's digest; those not installed are left out."""

_BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Image:
    """A resolved image.

    Attributes:
        reference: As it was asked for.
        digest: ``sha256:`` and 64 hex digits.
        user: Uid and gid the command runs as.
        mounts: What of the host it sees.
        env: Its environment, which a run's own adds to.
    """

    reference: str
    digest: str
    user: str
    mounts: tuple[Mount, ...]
    env: Mapping[str, str]

    def to_status(self) -> dict[str, str]:
        """Return the image as it stands in ``status.image``."""
        return {"reference": self.reference, "digest": self.digest, "user": self.user}


MANAGED: dict[str, tuple[str, ...]] = {
    "nodus/base": (),
    "nodus/agent-tools": ("sandboxinit",),
    "nodus/grpo-lora": ("trainer", "core", "runtime"),
    "nodus/evaluate": ("trainer", "core", "runtime"),
}
"""Managed images by repository, with the parts of Nodus whose sources their digest covers."""


def is_managed(reference: str) -> bool:
    """Tell whether ``reference`` names an image that this installation provides."""
    return reference.partition(":")[0] in MANAGED


def resolve(reference: str) -> Image:
    """Return what an image name means here.

    Raises:
        Unsupported: When it is no managed image.
    """
    if not is_managed(reference):
        raise Unsupported(
            f"the image {reference!r} can't be run here: this server runs its managed images only",
            fix=f"Use one of: {', '.join(MANAGED)}.",
        )
    return Image(reference, digest(reference), "10001:10001", _mounts(), _env())


@cache
def digest(reference: str) -> str:
    """Return the digest of a managed image, computed once per process.

    Raises:
        KeyError: When it is no managed image.
    """
    parts = MANAGED[reference.partition(":")[0]]
    description = {
        "image": reference,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "stack": stack_versions(),
        "sources": {part: _sources_digest(part) for part in parts},
    }
    encoded = json.dumps(description, sort_keys=True, separators=(",", ":")).encode()
    return "sha256:" + hashlib.sha256(encoded).hexdigest()


@cache
def stack_versions() -> dict[str, str]:
    """Return the installed versions of the training stack by distribution."""
    found: dict[str, str] = {}
    for name in TRAINER_STACK:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _sources_digest(part: str) -> str:
    root = Path(package_root(), "nodus", part)
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


@cache
def _mounts() -> tuple[Mount, ...]:
    package = str(Path(package_root(), "nodus"))
    return (*system_mounts(), *interpreter_mounts(environment=True), Mount(package, package))


@cache
def _env() -> Mapping[str, str]:
    bin_dir = str(Path(os.path.abspath(sys.prefix), "bin"))
    env = {
        "PATH": f"{bin_dir}:{_BASE_PATH}",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TMPDIR": "/tmp",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HOME": "/tmp/hf",
    }
    # Set by operators whose CPU OpenBLAS misdetects; it changes results, so it must reach the command.
    if "OPENBLAS_CORETYPE" in os.environ:
        env["OPENBLAS_CORETYPE"] = os.environ["OPENBLAS_CORETYPE"]
    return env
