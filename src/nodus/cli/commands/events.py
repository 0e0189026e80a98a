"""``nodus events``."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

import click

from nodus.cli.formats import as_list, check_format, print_object
from nodus.cli.session import Session, connected
from nodus.cli.tables import TablePrinter
from nodus.cli.targets import parse_target
from nodus.client.blocking import iterate_blocking
from nodus.client.kinds import find_kind
from nodus.client.resources import JsonObject
from nodus.core.durations import format_age

HEADERS = ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")


@click.command()
@click.option("--for", "what", metavar="KIND/NAME", help="Only events of this object.")
@click.option("-w", "--watch", is_flag=True, help="Go on showing new events until interrupted.")
@click.option("-o", "--output", metavar="json|yaml", help="Print the event objects.")
@connected()
def command(session: Session, what: str | None, watch: bool, output: str | None) -> None:
    """List what happened to the objects of the project. The newest comes last.

    \b
    Examples:
      nodus events --for tj/my-grpo
      nodus events -w
    """
    check_format(output, ("json", "yaml"))
    fields = [f"involvedObject.namespace={session.project}"]
    if what is not None:
        target = parse_target(session, [what])
        project = target.project or session.project
        fields = [
            f"involvedObject.kind={target.kind.kind}",
            f"involvedObject.name={target.name}",
            f"involvedObject.namespace={project}",
        ]
    selector = ",".join(fields)
    kind = find_kind("Event")
    assert kind is not None
    printer = TablePrinter()
    if not watch:
        found = session.run(session.resources.list(kind, fields=selector))
        found.sort(key=lambda event: str(event.get("lastTime") or ""))
        if output is not None:
            print_object(as_list(found), output)
        elif not found:
            print("No events found.", file=sys.stderr)
        else:
            _print(printer, found)
        return
    query = {"watch": True, "fieldSelector": selector}
    for line in iterate_blocking(session.api.lines("GET", kind.path(None), query=query, timeout_s=None)):
        event = json.loads(line)["object"]
        if output is not None:
            print_object(event, output)
        else:
            _print(printer, [event])
        sys.stdout.flush()


def _print(printer: TablePrinter, events: list[JsonObject]) -> None:
    rows = [{"cells": event_cells(event)} for event in events]
    for line in printer.lines({"columnDefinitions": [{"name": name} for name in HEADERS], "rows": rows}):
        print(line)


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
