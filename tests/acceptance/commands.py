"""The real command line against a server of a test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodus.server.lifecycle import Started
from nodus.testing.eventually import eventually

NODUS = str(Path(sys.executable).parent / "nodus")
Run = Callable[..., str]
"""Runs ``nodus`` with these words, which must succeed, and returns its output."""


def command_line(server: Started, home: Path, **variables: str) -> Run:
    """Return what runs ``nodus`` against a server, with its first key, from ``home``.

    Args:
        server: The server, as it was first started.
        home: The user's home and working directory.
        variables: Further ones of the environment.
    """
    environment = {
        "HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "NODUS_API_URL": server.url,
        "NODUS_API_KEY": str(server.api_key), **variables,
    }  # fmt: skip
    if database := os.environ.get("NODUS_SERVER_DATABASE_URL"):
        environment["NODUS_SERVER_DATABASE_URL"] = database  # For what reads it without the server.

    def run(*words: str) -> str:
        done = subprocess.run(
            [NODUS, *words], env=environment, cwd=home, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def get(nodus: Run, name: str, project: str = "default") -> dict[str, Any]:
    """Return an object as it is now."""
    found: dict[str, Any] = json.loads(nodus("get", name, "-p", project, "-o", "json"))
    return found


def is_in(nodus: Run, name: str, phase: str, project: str = "default", timeout_s: float = 60) -> dict[str, Any]:
    """Return an object once it is in a phase."""

    def found() -> dict[str, Any] | None:
        now = get(nodus, name, project)
        return now if now["status"].get("phase") == phase else None

    there = eventually(found, timeout_s=timeout_s)
    assert there is not None
    return there
