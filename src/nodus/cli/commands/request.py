"""``nodus request``."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from nodus.cli.options import objects_argument
from nodus.cli.session import Session, connected
from nodus.cli.targets import named
from nodus.client.suggest import did_you_mean

ACTIONS = (
    "restart",
    "refresh-secrets",
    "reload-sinks",
    "verify",
    "resend",
    "start",
    "reimport",
    "approve-burst",
    "drain",
)


@click.command()
@click.argument("action")
@objects_argument()
@connected()
def command(session: Session, action: str, what: tuple[str, ...]) -> None:
    """Ask for an action: restart, refresh-secrets, reload-sinks, verify, resend, start, reimport, approve-burst, drain.

    The request is noted on the object, with its time. A server refuses what a kind has no use for and says what it has.

    \b
    Example:
      nodus request start sandbox/dev
    """
    if action not in ACTIONS:
        hint = did_you_mean(action, ACTIONS) or f" There are {', '.join(ACTIONS)}."
        raise click.UsageError(f"unknown action {action!r}.{hint}")
    targets = named(session, what)
    patch = {
        "metadata": {
            "annotations": {f"nodus.dev/{action}-requested-at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        }
    }
    for target in targets:
        name = str(target.name)
        session.run(session.get(target.kind, name, project=target.project))
        session.run(session.resources.patch(target.kind, name, patch, project=target.project))
        print(f"{target.kind.singular}/{name} {action} requested")
