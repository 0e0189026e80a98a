"""From a directory of an author to files that a grader can run, as a server would have them after the package's build.

A directory with a ``pyproject.toml`` is installed by pip into a directory of its own, with its dependencies, and kept
by the digest of its files: what is not in the built package is not there either. Anything else is copied.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from nodus.core.errors import NodusError, NotFound

MANIFEST = "environment.yaml"
MIB = 1024 * 1024
SOURCE_BYTES = 256 * MIB
SOURCE_FILES = 5000
_PIP_TIMEOUT_S = 900
_LEFT_OUT = {"__pycache__", "node_modules", "build", "dist", "outputs", "venv"}
CACHE = Path("~/.cache/nodus/environments")
"""Where built packages are kept, by the digest of their files; it may be removed at any time."""
_REQUIREMENT_NAME = re.compile(r"\s*([A-Za-z0-9._-]+)")


class BuildFailed(NodusError):
    """The directory can't be made into an environment; the message says which step failed and why."""

    reason, status = "EnvironmentBuildFailed", 422


@dataclass(frozen=True, slots=True)
class Built:
    """Files that a grader can run.

    Attributes:
        directory: Where they are.
        digest: Of what they were made of, 64 hex digits.
        how: How they came to be, for the reader.
    """

    directory: Path
    digest: str
    how: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a directory says of itself.

    Attributes:
        name: The environment's name.
        version: Its version.
        loader: What the runner loads: ``module`` or ``module:function``.
        spec: Its manifest's spec, without the package; empty where it has no manifest.
        project: ``[project]`` of its pyproject.toml; None where it has none.
    """

    name: str
    version: str
    loader: str
    spec: Mapping[str, Any]
    project: Mapping[str, Any] | None


def facts_of(place: Path) -> Facts:
    """Read what a directory, or a file of Python, says of itself.

    Raises:
        BuildFailed: When it can't be told what its module is.
        NotFound: When there is nothing.
    """
    if not place.exists():
        raise NotFound(f"there is no {place}", fix="`nodus env init NAME` makes a package to begin with.")
    if place.is_file():
        return _facts_of_file(place)
    project, manifest = _project(place), _manifest(place)
    spec = dict(manifest.get("spec") or {})
    package = dict(spec.pop("package", None) or {})
    named = (manifest.get("metadata") or {}).get("name") or (project or {}).get("name") or place.resolve().name
    distribution = (package.get("pip") or {}).get("name") or (project or {}).get("name") or named
    version = str(spec.get("version") or (project or {}).get("version") or "0.0.0")
    module = str((package.get("source") or {}).get("module") or re.sub(r"[-.]+", "_", str(distribution)))
    if not all(part.isidentifier() for part in module.split(".")):
        raise BuildFailed(
            f"{place} names no environment", fix=f"Give it a pyproject.toml, or an {MANIFEST}; `nodus env init` does."
        )
    return Facts(str(named), version, _loader(place, module, package.get("loader")), spec, project)


def _facts_of_file(place: Path) -> Facts:
    if place.suffix != ".py" or not place.stem.isidentifier():
        raise BuildFailed(
            f"{place} is no module of Python", fix="Name a directory with a package, or a file such as my_task.py."
        )
    return Facts(place.stem.replace("_", "-"), "0.0.0", place.stem, {}, None)


def _loader(place: Path, module: str, given: str | None) -> str:
    if given and ":" in given:
        return given
    there = [root for root in (place, place / "src") if (root / module).is_dir() or (root / f"{module}.py").is_file()]
    if not there:
        raise BuildFailed(
            f"{place} has no module {module!r}, which its name stands for",
            fix=f"Name the module {module}, or name another one in {MANIFEST}: spec.package.loader: module:function.",
        )
    return f"{module}:{given}" if given and given != "load_environment" else module


def _project(place: Path) -> Mapping[str, Any] | None:
    try:
        text = (place / "pyproject.toml").read_text(encoding="utf-8")
        return dict(tomllib.loads(text).get("project") or {})
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BuildFailed(f"{place / 'pyproject.toml'} can't be read: {error}") from error


def _manifest(place: Path) -> Mapping[str, Any]:
    import yaml  # late: a few milliseconds

    try:
        found = yaml.safe_load((place / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BuildFailed(f"{place / MANIFEST} can't be read: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != "Environment" or not isinstance(found.get("spec"), dict):
        raise BuildFailed(f"{place / MANIFEST} is no manifest of an Environment")
    return found


def build(place: Path, facts: Facts, staging: Path) -> Built:
    """Make what a grader can run.

    Args:
        place: The author's directory or file.
        facts: What it says of itself.
        staging: An empty directory for what is not kept.

    Raises:
        BuildFailed: With the end of what pip said.
    """
    digest = _digest(place)
    if facts.project is not None:
        directory = _installed(place, digest, facts.project)
        return Built(directory, digest, "built and installed by pip, with its dependencies")
    _copy(place, staging)
    return Built(staging, digest, "the sources as they are")


def _digest(place: Path) -> str:
    content = hashlib.sha256(f"{sys.version_info[:2]}\0".encode())
    for path in [place] if place.is_file() else _files(place):
        content.update(f"{path.relative_to(place)}\0{path.stat().st_size}\0".encode())
        content.update(path.read_bytes())
    return content.hexdigest()


def _copy(place: Path, staging: Path) -> None:
    staging.mkdir(parents=True, exist_ok=True)
    if place.is_file():
        shutil.copy(place, staging / place.name)
    else:
        for path in _files(place):
            target = staging / path.relative_to(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    _open_up(staging)


def _files(place: Path) -> Iterator[Path]:
    """Yield the files below a directory that may belong to a package, in a fixed order; no links.

    Raises:
        BuildFailed: When they are too many, or too large together, to be one environment's.
    """
    left_bytes, left_files = SOURCE_BYTES, SOURCE_FILES
    for directory, directories, names in os.walk(place):
        directories[:] = sorted(name for name in directories if not _is_left_out(name))
        for name in sorted(names):
            path = Path(directory, name)
            if path.is_symlink() or not path.is_file():
                continue
            left_bytes, left_files = left_bytes - path.stat().st_size, left_files - 1
            if min(left_bytes, left_files) < 0:
                raise BuildFailed(
                    f"{place} has more than {SOURCE_BYTES // MIB} MiB, or {SOURCE_FILES} files",
                    fix="Name the directory of the environment alone; datasets are fetched when the package loads.",
                )
            yield path


def _is_left_out(directory: str) -> bool:
    return directory in _LEFT_OUT or directory.startswith(".") or directory.endswith(".egg-info")


def _open_up(root: Path) -> None:
    """Let the users of sandboxes read it."""
    for directory, _, names in os.walk(root):
        os.chmod(directory, 0o755)
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o444)


def _installed(place: Path, digest: str, project: Mapping[str, Any]) -> Path:
    """Return the directory that has a package and its dependencies below ``site``, installed now where they are not."""
    target = CACHE.expanduser() / digest[:32]
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
    try:
        sources = staging / "sources"  # a copy: setuptools leaves build/ and egg-info beside what it builds
        _copy_sources(place, sources)
        _pip(sources, staging / "site", project)
        shutil.rmtree(sources)
        _open_up(staging)
        staging.rename(target)
    except OSError:
        if not target.is_dir():  # another process may have built the same meanwhile
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _copy_sources(place: Path, target: Path) -> None:
    for path in _files(place):
        copy = target / path.relative_to(place)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


def _pip(sources: Path, target: Path, project: Mapping[str, Any]) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-compile", "--target", str(target)]
    if not project.get("dependencies"):
        command.append("--no-deps")
    if _has_backend(sources):
        command.append("--no-build-isolation")  # what builds it is here: no network is needed
    try:
        done = subprocess.run(
            [*command, str(sources)], capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"step 'install' failed: pip took longer than {_PIP_TIMEOUT_S} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        said = [line for line in lines if "error" in line.lower()] or lines or ["pip said nothing"]
        raise BuildFailed(
            "step 'install' failed: " + "\n  ".join(said[-6:]),
            fix="Check the names and versions in pyproject.toml; pip needs its index for what is not here.",
        )


def _has_backend(sources: Path) -> bool:
    """Tell whether what builds the package is installed beside Nodus."""
    needed = tomllib.loads((sources / "pyproject.toml").read_text(encoding="utf-8")).get("build-system") or {}
    names = [_REQUIREMENT_NAME.match(str(requirement)) for requirement in needed.get("requires") or ["setuptools"]]
    try:
        return all(name is not None and metadata.version(name.group(1)) for name in names)
    except metadata.PackageNotFoundError:
        return False
