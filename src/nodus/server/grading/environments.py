"""From an Environment's spec to something that can be run: its package's files, its digest, its limits.

Two packagings are understood: environments of the catalog (modules beside the runner) and source bundles (a tar.gz blob
with a module, and vendored packages under ``site/``). A bundle is unpacked once per content, into a directory that
sandboxes see read-only.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nodus.core.digests import digest_of
from nodus.core.durations import parse_duration
from nodus.core.errors import ImageNotReady, Unsupported
from nodus.core.kinds.image import image_name
from nodus.core.sizes import quantity
from nodus.server.compute.graders import GraderRoot
from nodus.server.files import sync_directory
from nodus.server.grading.builds.base import Build
from nodus.server.grading.builds.keeping import BuildStore
from nodus.server.grading.compiled import BadBundle
from nodus.server.grading.libraries import installed
from nodus.server.grading.oci.recipe import image_root
from nodus.server.tarfiles import BoundedTarInfo

MIB = 1024 * 1024
GRADER_PROTOCOL = 1
"""The runner's ``PROTOCOL_VERSION``; part of every digest, since it decides ids, order and verdicts."""
BUNDLE_BYTES = 512 * 1024
UNPACKED_BYTES = 64 * MIB
_ARCHIVE_BYTES = UNPACKED_BYTES + 16 * MIB  # with headers and padding
_BAD_NAMES = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
BUNDLE_FILES = 5000
DEFAULT_TIMEOUT_S = 10.0
DEFAULT_MEMORY_BYTES = 1024 * MIB
_CODE_MODULE = re.compile(rb"nodus\.grader(\.code\b|\s+import\b)")
_CATALOG_PACKAGE = "nodus.grader.catalog"
_SHARED_SOURCES = {"gsm8k_full": ("gsm8k/__init__.py",)}
"""What a catalog environment takes from another one."""
_CATALOG = Path(__file__).resolve().parents[2] / "grader" / "catalog"


@dataclass(frozen=True, slots=True)
class ResolvedEnvironment:
    """An Environment at one version, ready to run.

    Attributes:
        name: Its name, without project.
        version: Its version.
        digest: ``sha256:`` of everything that decides tasks and verdicts.
        loader: What the runner loads: ``module`` or ``module:function``.
        directory: The unpacked bundle on the host; None for the catalog.
        exact_match: The name of its ExactMatch grader when nothing else grades; None for a program.
        timeout_s: Wall limit of one completion.
        memory_bytes: Memory limit of a grader.
        python: Version of the Python that its compiled modules need, such as ``3.12``; None for the graders' own.
        packages: Directories of the packages it was built into; its graders have these instead of their own libraries.
        cache: What its build fetched besides.
        runs_code: Whether its sources import what runs code of completions, so that its graders need a code sandbox.
        root: The image it comes from, unpacked, with the program that lists and grades there; None for Nodus's runner.
    """

    name: str
    version: str
    digest: str
    loader: str
    directory: Path | None = None
    exact_match: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    python: str | None = None
    runs_code: bool = False
    packages: tuple[Path, ...] = ()
    cache: Path | None = None
    root: GraderRoot | None = None


def catalog_status(name: str, spec: Mapping[str, Any], root: Path = Path()) -> dict[str, Any]:
    """Return the status of an environment of the catalog: Ready, with its digest, the sizes it declares, its grader.

    Args:
        name: The object's name.
        spec: Its spec, in wire form.
        root: Directory of unpacked bundles, for one whose data does not ship.
    """
    library = EnvironmentLibrary(root, lambda blob: Path(blob))
    declared = spec.get("splits") or {}
    splits = {split: int((declared.get(split) or {}).get("size", 0)) for split in ("train", "test")}
    resolved = library.resolve(name, spec)
    grader = {} if resolved.exact_match else {"grader": installed()}
    return {"phase": "Ready", "digest": resolved.digest, "splits": splits, **grader}


