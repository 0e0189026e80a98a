"""What an installation holds: its modules, and a digest of every byte of it.

The files are strangers'. Links are never followed here; what they say counts as content.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from nodus.core.digests import digest_of
from nodus.server.grading.builds.base import BuildFailed
from nodus.server.trees import entries

_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_MODULES = ("__pycache__", "bin", "share", "include", "etc", "lib", "scripts", "tests", "test", "docs", "examples")
_BYTECODE = (".pyc", ".pyo")
_RECORD_BYTES = 8 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024


def module_of(site: Path, package: str) -> str:
    """Return the module to load of an installed package: the one of its name, else the only one it brings.

    Raises:
        BuildFailed: It brings none, or several.
    """
    named = canonicalize_name(package).replace("-", "_")
    names = {entry.name.removesuffix(".py") for entry in site.iterdir() if _MODULE.fullmatch(entry.name.split(".")[0])}
    for name in (package.replace("-", "_").replace(".", "_"), named):
        if name in names and has_module(site, name):
            return name
    brought = _brought(site, package)
    if len(brought) == 1:
        return brought[0]
    what = f"it brings {', '.join(brought)}" if brought else "it brings no module"
    raise BuildFailed(
        f"{package} has no module {named!r}: {what}", "Name what to load: spec.package.loader: module:function."
    )


def has_module(site: Path, module: str) -> bool:
    """Tell whether a dotted module is there."""
    place = site.joinpath(*module.split("."))
    if not all(_MODULE.fullmatch(part) for part in module.split(".")):
        return False
    return (
        place.is_dir() or place.with_name(f"{place.name}.py").is_file() or any(place.parent.glob(f"{place.name}.*.so"))
    )


def _brought(site: Path, package: str) -> list[str]:
    """Return the top-level modules that the package's own list of files names."""
    found: dict[str, None] = {}
    for directory in site.glob("*.dist-info"):
        if canonicalize_name(directory.name.split("-")[0]) != canonicalize_name(package):
            continue
        try:
            handle = os.open(directory / "RECORD", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        with open(handle, "rb") as file:
            lines = file.read(_RECORD_BYTES).decode(errors="replace").splitlines()
        for line in lines:
            path = line.split(",")[0].strip('"')
            top, _, rest = path.partition("/")
            name = top if rest else top.removesuffix(".py")
            if (rest or top.endswith(".py")) and path.endswith(".py") and _MODULE.fullmatch(name):
                found.setdefault(name)
    return [name for name in found if name not in _NOT_MODULES]


def drop_locks(cache: Path) -> None:
    """Remove lock files that libraries left: nothing holds them any more."""
    for path in list(_files(cache)):
        if path.name.endswith(".lock"):
            path.unlink(missing_ok=True)


def drop_bytecode(site: Path) -> None:
    """Remove compiled modules: whoever made them may have had other sources."""
    for path in list(_files(site)):
        if path.suffix in _BYTECODE:
            path.unlink(missing_ok=True)


def _nothing() -> None:
    """Go on."""


def tree_digest(root: Path, check: Callable[[], None] = _nothing) -> str:
    """Return a digest of all files, links and executable bits below a directory, by their paths.

    Compiled modules count for nothing: they are made here, from the sources.

    Args:
        root: The directory.
        check: Called again and again meanwhile; what it raises ends this.

    Raises:
        TreeRefused: Directories are nested too deep.
    """
    listed: list[tuple[str, str | bool, str]] = []
    for path in sorted(path for path in _files(root) if path.suffix not in _BYTECODE):
        relative = os.fsencode(path.relative_to(root)).decode("utf-8", "surrogateescape").encode("utf-8", "replace")
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            listed.append((relative.decode(), "link", os.fsencode(os.readlink(path)).decode("utf-8", "replace")))
        elif stat.S_ISREG(found.st_mode):
            listed.append((relative.decode(), bool(found.st_mode & stat.S_IXUSR), _sha256(path, check)))
    return digest_of(listed)


def mentions(root: Path, text: bytes, check: Callable[[], None] = _nothing) -> bool:
    """Tell whether a Python source below a directory holds a text; ``check`` is as for :func:`tree_digest`."""
    return any(
        path.suffix == ".py" and stat.S_ISREG(path.lstat().st_mode) and _holds(path, text, check)
        for path in _files(root)
    )


def _holds(path: Path, text: bytes, check: Callable[[], None]) -> bool:
    end = b""
    for block in _blocks(path, check):
        if text in end + block:
            return True
        end = (end + block)[-len(text) + 1 :]  # a text may begin in one block and end in the next
    return False


def _files(root: Path) -> Iterator[Path]:
    """Yield files and links, not going through links."""
    return (Path(entry.path) for entry in entries(root) if not entry.is_dir(follow_symlinks=False))


def _blocks(path: Path, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield a file's content in pieces that fit into memory."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        check()
        while block := file.read(_BLOCK_BYTES):
            yield block
            check()


def _sha256(path: Path, check: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    for block in _blocks(path, check):
        digest.update(block)
    return digest.hexdigest()
