"""Interpreters for graders on this machine: the server's own, and others that a bundle's compiled modules need.

Another interpreter is one of the operator's: ``python3.12`` in a directory of the server's ``PATH`` that nobody else
can write. It is asked, once, what it is; what it answers is checked. It brings its own installed libraries.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nodus.server.compute.local.mounts import interpreter, site_packages

_VERSION = re.compile(r"3\.\d{1,2}t?")
_TIMEOUT_S = 10.0
_ASK = """
import json, os, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "tag": sysconfig.get_config_var("SOABI"),
    "program": os.path.realpath(sys.executable),
    "prefix": os.path.realpath(sys.base_prefix),
    "packages": [os.path.abspath(paths[name]) for name in ("purelib", "platlib")],
}))
"""
_known: dict[str, Python] = {}


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter of this machine.

    Attributes:
        version: Such as ``3.12``.
        tag: What its compiled modules are named after.
        program: Path of the base interpreter, not of a virtual environment's link to it.
        prefix: Where its standard library is.
        packages: The directories of its installed packages.
    """

    version: str
    tag: str
    program: str
    prefix: str
    packages: tuple[str, ...]


def own() -> Python:
    """Return the server's own interpreter."""
    version = ".".join(map(str, sys.version_info[:2]))
    tag = str(sysconfig.get_config_var("SOABI"))
    return Python(version, tag, interpreter(), os.path.realpath(sys.base_prefix), site_packages())


def find(version: str) -> Python | None:
    """Return an interpreter of a version on this machine, or None; a found one is remembered.

    Args:
        version: Such as ``3.12``, or ``3.13t`` for a free-threaded build.
    """
    if version not in _known:
        for candidate in candidates(version, os.environ.get("PATH", "")):
            if (python := ask(candidate, version)) is not None:
                _known[version] = python
                break
    return _known.get(version)


def candidates(version: str, search: str, trusted: Iterable[int] | None = None) -> Iterator[str]:
    """Yield programs named after a version in directories that only the operator can change.

    Args:
        version: Such as ``3.12``; anything else yields nothing.
        search: Directories, as in ``PATH``; relative and empty entries are passed over.
        trusted: User ids whose files may be run: root's and the server's own when None.
    """
    if not _VERSION.fullmatch(version):
        return
    owners = frozenset(trusted) if trusted is not None else frozenset({0, os.geteuid()})
    for entry in search.split(os.pathsep):
        if not os.path.isabs(entry):
            continue
        path = os.path.join(entry, f"python{version}")
        real = os.path.realpath(path)
        places = (entry, os.path.dirname(real), real)
        if os.access(path, os.X_OK) and all(_is_safe(place, owners) for place in places):
            yield path


def ask(program: str, version: str) -> Python | None:
    """Run an interpreter to learn what it is; None when it does not answer as one of that version."""
    try:
        done = subprocess.run(
            [program, "-I", "-c", _ASK],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            cwd="/",
            env={"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8"},
            check=True,
        )
        said = json.loads(done.stdout)
        python = Python(
            version=str(said["version"]) + ("t" if version.endswith("t") else ""),
            tag=str(said["tag"]),
            program=str(said["program"]),
            prefix=str(said["prefix"]),
            packages=tuple(dict.fromkeys(map(str, said["packages"]))),
        )
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError):
        return None
    fits = python.version == version and f"-{version.replace('.', '')}-" in python.tag
    return python if fits and Path(python.program).is_file() else None


def _is_safe(path: str, owners: frozenset[int]) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return found.st_uid in owners and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
