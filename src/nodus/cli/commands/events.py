"""``nodus events``."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from nodus.cli.formats import OBJECT_FORMATS, as_list, print_object
from nodus.cli.options import output_option
from nodus.cli.session import Session, connected
from nodus.cli.tables import TablePrinter
from nodus.cli.targets import Target, parse_target
from nodus.cli.watching import changes
from nodus.client.kinds import find_kind
from nodus.client.resources import JsonObject, order_of_event
from nodus.core.durations import format_age

HEADERS = ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")


@click.command()
@click.option("--for", "what", metavar="KIND/NAME", help="Only events of this object.")
@click.option("--type", "form", type=click.Choice(["Normal", "Warning"]), help="Only events of this type.")
@click.option("-w", "--watch", is_flag=True, help="Go on showing new events until interrupted.")
@click.option("-A", "--all-projects", "--all-namespaces", "everywhere", is_flag=True, help="Of all projects.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the newest so many.")
@click.option("--no-headers", is_flag=True, help="Leave out the header line.")
@output_option(*OBJECT_FORMATS, help_text="Print the event objects.")
@connected()
def command(
    session: Session,
    what: str | None,
    form: str | None,
    watch: bool,
    everywhere: bool,
    limit: int | None,
    no_headers: bool,
    output: str | None,
) -> None:
    """List what happened to the objects of the project. The newest comes last.

    \b
    Examples:
      nodus events --for tj/my-grpo
      nodus events --limit 20
      nodus events -w --type Warning
    """
    kind = find_kind("Event")
    assert kind is not None
    selector = _selector(session, what, form, everywhere)
    printer = TablePrinter(headers=not no_headers)
    if watch:
        query = {"fieldSelector": selector, "labelSelector": None}
        for event in changes(session, Target(kind, None), query, True, None, "application/json"):
            _print(printer, [event], output, headers=False)
        return
    found = session.run(session.resources.list(kind, fields=selector))
    found.sort(key=order_of_event)
    found = found[-limit:] if limit else found
    if not found and output is None:
        print("No events found.", file=sys.stderr)
    elif output is not None:
        print_object(as_list(found), output, headers=not no_headers)
    else:
        _print(printer, found, None, headers=True)


def _selector(session: Session, what: str | None, form: str | None, everywhere: bool) -> str | None:
    fields = [] if everywhere else [f"involvedObject.namespace={session.project}"]
    if what is not None:
        target = parse_target(session, [what])
        fields = [f"involvedObject.kind={target.kind.kind}", f"involvedObject.name={target.name}"]
        if target.kind.namespaced:
            fields.append(f"involvedObject.namespace={target.project or session.project}")
    if form is not None:
        fields.append(f"type={form}")
    return ",".join(fields) or None


def _print(printer: TablePrinter, events: list[JsonObject], output: str | None, *, headers: bool) -> None:
    if output is not None:
        for event in events:
            print_object(event, output, headers=headers)
    else:
        rows = [{"cells": event_cells(event)} for event in events]
        for line in printer.lines({"columnDefinitions": [{"name": name} for name in HEADERS], "rows": rows}):
            print(line)
    sys.stdout.flush()


def event_cells(event: JsonObject) -> list[str]:
    """Return an event's cells: age, type, reason, object and message, with the count where it repeated."""
    involved = event.get("involvedObject") or {}
    count = int(event.get("count") or 1)
    message = str(event.get("message") or "") + (f" (x{count})" if count > 1 else "")
    label = f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"
    return [
        _age(str(event.get("lastTime") or "")),
        str(event.get("type") or ""),
        str(event.get("reason") or ""),
        label,
        message,
    ]


def _age(time: str) -> str:
    try:
        then = datetime.fromisoformat(time.replace("Z", "+00:00"))
    except ValueError:
        return ""
    return format_age((datetime.now(UTC) - then).total_seconds())
