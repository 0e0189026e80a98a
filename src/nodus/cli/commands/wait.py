"""``nodus wait``."""

from __future__ import annotations

import click

from nodus.cli.conditions import Condition, parse_condition
from nodus.cli.options import objects_argument
from nodus.cli.session import Session, connected
from nodus.cli.targets import parse_targets, selected
from nodus.cli.waiting import wait_for_all
from nodus.core.durations import parse_duration


@click.command(name="wait")
@objects_argument()
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
@click.option("-l", "--selector", metavar="LABELS", help="Wait for the objects of a kind with these labels.")
@connected(patient=True)
def command(session: Session, what: tuple[str, ...], condition: str, timeout: str, selector: str | None) -> None:
    """Wait until objects are in a state, all of them at once.

    Exits with 124 when the time runs out, and with 1 as soon as a run has ended in another phase.

    \b
    Examples:
      nodus wait tj/my-grpo --for=jsonpath='{.status.phase}'=Succeeded --timeout=2h
      nodus wait tj -l team=search --for=jsonpath='{.status.phase}'=Succeeded
      nodus wait environment/reverse-words --for=condition=Verified
      nodus wait tj/my-grpo --for=delete
    """
    try:
        timeout_s = parse_duration(timeout)
    except ValueError as error:
        raise click.UsageError(f"--timeout: {error}.") from error
    wanted: Condition = parse_condition(condition)
    targets = selected(session, parse_targets(session, what), selector)
    if not targets:
        raise click.UsageError(f"no {what[0]} has the labels {selector!r}.")
    for label in wait_for_all(session, targets, wanted, timeout_s):
        print(f"{label} condition met", flush=True)
