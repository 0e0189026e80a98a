"""``nodus describe``."""

from __future__ import annotations

import click

from nodus.cli.session import Session, connected
from nodus.cli.targets import Target, parse_targets
from nodus.client.resources import JsonObject
from nodus.core.errors import NodusError

WITH_ATTEMPTS = {"Job": "nodus.dev/job", "Volume": "nodus.dev/volume", "TrainingJob": "nodus.dev/trainingjob"}


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="KIND/NAME...")
@connected()
def command(session: Session, what: tuple[str, ...]) -> None:
    """Show an object with its progress, results and events.

    \b
    Examples:
      nodus describe tj/my-grpo
      nodus describe environment/graph-coloring -n nodus
    """
    from nodus.cli.description import describe

    targets = parse_targets(session, what)
    if any(target.name is None for target in targets):
        raise click.UsageError("name the objects, such as tj/my-run.")
    for number, target in enumerate(targets):
        obj = session.run(session.get(target.kind, str(target.name), project=target.project))
        if number:
            print()
        for line in describe(obj, _attempts(session, target), _events(session, target)):
            print(line)


def _attempts(session: Session, target: Target) -> list[JsonObject]:
    label = WITH_ATTEMPTS.get(target.kind.kind)
    if label is None:
        return []
    try:
        return session.run(session.resources.list("Attempt", project=target.project, labels=f"{label}={target.name}"))
    except NodusError:
        return []  # a key without the scope still sees the object itself


def _events(session: Session, target: Target) -> list[JsonObject]:
    fields = [f"involvedObject.kind={target.kind.kind}", f"involvedObject.name={target.name}"]
    if target.kind.namespaced:
        fields.append(f"involvedObject.namespace={target.project or session.project}")
    try:
        found = session.run(session.resources.list("Event", fields=",".join(fields)))
    except NodusError:
        return []  # a key without the scope still sees the object itself
    return sorted(found, key=lambda event: str(event.get("lastTime") or ""))
