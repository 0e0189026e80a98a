"""Which Python and which libraries grade, and what an environment lacks of the libraries that graders are to have."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from nodus.core.errors import NodusError
from nodus.core.libraries import GRADER_INSTALL, GRADER_LIBRARIES


class GraderLibraryMissing(NodusError):
    """A reward imports one of the graders' libraries, and this server was set up without it."""

    reason, status = "GraderLibraryMissing", 422


@cache
def installed() -> dict[str, Any]:
    """Return the version of this server's Python, and of each of the graders' libraries that is installed with it."""
    found = {}
    for distribution in GRADER_LIBRARIES.values():
        try:
            found[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "libraries": found}


def grader_facts(reported: Mapping[str, Any], python: str | None) -> dict[str, Any]:
    """Return what an Environment's status says of its grader.

    Args:
        reported: What the runner's ``libraries`` command said inside the grader's sandbox.
        python: The version that the bundle needs, when that is not the graders' own.

    Raises:
        GraderLibraryMissing: When the environment imports a library that is not there.
    """
    missing = {str(module): str(why) for module, why in dict(reported.get("missing") or {}).items()}
    if missing:
        names = " and ".join(GRADER_LIBRARIES.get(module, module) for module in missing)
        where = f"python{python}" if python else "this server"
        raise GraderLibraryMissing(
            f"the environment imports {names}, which graders of {where} lack: {next(iter(missing.values()))}",
            fix=_fix(missing, python),
        )
    versions = {str(name): str(version) for name, version in dict(reported.get("libraries") or {}).items()}
    return {"python": str(reported.get("python")), "libraries": versions}


def _fix(missing: Mapping[str, str], python: str | None) -> str:
    if python is None:
        return f"On the server's machine run {GRADER_INSTALL}; then start the server again."
    names = " ".join(GRADER_LIBRARIES.get(module, module) for module in missing)
    return f"On the server's machine run python{python} -m pip install {names}; then apply the environment again."
