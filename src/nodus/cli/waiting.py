"""Waits for objects, all at once: the first one that can't come true ends the wait."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from nodus.cli.conditions import Condition
from nodus.cli.progress import Waiting, clear
from nodus.cli.session import Session
from nodus.cli.targets import Target
from nodus.client.outcomes import TERMINAL
from nodus.client.resources import JsonObject
from nodus.core.errors import JobFailed, NodusError, NodusTimeout, NotFound

MAX_AT_ONCE = 32
"""Objects that are watched at once; others are looked at as soon as one of these is done."""


def wait_for_all(session: Session, targets: Sequence[Target], condition: Condition, timeout_s: float) -> Iterator[str]:
    """Yield ``singular/name`` of each object as it meets the condition.

    Args:
        session: The server.
        targets: Objects.
        condition: What is waited for.
        timeout_s: For all of them together.

    Raises:
        NotFound: When an object is not there, or goes away meanwhile without that being waited for.
        JobFailed: When a run has ended in another phase than the one that is waited for.
        NodusTimeout: When the time is up.
    """
    shown = f"{condition.text} on {_label(targets[0])}" if len(targets) == 1 else f"{len(targets)} objects"
    with Waiting(f"waiting for {shown}") as display:
        deadline = time.monotonic() + timeout_s
        waits = [_Wait(session, target, condition, deadline, display) for target in targets]
        if len(waits) == 1:
            waits[0].run()
            clear()
            yield _label(targets[0])
            return
        yield from _at_once(waits)


def _at_once(waits: list[_Wait]) -> Iterator[str]:
    results: SimpleQueue[tuple[str, BaseException | None]] = SimpleQueue()
    todo: SimpleQueue[_Wait] = SimpleQueue()
    for wait in waits:
        todo.put(wait)

    def work() -> None:
        while True:
            try:
                wait = todo.get_nowait()
            except Empty:
                return
            try:
                wait.run()
            except BaseException as error:  # noqa: BLE001 - it is raised where the results are read
                results.put((_label(wait.target), error))
            else:
                results.put((_label(wait.target), None))

    for _ in range(min(MAX_AT_ONCE, len(waits))):
        # Daemons: those that still wait when one has failed go with the process.
        threading.Thread(target=work, daemon=True).start()
    for _ in waits:
        label, error = results.get()
        if error is not None:
            raise error
        yield label


class _Wait:
    """The wait for one object."""

    def __init__(
        self, session: Session, target: Target, condition: Condition, deadline: float, display: Waiting
    ) -> None:
        self.session, self.target, self.condition = session, target, condition
        self.deadline, self.display = deadline, display
        self._seen = self._hinted = False

    def run(self) -> None:
        """Return when the object meets the condition."""
        session, target = self.session, self.target
        try:
            session.run(
                session.resources.wait_for(
                    target.kind,
                    str(target.name),
                    self._holds,
                    project=target.project,
                    timeout_s=max(0.0, self.deadline - time.monotonic()),
                    what=self.condition.text,
                )
            )
        except NodusTimeout as error:
            raise NodusTimeout(
                f"timed out waiting for {self.condition.text} on {_label(target)}{self._how_it_is()}"
            ) from error
        except NotFound as error:
            if not (self.condition.deleted and (self._seen or self.condition.missing_ok)):
                raise self._or_project(error) from None

    def _or_project(self, error: NotFound) -> NotFound:
        """Return the error; where the project is what is missing, that."""
        try:
            self.session.run(self.session.get(self.target.kind, str(self.target.name), project=self.target.project))
        except NotFound as other:
            return error if self._seen else other
        return error

    def _holds(self, obj: JsonObject) -> bool:
        self._seen = True
        if self.condition.holds(obj):
            return True
        status = obj.get("status") or {}
        self.display.say(f"{_label(self.target)}: {_state(status)}; waiting for {self.condition.text}")
        if status.get("phase") in TERMINAL and not self.condition.deleted:
            self._ended(status)
        return False

    def _ended(self, status: dict[str, Any]) -> None:
        """Give up on a run that has ended in another phase; say so of what may still recover."""
        phase = status["phase"]
        text = f"{_label(self.target)} ended {phase}"
        reasons = "".join(f": {status[key]}" for key in ("reason", "message") if status.get(key))
        if self.condition.phase is not None and _is_final(self.target, phase):
            raise JobFailed(f"{text}, not {self.condition.phase}{reasons}", fix=status.get("fix"))
        if not self._hinted:
            self._hinted = True
            clear()
            print(
                f"{_label(self.target)} is {phase}{reasons}; still waiting for {self.condition.text}", file=sys.stderr
            )

    def _how_it_is(self) -> str:
        try:
            obj = self.session.run(
                self.session.get(self.target.kind, str(self.target.name), project=self.target.project)
            )
        except NodusError:
            return ""
        state = _state(obj.get("status") or {})
        return f"; it is {state}" if state else ""


def _state(status: dict[str, Any]) -> str:
    stage = (status.get("progress") or {}).get("stage")
    parts = [status.get("phase"), stage if stage != status.get("phase") else None, status.get("message")]
    return ": ".join(str(part) for part in parts if part)


def _label(target: Target) -> str:
    return f"{target.kind.singular}/{target.name}"


def _is_final(target: Target, phase: str) -> bool:
    """Return whether nothing follows the phase; the kinds' declarations are loaded only here, where they count."""
    from nodus.core.kinds import KINDS

    kind = KINDS.get(target.kind.kind)
    return kind is None or not kind.phases.get(phase)
