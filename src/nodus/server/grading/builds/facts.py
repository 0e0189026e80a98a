"""What an environment says of itself when it is loaded: of a stranger's words, those that are what they should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodus.server.grading.builds.base import BuildFailed
from nodus.server.grading.verdicts import storable

_SPLITS = ("train", "test")
_TEXTS = ("name", "version", "loader", "kind", "python")
_COUNTS = ("maxTurns", "shared", "protocol")


def checked_info(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of what a runner says of an environment, which its package's code may have printed.

    Raises:
        BuildFailed: Its ``splits`` are no numbers of tasks.
    """
    splits = answer.get("splits")
    if not isinstance(splits, dict) or not all(name in _SPLITS and _is_count(many) for name, many in splits.items()):
        message = f"the environment's info names no splits with numbers of tasks: {repr(splits)[:100]}"
        raise BuildFailed(message, "Print nothing to standard error that looks like the runner's own lines.")
    kept: dict[str, Any] = {"splits": {str(name): int(many) for name, many in splits.items()}}
    kept |= {key: storable(answer[key], 100) for key in _TEXTS if isinstance(answer.get(key), str)}
    kept |= {key: answer[key] for key in _COUNTS if _is_count(answer.get(key))}
    return kept | ({"episodes": answer["episodes"]} if isinstance(answer.get("episodes"), bool) else {})


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
