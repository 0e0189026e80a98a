"""``nodus cancel``, ``suspend``, ``resume``, ``stop`` and ``start``: each writes ``spec.state``."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import click

from nodus.cli.options import objects_argument
from nodus.cli.session import Session, connected
from nodus.cli.targets import Target, named
from nodus.client.outcomes import TERMINAL
from nodus.client.resources import JsonObject
from nodus.core.errors import Invalid, NodusError

VERBS = {"Stopped": "stop", "Suspended": "suspend", "Cancelled": "cancel"}


def cancel(session: Session, what: tuple[str, ...]) -> None:
    """Cancel runs. What they have scored and saved so far is kept.

    \b
    Example:
      nodus cancel tj/my-grpo
    """
    _each(session, what, "Cancelled", "canceled")


def suspend(session: Session, what: tuple[str, ...]) -> None:
    """Pause runs: they give their resources back and keep their checkpoints.

    \b
    Example:
      nodus suspend tj/my-grpo
    """
    _each(session, what, "Suspended", "suspended")


def resume(session: Session, what: tuple[str, ...]) -> None:
    """Go on with suspended runs, from their last checkpoint.

    \b
    Example:
      nodus resume tj/my-grpo
    """
    _each(session, what, "Running", "resumed")


def stop(session: Session, what: tuple[str, ...]) -> None:
    """Stop sandboxes, agents and endpoints; they keep what they hold and can be started again.

    \b
    Example:
      nodus stop sandbox/dev
    """
    _each(session, what, "Stopped", "stopped")


def start(session: Session, what: tuple[str, ...]) -> None:
    """Start stopped sandboxes, agents and endpoints.

    \b
    Example:
      nodus start sandbox/dev
    """
    _each(session, what, "Running", "started")


def _each(session: Session, what: tuple[str, ...], state: str, done: str) -> None:
    targets = named(session, what)
    for target in targets:
        obj = session.run(session.get(target.kind, str(target.name), project=target.project))
        print(f"{target.kind.singular}/{target.name} {_change(session, target, obj, state, done)}")


def _change(session: Session, target: Target, obj: JsonObject, state: str, done: str) -> str:
    """Write the state and return what to say; a run that has ended is not written to."""
    phase = (obj.get("status") or {}).get("phase")
    if phase in TERMINAL:
        if state == "Cancelled":
            return f"already ended: {phase}"
        label = f"{target.kind.singular}/{target.name}"
        raise NodusError(
            f"{label} has ended: {phase}; it can't be {done}", fix="Create another run from the same manifest."
        )
    patch: JsonObject = {"spec": {"state": state}}
    if done == "started":
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        patch["metadata"] = {"annotations": {"nodus.dev/start-requested-at": now}}
    try:
        session.run(session.resources.patch(target.kind, str(target.name), patch, project=target.project))
    except Invalid as error:
        raise _as_verbs(error, target, done) from error
    return done


def _as_verbs(error: Invalid, target: Target, done: str) -> NodusError:
    """Return the refusal of a state in the words of these commands; other refusals as they are."""
    if [cause.field for cause in error.causes] != ["spec.state"]:
        return error
    said = error.causes[0].message
    label = f"{target.kind.singular}/{target.name}"
    if said == "unknown field":
        return NodusError(f"{label} can't be {done}: a {target.kind.kind} has no state to change")
    allowed = re.findall(r"'(\w+)'", said.partition("(got")[0])
    if not said.startswith("Input should be") or not allowed:
        return error
    verbs = {"Running": "start" if "Stopped" in allowed else "resume"} | VERBS
    known = [f"`nodus {verbs[state]} {label}`" for state in allowed if state in verbs]
    return NodusError(f"{label} can't be {done}", fix=f"It takes {' and '.join(known)}." if known else None)


def _command(function: Callable[[Session, tuple[str, ...]], None]) -> click.Command:
    argument = objects_argument()
    return click.command(function.__name__)(argument(connected()(function)))


cancel_command, suspend_command, resume_command, stop_command, start_command = (
    _command(function) for function in (cancel, suspend, resume, stop, start)
)
