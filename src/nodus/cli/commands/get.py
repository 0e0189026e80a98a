"""``nodus get``."""

from __future__ import annotations

import sys
from typing import Any

import click

from nodus.cli.formats import FORMATS, as_list, check_format, print_object
from nodus.cli.session import TABLE, Session, connected
from nodus.cli.tables import TablePrinter
from nodus.cli.targets import Target, parse_targets
from nodus.cli.watching import changes, newest_version
from nodus.client.resources import JsonObject

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
        for item in changes(session, targets[0], query, everywhere, newest_version(found), "application/json"):
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
        for change in changes(session, target, query, everywhere, version, TABLE):
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


def _from_files(session: Session, files: tuple[str, ...]) -> list[Target]:
    from nodus.cli.manifests import read_manifests

    return [
        target._replace(project=(document.get("metadata") or {}).get("namespace"))
        for document in read_manifests(files)
        for target in parse_targets(session, [str(document["kind"]), str((document.get("metadata") or {}).get("name"))])
    ]
