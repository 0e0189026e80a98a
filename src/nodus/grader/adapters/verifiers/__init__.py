"""Environments of ``verifiers`` 0.1 to 0.3, as the Environments Hub publishes them: single-turn, multi-turn and tools.

The library's own rollout loop, stop conditions, tools and rubric run here, with the model's recorded turns in place of
a model: what it would score is what is scored. An environment that needs a network, another model or a remote sandbox
is refused before its constructor runs; see ``refusals``. The rest of this package is loaded once there is such an
environment.
"""

from __future__ import annotations

from typing import Any

from nodus.grader.adapters.base import Adapter
from nodus.grader.adapters.verifiers.refusals import prepare, refuse_recorded

__all__ = ["adapt", "prepare", "recognises", "refuse_recorded"]


def recognises(found: object) -> bool:
    """Tell whether it is an ``Environment`` of the library."""
    return any(
        cls.__name__ == "Environment" and cls.__module__.partition(".")[0] == "verifiers" for cls in type(found).__mro__
    )


def adapt(found: Any) -> Adapter:
    """Return the adapter of an environment.

    Raises:
        Refused: When it is of a version or of a kind that can't be graded here.
    """
    from nodus.grader.adapters.verifiers.adapter import Verifiers

    return Verifiers(found)
