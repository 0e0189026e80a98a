"""Environments of ``verifiers`` 0.1 to 0.3, as the Environments Hub publishes them: single-turn, multi-turn and tools.

The library's own rollout loop, stop conditions, tools and rubric run here, with the model's recorded turns in place of
a model: what it would score is what is scored. An environment that needs a network, another model or a remote sandbox
is refused before its constructor runs; see ``refusals``. Of 0.4, where those are gone, ``tasksets`` has what can be
graded. The rest of this package is loaded once there is such an environment.
"""

from __future__ import annotations

import sys
from typing import Any

from nodus.grader.adapters.base import Adapter, class_names
from nodus.grader.adapters.verifiers.refusals import explain, is_taskset, prepare, refuse_recorded

__all__ = ["adapt", "explain", "found_in", "prepare", "recognises", "refuse_recorded"]


def recognises(found: object) -> bool:
    """Tell whether it is an ``Environment`` of the library, or a taskset of its newest versions."""
    return "Environment" in class_names(found, "verifiers") or is_taskset(type(found))


def found_in(module: Any) -> Any:
    """Return the taskset that a module without a loader exports, or None."""
    if "verifiers.v1" not in sys.modules:
        return None
    from nodus.grader.adapters.verifiers.tasksets import taskset_in

    return taskset_in(module)


def adapt(found: Any) -> Adapter:
    """Return the adapter of an environment.

    Raises:
        Refused: When it is of a version or of a kind that can't be graded here.
    """
    if is_taskset(type(found)):
        from nodus.grader.adapters.verifiers.tasksets import Tasksets

        return Tasksets(found)
    from nodus.grader.adapters.verifiers.adapter import Verifiers

    return Verifiers(found)
