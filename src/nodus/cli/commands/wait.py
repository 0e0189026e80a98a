"""``nodus wait``."""

from __future__ import annotations

from collections.abc import Callable

import click

from nodus.cli.jsonpath import JsonPathError, as_text, find
from nodus.cli.session import Session, connected
from nodus.cli.targets import Target, parse_targets
from nodus.client.resources import JsonObject
from nodus.core.durations import parse_duration
from nodus.core.errors import JobFailed, NodusError, NodusTimeout, NotFound

TERMINAL = ("Succeeded", "Failed", "Cancelled")
PHASE_PATHS = (".status.phase", "status.phase")


@click.command(name="wait")
@click.argument("what", nargs=-1, required=True, metavar="KIND/NAME...")
@click.option(
    "--for",
    "condition",
    required=True,
    metavar="CONDITION",
    help="jsonpath='{.status.phase}'=Succeeded, condition=Ready[=True], or delete.",
)
@click.option(
    "--timeout",
    default="30m",
    show_default=True,
    metavar="DURATION",
    help="Give up after this long, with exit code 124.",
)
@connected(patient=True)
def command(session: Session, what: tuple[str, ...], condition: str, timeout: str) -> int:
    """Wait until an object is in a state.

    Exits with 124 when the time runs out, and with 1 as soon as a run has ended in another phase.

    \b
    Examples:
      nodus wait tj/my-grpo --for=jsonpath='{.status.phase}'=Succeeded --timeout=2h
      nodus wait environment/reverse-words --for=jsonpath='{.status.phase}'=Ready
      nodus wait tj/my-grpo --for=delete
    """
    try:
        timeout_s = parse_duration(timeout)
    except ValueError as error:
        raise click.UsageError(f"--timeout: {error}.") from error
    if condition in ("jsonpath=", "condition=") or condition.startswith("jsonpath=="):
        raise click.UsageError(f"--for={condition} names nothing to look at.")
    for target in parse_targets(session, what):
        if target.name is None:
            raise click.UsageError("name the objects, such as tj/my-run.")
        _wait(session, target, condition, timeout_s)
        print(f"{target.kind.singular}/{target.name} condition met")
    return 0


def _wait(session: Session, target: Target, condition: str, timeout_s: float) -> None:
    if condition == "delete":
        _wait_gone(session, target, timeout_s)
    elif condition.startswith("jsonpath="):
        path, wanted = _split(condition.removeprefix("jsonpath="))
        _wait_value(session, target, path, wanted, timeout_s)
    elif condition.startswith("condition="):
        name, _, status = condition.removeprefix("condition=").partition("=")
        _wait_condition(session, target, name, status or "True", timeout_s)
    else:
        raise click.UsageError(
            f"--for={condition}: use jsonpath='{{.status.phase}}'=VALUE, condition=NAME[=STATUS] or delete."
        )


def _wait_value(session: Session, target: Target, path: str, wanted: str | None, timeout_s: float) -> None:
    follows_phase = path.strip("{}").strip() in PHASE_PATHS

    def holds(obj: JsonObject) -> bool:
        values = [as_text(value) for value in find(path, obj)]
        if bool(values) if wanted is None else wanted in values:
            return True
        if follows_phase:
            _refuse_other_end(target, obj, str(wanted))
        return False

    _until(session, target, holds, timeout_s, f"{path}={wanted}")


def _wait_condition(session: Session, target: Target, name: str, status: str, timeout_s: float) -> None:
    def holds(obj: JsonObject) -> bool:
        conditions = (obj.get("status") or {}).get("conditions") or []
        return any(
            str(item.get("type")).lower() == name.lower() and str(item.get("status")).lower() == status.lower()
            for item in conditions
        )

    _until(session, target, holds, timeout_s, f"condition {name}={status}")


def _wait_gone(session: Session, target: Target, timeout_s: float) -> None:
    session.run(session.get(target.kind, str(target.name), project=target.project))  # missing at the start is an error
    try:
        _until(session, target, lambda obj: False, timeout_s, "its deletion")
    except NotFound:
        return


def _until(session: Session, target: Target, holds: Callable[[JsonObject], bool], timeout_s: float, what: str) -> None:
    try:
        session.run(
            session.resources.wait_for(
                target.kind,
                str(target.name),
                holds,
                project=target.project,
                timeout_s=timeout_s,
                what=what,
            )
        )
    except NodusTimeout as error:
        label = f"{target.kind.singular}/{target.name}"
        raise NodusTimeout(f"timed out waiting for {what} on {label}{_how_it_is(session, target)}") from error
    except JsonPathError as error:
        raise click.UsageError(str(error)) from error


def _how_it_is(session: Session, target: Target) -> str:
    try:
        obj = session.run(session.get(target.kind, str(target.name), project=target.project))
    except NodusError:
        return ""
    status = obj.get("status") or {}
    shown = [str(status[key]) for key in ("phase", "message") if status.get(key)]
    return f"; it is {': '.join(shown)}" if shown else ""


def _refuse_other_end(target: Target, obj: JsonObject, wanted: str) -> None:
    status = obj.get("status") or {}
    phase = status.get("phase")
    if wanted in TERMINAL and phase in TERMINAL:
        reason = f": {status['reason']}" if status.get("reason") else ""
        message = f": {status['message']}" if status.get("message") else ""
        raise JobFailed(
            f"{target.kind.singular}/{target.name} ended {phase}, not {wanted}{reason}{message}", fix=status.get("fix")
        )


def _split(text: str) -> tuple[str, str | None]:
    path, closing, rest = text.partition("}")
    if not closing:
        path, equals, value = text.partition("=")
        return path, value.strip("'\"") if equals else None
    rest = rest.lstrip("'\"")
    return path.lstrip("'\"") + closing, rest[1:].strip("'\"") if rest.startswith("=") else None
