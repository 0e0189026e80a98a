"""``nodus get``."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from nodus.cli.formats import FORMATS, as_list, check_format, print_object
from nodus.cli.session import TABLE, Session, connected
from nodus.cli.tables import TablePrinter
from nodus.cli.targets import Target, parse_targets
from nodus.client.http import ConnectionFailed
from nodus.client.resources import JsonObject
from nodus.core.errors import from_status

OUTPUTS = ("json", "yaml", "name", "wide", "jsonpath")


@click.command()
@click.argument("what", nargs=-1, metavar="KIND[/NAME] [NAME]...")
@click.option("-f", "--filename", "files", multiple=True, metavar="FILE", help="Show what these manifests name.")
@click.option("-o", "--output", metavar=FORMATS, help="Output format; the server's table when unset.")
@click.option("-w", "--watch", is_flag=True, help="Go on showing changes until interrupted.")
@click.option("-l", "--selector", metavar="LABELS", help="Only objects with these labels: a=b,c=d.")
@click.option("--field-selector", metavar="FIELDS", help="Only objects with these fields: status.phase=Running.")
@click.option("-A", "--all-projects", "--all-namespaces", "everywhere", is_flag=True, help="List over all projects.")
@click.option("--mine", is_flag=True, help="Only objects that this key's user made.")
@click.option("--no-headers", is_flag=True, help="Leave out the header line.")
@click.option("--show-labels", is_flag=True, help="Add a column with the labels.")
@connected()
def command(
    session: Session,
    what: tuple[str, ...],
    files: tuple[str, ...],
    output: str | None,
    watch: bool,
    selector: str | None,
    field_selector: str | None,
    everywhere: bool,
    mine: bool,
    no_headers: bool,
    show_labels: bool,
) -> None:
    """List objects, or show one.

    \b
    Examples:
      nodus get tj                                  # training jobs of the project
      nodus get tj/my-grpo -o yaml                  # everything about one
      nodus get tj -w                               # and every change from now on
      nodus get environments -n nodus               # the catalog
      nodus get tj/my-grpo -o jsonpath='{.status.outputs[*].name}'
    """
    check_format(output, OUTPUTS)
    targets = _from_files(session, files) if files else parse_targets(session, what)
    if mine:
        user = session.run(session.api.call("GET", "/auth/whoami")).get("user")
        selector = ",".join(part for part in (selector, f"nodus.dev/created-by={user}") if part)
    query = {"labelSelector": selector, "fieldSelector": field_selector}
    if output in (None, "wide"):
        kinds = {target.kind.kind for target in targets}
        printers: dict[str, TablePrinter] = {}
        for target in targets:
            prefix = f"{target.kind.singular}/" if len(kinds) > 1 else ""
            printer = printers.setdefault(
                target.kind.kind,
                TablePrinter(
                    wide=output == "wide",
                    headers=not no_headers,
                    project_column=everywhere,
                    show_labels=show_labels,
                    prefix=prefix,
                ),
            )
            _print_tables(session, target, query, everywhere, printer, watch=watch)
        return
    found = [item for target in targets for item in _objects(session, target, query, everywhere)]
    lone = len(targets) == 1 and targets[0].name is not None
    print_object(found[0] if lone else as_list(found), output)
    if watch:
        for item in _changes(session, targets[0], query, everywhere, _version(found), "application/json"):
            print_object(item, output)


def _print_tables(
    session: Session, target: Target, query: dict[str, Any], everywhere: bool, printer: TablePrinter, *, watch: bool
) -> None:
    project = target.project or session.project
    if target.name is not None:
        table = session.run(session.get(target.kind, target.name, project=project, accept=TABLE))
        _print_lines(printer, table)
    else:
        table = _list_tables(session, target, query, everywhere, printer)
    if watch:
        version = (table.get("metadata") or {}).get("resourceVersion")
        for change in _changes(session, target, query, everywhere, version, TABLE):
            _print_lines(printer, change)


def _list_tables(
    session: Session, target: Target, query: dict[str, Any], everywhere: bool, printer: TablePrinter
) -> JsonObject:
    """Print a collection page by page and return its first page."""
    path = target.kind.path(None if everywhere else target.project or session.project)
    first: JsonObject | None = None
    token = None
    while True:
        table = session.run(session.api.call("GET", path, query=query | {"continue": token}, headers={"Accept": TABLE}))
        if first is None and not table.get("rows"):
            where = (
                "" if everywhere or not target.kind.namespaced else f" in project {target.project or session.project}"
            )
            print(f"No resources found{where}.", file=sys.stderr)
        else:
            _print_lines(printer, table)
        first = first or table
        token = (table.get("metadata") or {}).get("continue")
        if not token:
            return first


def _print_lines(printer: TablePrinter, table: JsonObject) -> None:
    for line in printer.lines(table):
        print(line)
    sys.stdout.flush()


def _objects(session: Session, target: Target, query: dict[str, Any], everywhere: bool) -> list[JsonObject]:
    if target.name is not None:
        return [session.run(session.get(target.kind, target.name, project=target.project))]
    return session.run(
        session.resources.list(
            target.kind,
            project=target.project,
            all_projects=everywhere,
            labels=query["labelSelector"],
            fields=query["fieldSelector"],
        )
    )


def _changes(
    session: Session, target: Target, query: dict[str, Any], everywhere: bool, version: str | None, accept: str
) -> Any:
    """Yield what the server streams: objects, or one-row Tables; ends when it closes the stream."""
    from nodus.client.blocking import iterate_blocking

    fields = [query["fieldSelector"], f"metadata.name={target.name}" if target.name else None]
    asked = query | {
        "watch": True,
        "resourceVersion": version,
        "fieldSelector": ",".join(part for part in fields if part) or None,
    }
    path = target.kind.path(None if everywhere else target.project or session.project)
    while True:
        try:
            lines = session.api.lines("GET", path, query=asked, headers={"Accept": accept}, timeout_s=None)
            for line in iterate_blocking(lines):
                change = json.loads(line)
                if change["type"] == "ERROR":
                    raise from_status(change["object"], int(change["object"].get("code") or 500))
                asked["resourceVersion"] = _seen(change["object"]) or asked["resourceVersion"]
                yield change["object"]
            return
        except ConnectionFailed:
            # The server was killed. If it comes back within the client's patience, go on where the stream broke.
            session.run(session.api.call("GET", "/readyz"))


def _seen(change: JsonObject) -> str | None:
    """Return the resourceVersion of a changed object, or of the object behind a Table's row."""
    rows = change.get("rows")
    shown = (rows[0].get("object") or {}) if rows else change
    version = (shown.get("metadata") or {}).get("resourceVersion")
    return str(version) if version else None


def _version(found: list[JsonObject]) -> str | None:
    """Return the resourceVersion to watch from: the newest of what was printed."""
    versions = [str((item.get("metadata") or {}).get("resourceVersion") or "") for item in found]
    return max((version for version in versions if version), key=lambda text: (len(text), text), default=None)


def _from_files(session: Session, files: tuple[str, ...]) -> list[Target]:
    from nodus.cli.manifests import read_manifests

    return [
        target._replace(project=(document.get("metadata") or {}).get("namespace"))
        for document in read_manifests(files)
        for target in parse_targets(session, [str(document["kind"]), str((document.get("metadata") or {}).get("name"))])
    ]
