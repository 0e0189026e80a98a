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
from collections.abc import Sequence
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
    options = [*requirements, *(["--constraint", str(PINS / pins)] if pins else [])]
    options += [] if dependencies else ["--no-deps"]
    content = (PINS / pins).read_text() if pins else ""
    digest = hashlib.sha256("\n".join([sys.version, content, *requirements, str(dependencies)]).encode()).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", requirements[0])[:40]
    home = cache() / f"{readable}-{digest[:8]}"
    packages = home / "lib" / _PYTHON / "site-packages"
    with home.with_name(home.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / ".ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            run(sys.executable, "-m", "venv", "--without-pip", str(home))
            python = str(home / "bin" / "python")
            run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *options)
            (home / ".ready").touch()
    return packages
