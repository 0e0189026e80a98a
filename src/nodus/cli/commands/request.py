"""``nodus request``."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from nodus.cli.session import Session, connected
from nodus.cli.targets import parse_targets
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
@click.argument("what", nargs=-1, required=True, metavar="KIND/NAME...")
@connected()
def command(session: Session, action: str, what: tuple[str, ...]) -> None:
    """Ask for an action: restart, refresh-secrets, reload-sinks, verify, resend, start, reimport, approve-burst, drain.

    The request is noted on the object, with its time; a kind without that action leaves it at that.

    \b
    Example:
      nodus request reimport volume/weights
    """
    if action not in ACTIONS:
        hint = did_you_mean(action, ACTIONS) or f" There are {', '.join(ACTIONS)}."
        raise click.UsageError(f"unknown action {action!r}.{hint}")
    targets = parse_targets(session, what)
    if any(target.name is None for target in targets):
        raise click.UsageError("name the objects, such as volume/weights.")
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
