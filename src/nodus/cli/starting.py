"""Words about a sandbox that others wait for."""

from __future__ import annotations

import sys
import threading

from nodus.cli.colour import visible
from nodus.cli.session import Session
from nodus.cli.targets import Target
from nodus.core.errors import NodusError

PATIENCE_S = 2.0
"""How long a sandbox may take to start before a word is said about it."""


class Telling:
    """A context manager around what needs a running sandbox: says what that waits for, when it isn't running soon."""

    def __init__(self, session: Session, target: Target) -> None:
        self._session, self._target = session, target
        self._over = threading.Event()

    def __enter__(self) -> None:
        # A daemon: an interrupted command does not wait for it.
        threading.Thread(target=self._tell, daemon=True).start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()

    def _tell(self) -> None:
        told = ""
        while not self._over.wait(PATIENCE_S):
            try:
                found = self._session.get(self._target.kind, str(self._target.name), project=self._target.project)
                status = self._session.run(found).get("status") or {}
            except NodusError:
                continue  # the start itself says what is wrong
            if status.get("phase") == "Running":
                return  # what takes its time now is the work itself
            parts = [f"sandbox/{self._target.name} is {status.get('phase') or 'Pending'}", status.get("message")]
            text = ": ".join(str(part) for part in parts if part)
            if text != told and not self._over.is_set():
                told = text
                print(visible(f"{text}; waiting for it"), file=sys.stderr, flush=True)
