"""The published client in an environment of its own, installed once a machine and used as a black box.

It is kept in the user's cache directory, never in this repository: nothing of it is imported, read or copied here.
``NODUS_PUBLISHED_CLIENT`` names an environment that is there already.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "1.0.32"
REQUIREMENT = f"nodus-compute=={VERSION}"
# Read before the tests move HOME and clear what begins with NODUS_: pip needs the user's configuration.
_GIVEN = os.environ.get("NODUS_PUBLISHED_CLIENT")
_USER = dict(os.environ)
_NO_NETWORK = (
    "NewConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "Temporary failure in name resolution",
    "Network is unreachable", "ProxyError", "Could not fetch URL", "No route to host",
)  # fmt: skip


class Unreachable(Exception):
    """The package index can't be reached; the text is pip's."""


def cache() -> Path:
    """Where the environment is kept: the user's cache, or the temporary directory where there is none to write to."""
    base = Path(_USER.get("XDG_CACHE_HOME") or Path(_USER.get("HOME") or "/nonexistent") / ".cache")
    for directory in (base / "nodus-tests", Path(tempfile.gettempdir()) / f"nodus-tests-{os.getuid()}"):
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            if os.access(directory, os.W_OK):
                return directory
    raise RuntimeError("there is no directory to keep the published client in")


def environment() -> Path:
    """Return the directory of an environment that holds the published client, making it where there is none.

    Raises:
        Unreachable: When it has to be installed and the package index can't be reached.
    """
    if _GIVEN:
        return Path(_GIVEN)
    home = cache() / f"published-{VERSION}-python{sys.version_info.major}.{sys.version_info.minor}"
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs of the tests install it once
        if not (home / ".ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            run(sys.executable, "-m", "venv", str(home))
            run(str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", REQUIREMENT)
            (home / ".ready").touch()
    return home


def install(environment: Path, requirement: str) -> None:
    """Add a package that a reward imports, unless it is there.

    Raises:
        Unreachable: When the package index can't be reached.
    """
    python = str(environment / "bin" / "python")
    name = requirement.partition("==")[0]
    there = subprocess.run([python, "-m", "pip", "show", "--quiet", name], env=_USER, capture_output=True, check=False)
    if there.returncode:
        run(python, "-m", "pip", "install", "--quiet", requirement)


def run(*command: str) -> None:
    """Run a command of the user's, such as pip.

    Raises:
        Unreachable: When it says that a package index can't be reached.
        RuntimeError: When it fails otherwise.
    """
    done = subprocess.run(command, env=_USER, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode == 0:
        return
    if any(word in done.stderr for word in _NO_NETWORK):
        raise Unreachable(done.stderr.strip()[-500:])
    raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
