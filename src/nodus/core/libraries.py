"""The libraries that rewards may import: what every grader is to have beside Python's own."""

from __future__ import annotations

from collections.abc import Mapping

GRADER_LIBRARIES: Mapping[str, str] = {
    "numpy": "numpy",
    "sympy": "sympy",
    "regex": "regex",
    "jsonschema": "jsonschema",
    "math_verify": "math-verify",
    "reasoning_gym": "reasoning-gym",
    "openenv": "openenv",
}
"""Module to the distribution that brings it. ``nodus.grader.imports`` has the same list, for sandboxes."""

GRADER_INSTALL = "scripts/setup, or pip install 'nodus-platform[environments]' && pip install --no-deps openenv==0.10.0"
"""What brings them all to a server's installation."""
