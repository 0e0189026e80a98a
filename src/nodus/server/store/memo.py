"""Answers that hold until the database changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nodus.server.store.dialects import VersionProbe

_MOST = 2_000


class Memo:
    """Remembers answers together with the database's version before they were read. For one thread.

    Args:
        probe: tells the version.
    """

    def __init__(self, probe: VersionProbe) -> None:
        self._probe = probe
        self._held: dict[Hashable, tuple[int, Any]] = {}

    def get(self, question: Hashable, read: Callable[[], Any]) -> Any:
        """Return the remembered answer if the database is as it was, else what ``read`` returns.

        Raises:
            Exception: whatever ``read`` raises; that is not remembered.
        """
        version = self._probe.version()
        held = self._held.get(question)
        if held is not None and held[0] == version:
            return held[1]
        # Read after the version: the answer may be newer than it, never older.
        answer = read()
        if len(self._held) >= _MOST:
            self._held.clear()
        self._held[question] = (version, answer)
        return answer

    def close(self) -> None:
        """Forget everything and let go of the database."""
        self._held.clear()
        self._probe.close()
