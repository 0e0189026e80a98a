"""Which version of the library is installed."""

from __future__ import annotations

import sys

VERSIONS = "0.1.2 or later, before 0.4"


def installed() -> str:
    """Return the version of the library that was imported."""
    return str(getattr(sys.modules.get("verifiers"), "__version__", "unknown"))


def version_of(text: str) -> tuple[int, ...]:
    """Return a version's first three numbers, those that it has; empty for what is no version."""
    parts = text.split("+")[0].split(".")[:3]
    return tuple(int(part) for part in parts if part.isdigit())
