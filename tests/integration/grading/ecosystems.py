"""Real libraries of other ecosystems for tests, each set in an environment of its own that pip makes once a machine.

They are kept where the published client is, in the user's cache directory, and whoever needs one first makes it while
others wait. ``pins/`` has what a set's dependencies were when it was tested, so that a new release breaks nothing here.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.interop._published import cache, run

PINS = Path(__file__).with_name("pins")
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def environment_of(requirements: Sequence[str], *, pins: str | None = None, dependencies: bool = True) -> Path:
    """Return the ``site-packages`` directory of an environment with some packages, made where it isn't there yet.

    Args:
        requirements: What pip installs, such as ``["skyrl-gym==0.4.0"]``; versions are exact, or the cache goes stale.
        pins: A file of ``pins/`` that holds the versions of their dependencies, such as ``verifiers.txt``.
        dependencies: Whether their dependencies are installed too. Without, the directory goes before another's on the
            path: one version of a library over the dependencies of another.

    Raises:
        Unreachable: When it has to be made and the package index can't be reached.
        RuntimeError: When pip fails otherwise; the text is its output's end.
    """
    options = [*_options(requirements, pins), *([] if dependencies else ["--no-deps"])]
    home = cache() / _named(requirements, pins, "environment" if dependencies else "alone")

    def make() -> None:
        run(sys.executable, "-m", "venv", "--without-pip", str(home))
        run(sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet", *options)

    _made_once(home, make)
    return home / "lib" / _PYTHON / "site-packages"


def wheels_of(requirements: Sequence[str], *, pins: str | None = None) -> Path:
    """Return a directory of the wheels of packages and their dependencies, to serve as an index; see the other one."""
    home = cache() / _named(requirements, pins, "wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "-w", str(home), *_options(requirements, pins)]
    _made_once(home, lambda: run(*command))
    return home


def _options(requirements: Sequence[str], pins: str | None) -> list[str]:
    return [*requirements, *(["--constraint", str(PINS / pins)] if pins else [])]


def _named(requirements: Sequence[str], pins: str | None, what: str) -> str:
    content = (PINS / pins).read_text() if pins else ""
    digest = hashlib.sha256("\n".join([sys.version, content, *requirements, what]).encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', requirements[0])[:40]}-{digest[:8]}"


def _made_once(home: Path, make: Callable[[], None]) -> None:
    with home.with_name(home.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / ".ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            make()
            (home / ".ready").touch()
