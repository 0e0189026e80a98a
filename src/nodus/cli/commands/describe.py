"""``nodus describe``."""

from __future__ import annotations

import click

from nodus.cli.colour import visible
from nodus.cli.options import objects_argument
from nodus.cli.session import Session, connected
from nodus.cli.targets import Target, parse_targets, selected
from nodus.client.resources import JsonObject, order_of_event
from nodus.core.errors import NodusError, NotFound

# Kinds whose Attempts carry a label with the object's name.
WITH_ATTEMPTS = ("Job", "TrainingJob", "Volume", "Sandbox", "Agent", "Image")


@click.command()
@objects_argument("KIND[/NAME]...")
@click.option("-l", "--selector", metavar="LABELS", help="Only the objects of a kind with these labels.")
@connected()
def command(session: Session, what: tuple[str, ...], selector: str | None) -> None:
    """Show an object with its progress, results and events.

    \b
    Examples:
      nodus describe tj/my-grpo
      nodus describe environment/graph-coloring -n nodus
      nodus describe jobs -l team=search
    """
    from nodus.cli.description import describe

    targets = parse_targets(session, what)
    kinds = [target.kind for target in targets if target.name is None]
    found = selected(session, targets, selector, everything=bool(kinds) and not selector)
    if not found:
        raise NotFound(f"there are no {kinds[0].plural} to describe", fix="`nodus get` lists what there is.")
    for number, target in enumerate(found):
        obj = session.run(session.get(target.kind, str(target.name), project=target.project))
        if number:
            print()
        for line in describe(obj, _attempts(session, target), _events(session, target, obj)):
            print(visible(line))


def _attempts(session: Session, target: Target) -> list[JsonObject]:
    if target.kind.kind not in WITH_ATTEMPTS:
        return []
    label = f"nodus.dev/{target.kind.singular}={target.name}"
    try:
        return session.run(session.resources.list("Attempt", project=target.project, labels=label))
    except NodusError:
        return []  # a key without the scope still sees the object itself


def _events(session: Session, target: Target, obj: JsonObject) -> list[JsonObject]:
    """The object's events, oldest first; those of an earlier object of its name are another's."""
    fields = [f"involvedObject.kind={target.kind.kind}", f"involvedObject.name={target.name}"]
    if target.kind.namespaced:
        fields.append(f"involvedObject.namespace={target.project or session.project}")
    try:
        found = session.run(session.resources.list("Event", fields=",".join(fields)))
    except NodusError:
        return []  # a key without the scope still sees the object itself
    uid = obj["metadata"].get("uid")
    own = [event for event in found if (event.get("involvedObject") or {}).get("uid") in (None, uid)]
    return sorted(own, key=order_of_event)
