"""An author's directory or file: what it says of itself, and its files."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodus.core.errors import Invalid, NodusError, NotFound

MANIFEST = "environment.yaml"
MIB = 1024 * 1024
SOURCE_BYTES = 256 * MIB
SOURCE_FILES = 5000
_LEFT_OUT = {"__pycache__", "node_modules", "build", "dist", "outputs", "venv"}


class BuildFailed(NodusError):
    """The directory can't be made into an environment.

    Args:
        message: What is wrong.
        fix: What to do about it.
        step: Of the build.
        log: The end of what the step said.
    """

    reason, status = "EnvironmentPackageFailed", 422

    def __init__(self, message: str, *, fix: str | None = None, step: str = "package", log: str = "") -> None:
        super().__init__(message, fix=fix)
        self.step = step
        self.log = log


class NoEnvironment(Invalid):
    """What is there is no environment at all."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a directory says of itself.

    Attributes:
        name: The environment's name.
        version: Its version.
        spec: Its manifest's spec, without the package; empty where it has no manifest.
        loader: What its manifest says is to be loaded; None where it says nothing.
        module: The module that its name stands for.
        project: ``[project]`` of its pyproject.toml; None where it has none.
    """

    name: str
    version: str
    spec: Mapping[str, Any]
    loader: str | None
    module: str
    project: Mapping[str, Any] | None


def facts_of(place: Path) -> Facts:
    """Read what a directory, or a file of Python, says of itself.

    Raises:
        NoEnvironment: When it can't be told what its module is.
        BuildFailed: When its files can't be read, or contradict each other.
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
        raise NoEnvironment(
            f"{place} names no environment", fix=f"Give it a pyproject.toml, or an {MANIFEST}; `nodus env init` does."
        )
    if project is not None:
        _check_same(package.get("pip") or {}, project)
    return Facts(str(named), version, spec, package.get("loader"), module, project)


def _check_same(pip: Mapping[str, Any], project: Mapping[str, Any]) -> None:
    for name in ("name", "version"):
        if name in pip and name in project and pip[name] != project[name]:
            raise BuildFailed(
                f"{MANIFEST} names the package's {name} {pip[name]!r}, and pyproject.toml {project[name]!r}",
                fix="Make them the same: the server builds what the manifest names.",
            )


def _facts_of_file(place: Path) -> Facts:
    if place.suffix != ".py" or not place.stem.isidentifier():
        raise NoEnvironment(
            f"{place} is no module of Python", fix="Name a directory with a package, or a file such as my_task.py."
        )
    return Facts(place.stem.replace("_", "-"), "0.0.0", {}, None, place.stem, None)


def loader_of_sources(place: Path, facts: Facts) -> str:
    """Return what the runner loads of sources as they are: ``module`` or ``module:function``.

    Raises:
        BuildFailed: When the module is not there.
    """
    module, given = facts.module, facts.loader
    if given and ":" in given:
        return given
    if place.is_dir() and not (place / module).is_dir() and not (place / f"{module}.py").is_file():
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


def sources_digest(place: Path) -> str:
    """Return the digest, 64 hex digits, of a file, or of the files of a directory that may belong to a package."""
    content = hashlib.sha256()
    for path in [place] if place.is_file() else _files(place):
        content.update(f"{path.relative_to(place)}\0{path.stat().st_size}\0".encode())
        content.update(path.read_bytes())
    return content.hexdigest()


def copy_sources(place: Path, target: Path) -> None:
    """Copy a file, or the files of a directory that may belong to a package, to where users of sandboxes can read them.

    Raises:
        BuildFailed: When it is too much.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in [place] if place.is_file() else _files(place):
        copy = target / (path.name if path == place else path.relative_to(place))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for directory, _, names in os.walk(target):
        os.chmod(directory, 0o755)
        for name in names:
            os.chmod(Path(directory, name), 0o644)


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