class EnvironmentLibrary:
    """Resolves Environments and keeps their unpacked bundles.

    Args:
        root: Directory of the unpacked bundles.
        blob_path: From a blob's ``sha256:`` digest to its file; raises NotFound for one that cannot be.
        builds: What packages were built into; None where none can be.
    """

    def __init__(self, root: Path, blob_path: Callable[[str], Path], builds: BuildStore | None = None) -> None:
        self._root = root
        self._blob_path = blob_path
        self._builds = builds

    def resolve(self, name: str, spec: Mapping[str, Any]) -> ResolvedEnvironment:
        """Return an Environment of this spec, its bundle unpacked.

        Args:
            name: The object's name.
            spec: Its spec, in wire form, at the version that is meant.

        Raises:
            Unsupported: For a packaging that is unknown.
            BadBundle: When the bundle cannot be unpacked.
            ImageNotReady: When the Image that its package is built into is not there, or not finished.
        """
        package, module, build = spec["package"], "", None
        if package.get("catalog"):
            module = str(package["catalog"]["module"])
            directory, loader = None, f"{_CATALOG_PACKAGE}.{module.removeprefix(_CATALOG_PACKAGE + '.')}"
            sources: Any = _catalog_sources(module.removeprefix(_CATALOG_PACKAGE + "."))
            if data := package["catalog"].get("data"):
                directory, sources = self._catalog_data(name, data), {**sources, "data": data}
        elif package.get("source"):
            sources = str(package["source"]["blob"])
            directory, loader = self.unpack(sources), str(package["source"]["module"])
        elif package.get("pip"):
            build = self._build(name, spec)
            directory, loader, sources = None, str(build.facts["loader"]), build.digest
        elif package.get("image"):
            build = self._build(name, spec)
            directory, loader, sources = None, "", build.digest  # an image knows what it loads
        else:
            raise Unsupported(
                f"environment {name!r} is packaged in a way that this server does not know",
                fix="Package it as sources: spec.package.source {blob, module}; rl.train does that.",
            )
        if package.get("loader") and build is None:
            loader = str(package["loader"])
        graders = [dict(grader) for grader in spec.get("graders") or []]
        version = str(spec["version"])
        identity = {
            "protocol": GRADER_PROTOCOL,
            "name": name,
            "version": version,
            "loader": loader,
            "sources": sources,
            "graders": graders,
            "requirements": spec.get("requirements") or {},
        }
        limits = spec.get("sandbox") or {}
        return ResolvedEnvironment(
            name=name,
            version=version,
            digest=digest_of(identity),
            loader=loader,
            directory=directory,
            exact_match=None if package.get("image") else _exact_match(graders),
            timeout_s=parse_duration(limits["timeout"]) if limits.get("timeout") else DEFAULT_TIMEOUT_S,
            memory_bytes=int(quantity(limits["memory"])) if limits.get("memory") else DEFAULT_MEMORY_BYTES,
            **(
                _of_build(build)
                if build is not None
                else {"runs_code": _runs_code(directory or _catalog_place(module))}
            ),
        )

    def _build(self, name: str, spec: Mapping[str, Any]) -> Build:
        """Return what the package of an Environment was built into: ``spec.build.digest`` says which build."""
        version = str(spec["version"])
        digest = (spec.get("build") or {}).get("digest")
        build = self._builds.find(str(digest)) if digest and self._builds is not None else None
        if build is None:
            image = image_name(name, version)
            raise ImageNotReady(
                f"environment {name}@{version} has no finished image {image}",
                fix=f"nodus get image/{image} shows its build; apply the environment at that version if there is none.",
            )
        return build

    def _catalog_data(self, name: str, digest: str) -> Path:
        directory = catalog_data_directory(self._root, digest)
        if not directory.is_dir():
            raise BadBundle(
                f"the data of {name} is gone: there is no {directory}", fix="Start the server again, which writes it."
            )
        return directory

    def unpack(self, blob: str) -> Path:
        """Return the directory of a bundle, unpacking it if that was not done before.

        Raises:
            BadBundle: When it is not there, too large, not a tar.gz, or holds what a bundle may not hold.
        """
        target = self._root / blob.removeprefix("sha256:")
        if target.is_dir():
            return target
        path = self._blob_path(blob)
        if not path.is_file():
            raise BadBundle(f"the bundle {blob} was never uploaded", fix="Upload the blob first, then apply again.")
        size = path.stat().st_size
        if size > BUNDLE_BYTES:
            raise BadBundle(f"the bundle has {size} bytes; at most {BUNDLE_BYTES} are allowed")
        self._root.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=self._root))
        try:
            unpack_bundle(path.read_bytes(), staging)
            staging.rename(target)
            sync_directory(self._root)
        except OSError:
            if not target.is_dir():  # another process may have unpacked it meanwhile
                raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return target


def catalog_data_directory(root: Path, digest: str) -> Path:
    """Return where the operator's data of a catalog environment is kept.

    Args:
        root: Directory of unpacked bundles.
        digest: ``sha256:`` of the data.
    """
    return root / f"catalog-{digest.removeprefix('sha256:')}"


