"""What is meant by a name or a path: an author's directory or file, or an environment that is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodus.core.errors import NotFound
from nodus.server import catalogdata
from nodus.server.catalog import OPTIONAL_DIRECTORY, read_catalog
from nodus.server.envtools.building import copy_sources, facts_of, loader_of_sources, sources_digest
from nodus.server.envtools.packages import build_package
from nodus.server.grading.builds import BuildStore
from nodus.server.grading.environments import EnvironmentLibrary
from nodus.server.settings import Settings

_PACKAGES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Subject:
    """An environment to look at.

    Attributes:
        name: Its name, without project.
        version: Its version.
        spec: Its spec, in wire form.
        where: Where it is from, for the reader.
        library: Resolves it.
        how: How its files came to be; empty for what a server has built.
    """

    name: str
    version: str
    spec: Mapping[str, Any]
    where: str
    library: EnvironmentLibrary
    how: str = ""


class _OneDirectory(EnvironmentLibrary):
    """The library of sources that no server has: whatever bundle is asked for, it is this directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, Path)
        self._directory = directory

    def unpack(self, blob: str) -> Path:
        """Return the directory."""
        return self._directory


def is_path(what: str) -> bool:
    """Tell whether a word means files of this machine: it looks like a path, or an environment is there."""
    if what in (".", "..") or what.startswith(("./", "../", "/", "~")) or what.endswith((".py", "/")):
        return True
    if what.startswith("nodus/") or not what.isprintable():
        return False
    return any(Path(what, name).is_file() for name in ("pyproject.toml", "environment.yaml"))


def of_path(what: str, staging: Path, progress: Callable[[str], None] = lambda _: None) -> Subject:
    """Return the environment of a directory or a file, its package built.

    Args:
        what: Its path.
        staging: An empty directory for what is made of it.
        progress: Called with what is done next.

    Raises:
        BuildFailed: When it can't be built.
        NotFound: When there is nothing.
    """
    try:
        place = Path(what).expanduser()
        facts = facts_of(place)
    except (ValueError, RuntimeError) as error:  # a NUL, half of a surrogate pair; ~ of a user that there is none of
        raise NotFound(f"{what!a} is no path: {error}") from None
    spec = {**facts.spec, "version": facts.version}
    if facts.project is None:
        loader = loader_of_sources(place, facts)
        copy_sources(place, staging)
        source = {"blob": f"sha256:{sources_digest(place)}", "module": loader.partition(":")[0]}
        spec["package"] = {"source": source, "loader": loader}
        return Subject(facts.name, facts.version, spec, what, _OneDirectory(staging), "the sources as they are")
    build, store = build_package(place, facts, progress)
    spec["package"] = {"pip": {"name": facts.project.get("name"), "version": facts.version}, "loader": facts.loader}
    spec["build"] = {"digest": build.digest}
    packages = ", ".join(f"{name} {version}" for name, version in list(build.packages.items())[:_PACKAGES_SHOWN])
    more = f" and {len(build.packages) - _PACKAGES_SHOWN} more" if len(build.packages) > _PACKAGES_SHOWN else ""
    how = f"built and installed by pip: {packages}{more}"
    return Subject(facts.name, facts.version, spec, what, EnvironmentLibrary(staging, Path, store), how)


def of_catalog(name: str, version: str | None, staging: Path) -> Subject | None:
    """Return an environment of the catalog; None when it has none of that name.

    Raises:
        NotFound: When the catalog has another version.
    """
    for document in [*read_catalog(), *_with_the_operators_data(staging)]:
        spec = document["spec"]
        if document["kind"] != "Environment" or name not in _names(document["metadata"]["name"], str(spec["version"])):
            continue
        name = document["metadata"]["name"]
        if version is not None and version != str(spec["version"]):
            raise NotFound(
                f"the catalog has no {name}@{version}; it has {name}@{spec['version']}",
                fix="Older versions are kept by a server that had them.",
            )
        return Subject(name, str(spec["version"]), spec, "the catalog", EnvironmentLibrary(staging, Path))
    return None


def _names(name: str, version: str) -> tuple[str, str]:
    """Return the names of an environment: its own, and the alias of its major version, such as ``arithmetic-v2``."""
    return name, f"{name}-v{version.partition('.')[0]}"


def _with_the_operators_data(root: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the manifests whose data does not ship, where the settings of a server here say where it is.

    Raises:
        CatalogDataMissing: When that can't be used.
    """
    settings = Settings.load()
    if settings.catalog_data is None:
        return
    for one in catalogdata.found(read_catalog(directories=(OPTIONAL_DIRECTORY,)), settings.catalog_data, root):
        if one.problem is not None:
            raise catalogdata.CatalogDataMissing(one.problem)
        yield one.document


def of_server(name: str, spec: Mapping[str, Any], data_dir: Path, where: str) -> Subject:
    """Return an Environment of a server on this machine, whose data directory has its files.

    Args:
        name: The object's name.
        spec: Its spec, in wire form, at the version that is meant; with ``build.digest`` where its package is built.
        data_dir: The server's data directory.
        where: Where it is from, for the reader.
    """
    from nodus.server.store.blobs import BlobStore  # late: only here

    builds = BuildStore(data_dir / "builds")
    library = EnvironmentLibrary(data_dir / "environments", BlobStore(data_dir / "blobs").path, builds)
    return Subject(name, str(spec["version"]), spec, where, library)
