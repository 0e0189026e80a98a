"""What of the host a sandbox sees: a stated list of paths, turned into bubblewrap's options.

Standard library only, importable alone. Never all of ``/etc``, never a home directory, never a socket that was not
asked for by name.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# what the loader, the C library and Debian's alternatives need; no account, host or credential files
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "mime.types")
_WORLD_WRITABLE = "1777"

IDENTITY_FILES: dict[str, bytes] = {
    "/etc/passwd": b"root:x:0:0:root:/:/usr/sbin/nologin\nnodus:x:10001:10001:nodus:/tmp:/bin/sh\n",
    "/etc/group": b"root:x:0:\nnodus:x:10001:\n",
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
    "/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n",
}
"""Names for a sandbox's own users and hosts, so that ``getpwuid`` and ``localhost`` work without the host's files."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path seen inside a sandbox.

    Attributes:
        host: The path on the host, or a symbolic link's target when ``symlink``.
        path: The absolute path inside.
        readonly: Whether writes are refused.
        symlink: Make a symbolic link at ``path`` to ``host`` instead of binding it.
    """

    host: str
    path: str
    readonly: bool = True
    symlink: bool = False


def system_mounts() -> tuple[Mount, ...]:
    """Return the operating system's programs and libraries, read-only."""
    found = [Mount("/usr", "/usr")]
    for name in _TOP_LEVEL:
        path = Path("/", name)
        if path.is_symlink():
            found.append(Mount(os.readlink(path), str(path), symlink=True))
        elif path.is_dir():
            found.append(Mount(str(path), str(path)))
    found += [Mount(f"/etc/{name}", f"/etc/{name}") for name in _ETC if Path("/etc", name).exists()]
    return tuple(found)


def interpreter() -> str:
    """Return the path of the base interpreter (not a virtual environment's link to it), the same in a sandbox."""
    return os.path.realpath(sys.executable)


def site_packages() -> tuple[str, ...]:
    """Return the directories this installation's packages are in."""
    paths = sysconfig.get_paths()
    return tuple(dict.fromkeys(os.path.abspath(paths[name]) for name in ("purelib", "platlib")))


def interpreter_mounts(
    prefix: str | None = None, program: str | None = None, *, environment: bool = False
) -> tuple[Mount, ...]:
    """Return the mounts that a Python needs beyond ``system_mounts``, each under its own path.

    Args:
        prefix: Where its standard library is; this Python's when None.
        program: Its base interpreter; this Python's when None.
        environment: Also the virtual environment (or, without one, nothing more), for programs that import what is
            installed beside the server.
    """
    prefixes = [prefix or os.path.realpath(sys.base_prefix), str(Path(program or interpreter()).parent)]
    if environment:
        prefixes += [os.path.abspath(sys.prefix), *site_packages()]
    return tuple(Mount(path, path) for path in _outermost(prefixes))


def package_root() -> str:
    """Return the directory that holds the ``nodus`` package (``src`` in a checkout, site-packages when installed)."""
    return str(Path(__file__).resolve().parents[4])


def _outermost(paths: Iterable[str]) -> list[str]:
    """Drop what is below /usr or below another path of the list."""
    kept: list[str] = []
    for path in sorted(dict.fromkeys(paths)):
        if path == "/usr" or path.startswith("/usr/"):
            continue
        if not any(path.startswith(other + "/") for other in kept):
            kept.append(path)
    return kept


def options(
    binds: Iterable[Mount],
    tmpfs: Mapping[str, int],
    file_fds: Mapping[str, int],
    devices: Iterable[str],
    below: str = "",
) -> list[str]:
    """Return bubblewrap's options for a root file system of exactly these parts, read-only where nothing else is said.

    Outer paths come before inner ones whatever the order given, so a tmpfs at ``/tmp`` never hides a bind below it.

    Args:
        binds: Host paths.
        tmpfs: Directories in memory, path to size in bytes.
        file_fds: Files, path to the descriptor of their content.
        devices: Host devices.
        below: Where /proc and /dev are, such as ``/image``; the root when empty.
    """
    proc, dev = f"{below}/proc", f"{below}/dev"
    parts: dict[str, list[str]] = {proc: ["--proc", proc], dev: ["--dev", dev]}
    for path, size in tmpfs.items():
        parts[path] = ["--perms", _WORLD_WRITABLE, "--size", str(size), "--tmpfs", path]
    for device in devices:
        parts[device] = ["--dev-bind", device, device]
    for mount in binds:
        kind = "--symlink" if mount.symlink else "--ro-bind" if mount.readonly else "--bind"
        parts[mount.path] = [kind, mount.host, mount.path]
    for path, descriptor in file_fds.items():
        parts[path] = ["--perms", "0444", "--ro-bind-data", str(descriptor), path]
    result: list[str] = []
    made: set[str] = {"/"}
    for path in sorted(parts, key=lambda item: (len(PurePosixPath(item).parts), item)):
        for parent in reversed(PurePosixPath(path).parents):
            name = str(parent)
            if name not in made and name not in parts:
                # made by hand: as root bubblewrap would make missing parents 0700, closed to the sandbox's uid
                result += ["--perms", "0755", "--dir", name]
                made.add(name)
        result += parts[path]
    return [*result, "--remount-ro", dev, "--remount-ro", "/"]