def unpack_bundle(data: bytes, target: Path) -> None:
    """Unpack a tar.gz of plain files into a directory.

    Raises:
        BadBundle: For anything that is no plain file or directory below the root, and for too much of it.
    """
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            # Bounded before tarfile sees it: that reads some headers whole, however long they say they are.
            content = stream.read(_ARCHIVE_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise BadBundle(f"the bundle is no readable tar.gz: {error}") from None
    if len(content) > _ARCHIVE_BYTES:
        raise BadBundle(f"the bundle unpacks to more than {UNPACKED_BYTES // MIB} MiB")
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:", tarinfo=BoundedTarInfo) as archive:
            _unpack(archive, target)
    except (tarfile.TarError, ValueError, KeyError, ArithmeticError) as error:
        raise BadBundle(f"the bundle is no readable tar.gz: {error}") from None
    except OSError as error:
        if error.errno not in _BAD_NAMES:
            raise  # the disk's trouble, not the bundle's
        raise BadBundle(f"the bundle holds a path that can't be made: {error.strerror}") from None
    _settle(target)


def _settle(root: Path) -> None:
    """Let other users read what was unpacked, and make it durable: a directory that is there is taken to be whole."""
    for directory, _, files in os.walk(root):
        for name in files:
            with open(Path(directory, name), "rb") as file:
                os.fsync(file.fileno())
        os.chmod(directory, 0o755)
        sync_directory(Path(directory))


def _unpack(archive: tarfile.TarFile, target: Path) -> None:
    left_bytes = UNPACKED_BYTES
    for count, member in enumerate(archive):
        if count >= BUNDLE_FILES:
            raise BadBundle(f"the bundle has more than {BUNDLE_FILES} files")
        place = _place(member, target)
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
            continue
        left_bytes -= member.size
        if left_bytes < 0:
            raise BadBundle(f"the bundle unpacks to more than {UNPACKED_BYTES // MIB} MiB")
        source = archive.extractfile(member)
        if source is None:
            raise BadBundle(f"{member.name!r} in the bundle is no plain file")
        place.parent.mkdir(parents=True, exist_ok=True)
        with source, place.open("wb") as stream:
            shutil.copyfileobj(source, stream)
        place.chmod(0o644)


def _place(member: tarfile.TarInfo, target: Path) -> Path:
    """Return where a member goes; only below ``target``, whatever its name says."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\0" in member.name:
        raise BadBundle(f"{member.name!r} in the bundle leads out of it")
    if not (member.isreg() or member.isdir()):
        raise BadBundle(f"{member.name!r} in the bundle is a link or a device; only files and directories are allowed")
    return target.joinpath(*path.parts)


def _catalog_sources(module: str) -> dict[str, str]:
    """Return the digest of each file that a catalog environment is made of: its sources and its data."""
    place = _catalog_place(module)
    if not place.is_dir():
        files = [place, *(_CATALOG / file for file in _SHARED_SOURCES.get(module, ()))]
    else:
        files = sorted(path for path in place.rglob("*") if path.suffix in (".py", ".jsonl"))
    return {str(file.relative_to(_CATALOG)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _catalog_place(module: str) -> Path:
    """Return the directory or the file of an environment of the catalog."""
    place = _CATALOG / module.removeprefix(_CATALOG_PACKAGE + ".")
    return place if place.is_dir() else place.with_suffix(".py")


def _runs_code(place: Path) -> bool:
    """Say whether sources mention the module that runs code; one that does so in vain gets a sandbox it never uses."""
    files = place.rglob("*.py") if place.is_dir() else [place]
    return any(_CODE_MODULE.search(file.read_bytes()) for file in files)


def _of_build(build: Build) -> dict[str, Any]:
    """Return what graders of a build get, beside what its Environment says."""
    if "program" in build.facts:
        return {"root": image_root(build)}
    own = ".".join(map(str, sys.version_info[:2]))
    python = str(build.facts.get("python") or own)
    return {
        "python": None if python == own else python,
        "runs_code": bool(build.facts.get("runsCode")),
        "packages": (build.directory / "site",),
        "cache": build.directory / "cache",
    }


def _exact_match(graders: Sequence[Mapping[str, Any]]) -> str | None:
    if graders and all(grader.get("kind") == "ExactMatch" for grader in graders):
        return str(graders[0].get("name"))
    return None
