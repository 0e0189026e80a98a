"""``nodus get``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from nodus.cli.formats import OBJECT_FORMATS, as_list, print_object
from nodus.cli.options import files_option, objects_argument, output_option
from nodus.cli.session import TABLE, Session, connected
from nodus.cli.tables import TablePrinter
from nodus.cli.targets import Target, parse_targets, targets_of_files
from nodus.cli.watching import changes, newest_version
from nodus.client.resources import JsonObject

PAGE = 500
"""Rows that are asked for at once where there is a limit."""
BY_START = ("Process",)
"""Kinds that are shown in the order in which they began, the newest last; their names only count."""
GPU_FIELDS = {
    "gpu": "spec.accelerator.family",
    "count": "spec.count",
    "region": "spec.regionClass",
    "interruptible": "spec.interruptible",
}


def _gpu_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--interruptible", is_flag=True, help="get gpus: only capacity that may be taken back."),
        click.option("--region", metavar="CLASS", help="get gpus: region class, such as us or eu."),
        click.option("--count", type=click.IntRange(min=0), metavar="N", help="get gpus: accelerators together."),
        click.option("--gpu", metavar="FAMILY", help="get gpus: accelerator family, such as H100."),
    ):
        function = option(function)
    return function


@click.command()
@objects_argument("KIND[/NAME] [NAME]...", required=False)
@files_option("Show what these manifests name.")
@output_option("wide", *OBJECT_FORMATS, help_text="Output format; the server's table when unset.")
@click.option("-w", "--watch", is_flag=True, help="Go on showing changes until interrupted.")
@click.option("-l", "--selector", metavar="LABELS", help="Only objects with these labels: a=b,c!=d,e in (f,g).")
@click.option("--field-selector", metavar="FIELDS", help="Only objects with these fields: status.phase=Running.")
@click.option("-A", "--all-projects", "--all-namespaces", "everywhere", is_flag=True, help="List over all projects.")
@click.option("--mine", is_flag=True, help="Only objects that this key's user made.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many of each list.")
@click.option("--sort-by", metavar="PATH", help="Order a list: .metadata.creationTimestamp, .status.cost.totalUSD.")
@click.option("--no-headers", is_flag=True, help="Leave out the header line.")
@click.option("--show-labels", is_flag=True, help="Add a column with the labels.")
@_gpu_options
@connected()
def command(
    session: Session,
    /,
    what: tuple[str, ...],
    files: tuple[str, ...],
    output: str | None,
    watch: bool,
    selector: str | None,
    field_selector: str | None,
    everywhere: bool,
    mine: bool,
    limit: int | None,
    sort_by: str | None,
    no_headers: bool,
    show_labels: bool,
    **gpus: Any,
) -> None:
    """List objects, or show one.

    \b
    Examples:
      nodus get tj                                  # training jobs of the project
      nodus get tj/my-grpo -o yaml                  # everything about one
      nodus get tj -w                               # and every change from now on
      nodus get environments -n nodus               # the catalog
      nodus get gpus --gpu H100 --count 8           # what there is to run on
      nodus get auditevents --limit 20              # the newest writes
      nodus get usage --group-by project --since 30d
      nodus get tj/my-grpo -o jsonpath='{.status.outputs[*].name}'
    """
    targets = targets_of_files(session, files) if files else parse_targets(session, what)
    if mine:
        user = session.run(session.api.call("GET", "/auth/whoami")).get("user")
        selector = ",".join(part for part in (selector, f"nodus.dev/created-by={user}") if part)
    fields = [field_selector, *_gpu_fields(targets, gpus)]
    query = {"labelSelector": selector, "fieldSelector": ",".join(part for part in fields if part) or None}
    _check(targets, query, watch=watch, sort_by=sort_by, limit=limit)
    if output in (None, "wide"):
        shown = _Tables(session, query, everywhere, watch, sort_by, limit)
        shown.print(targets, TablePrinter(output == "wide", not no_headers, everywhere, show_labels))
        return
    found = _found(session, targets, query, everywhere, sort_by, limit)
    lone = len(targets) == 1 and targets[0].name is not None
    print_object(found[0] if lone else as_list(found), str(output), headers=not no_headers)
    if watch:
        sys.stdout.flush()
        for item in changes(session, targets[0], query, everywhere, newest_version(found), "application/json"):
            print_object(item, str(output), headers=False)
            sys.stdout.flush()


def _found(
    session: Session,
    targets: list[Target],
    query: dict[str, Any],
    everywhere: bool,
    sort_by: str | None,
    limit: int | None,
) -> list[JsonObject]:
    """The objects of all targets in order, at most ``limit`` of each list; sorting comes before cutting."""
    if sort_by is None:
        return [item for target in targets for item in _ordered(session, target, query, everywhere, limit)]
    found = [item for target in targets for item in _objects(session, target, query, everywhere)]
    return _sorted(found, sort_by)[:limit]


def _ordered(
    session: Session, target: Target, query: dict[str, Any], everywhere: bool, limit: int | None
) -> list[JsonObject]:
    """The objects of one target in the order in which they are shown."""
    if target.kind.kind not in BY_START:
        return _objects(session, target, query, everywhere, limit)
    found = _objects(session, target, query, everywhere)
    return sorted(found, key=lambda item: _start(item.get("metadata") or {}))[-limit if limit else 0 :]


def _start(metadata: JsonObject) -> tuple[Any, ...]:
    """Sorts by the time of creation; within a second by name, where 10 comes after 9."""
    parts = re.split(r"(\d+)", str(metadata.get("name")))
    name = [(int(part), "") if part.isdigit() else (0, part) for part in parts]
    return str(metadata.get("namespace")), str(metadata.get("creationTimestamp")), name


def _gpu_fields(targets: list[Target], gpus: dict[str, Any]) -> list[str]:
    given = {name: value for name, value in gpus.items() if value not in (None, False)}
    if given and any(target.kind.kind != "Offering" for target in targets):
        raise click.UsageError(f"--{next(iter(given))} goes with `nodus get gpus`.")
    return [f"{GPU_FIELDS[name]}={'true' if value is True else value}" for name, value in given.items()]


def _check(
    targets: list[Target], query: dict[str, Any], *, watch: bool, sort_by: str | None, limit: int | None
) -> None:
    named = [target.name for target in targets if target.name is not None]
    if named and any(query.values()):
        raise click.UsageError(f"{named[0]!r} is a name; selectors go with a kind alone.")
    if named and limit:
        raise click.UsageError(f"{named[0]!r} is a name; --limit goes with a kind alone.")
    if watch and limit:
        raise click.UsageError("-w shows every change; --limit goes with a list.")
    if watch and len(targets) > 1:
        raise click.UsageError("-w watches one kind or one object.")
    if watch and sort_by:
        raise click.UsageError("-w shows changes as they come; it can't be sorted.")


class _Tables:
    """Prints the server's Tables."""

    def __init__(
        self,
        session: Session,
        query: dict[str, Any],
        everywhere: bool,
        watch: bool,
        sort_by: str | None,
        limit: int | None,
    ) -> None:
        self.session, self.query, self.everywhere, self.watch = session, query, everywhere, watch
        self.sort_by, self.limit = sort_by, limit

    def print(self, targets: list[Target], like: TablePrinter) -> None:
        """Print each target's rows, each kind below one header."""
        several = len({target.kind.kind for target in targets}) > 1
        printers: dict[str, TablePrinter] = {}
        for target in targets:
            kind = target.kind
            if kind.kind not in printers:
                if printers:
                    print()
                prefix = f"{kind.singular}/" if several else ""
                printers[kind.kind] = replace(
                    like, prefix=prefix, project_column=like.project_column and kind.namespaced
                )
            self._one(target, printers[kind.kind])

    def _one(self, target: Target, printer: TablePrinter) -> None:
        session = self.session
        if target.name is not None:
            project = target.project or session.project
            table = session.run(session.get(target.kind, target.name, project=project, accept=TABLE))
            _print_lines(printer, table)
        else:
            table = self._list(target, printer)
        if self.watch:
            version = (table.get("metadata") or {}).get("resourceVersion")
            for change in changes(session, target, self.query, self.everywhere, version, TABLE):
                _print_lines(printer, change)

    def _list(self, target: Target, printer: TablePrinter) -> JsonObject:
        """Print a collection page by page, or whole where it is to be sorted, and return its first page."""
        path = target.kind.path(None if self.everywhere else target.project or self.session.project)
        pages: list[JsonObject] = []
        by_start = target.kind.kind in BY_START and not self.sort_by
        token, left = None, None if self.sort_by or by_start else self.limit
        while True:
            query = self.query | {"continue": token} | ({} if left is None else {"limit": min(left, PAGE)})
            pages.append(self.session.run(self.session.api.call("GET", path, query=query, headers={"Accept": TABLE})))
            if pages[0].get("rows") and not self.sort_by and not by_start:
                _print_lines(printer, pages[-1])
            token = (pages[-1].get("metadata") or {}).get("continue")
            left = None if left is None else left - len(pages[-1].get("rows") or ())
            if not token or left == 0:
                break
        if not pages[0].get("rows"):
            project = target.project or self.session.project
            where = "" if self.everywhere or not target.kind.namespaced else f" in project {project}"
            print(f"No resources found{where}.", file=sys.stderr)
        elif self.sort_by or by_start:
            rows = [row for page in pages for row in page.get("rows") or []]
            if by_start:
                rows.sort(key=lambda row: _start((row.get("object") or {}).get("metadata") or {}))
                rows = rows[-self.limit if self.limit else 0 :]
            else:
                rows = self._in_order(target, rows)[: self.limit]
            _print_lines(printer, pages[0] | {"rows": rows})
        return pages[0]

    def _in_order(self, target: Target, rows: list[JsonObject]) -> list[JsonObject]:
        """Sort rows by a field of their objects, which a Table leaves out."""
        ordered = _sorted(_objects(self.session, target, self.query, self.everywhere), str(self.sort_by))
        place = {_identity(item): number for number, item in enumerate(ordered)}
        return sorted(rows, key=lambda row: place.get(_identity(row.get("object") or {}), len(place)))


def _identity(obj: JsonObject) -> tuple[str, str]:
    metadata = obj.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _sorted(items: list[JsonObject], path: str) -> list[JsonObject]:
    from nodus.cli.columns import WITHOUT, sort_key

    keys = [sort_key(path, item) for item in items]
    if keys and set(keys) == {WITHOUT}:
        print(f"warning: not sorted: none of these objects has {path}", file=sys.stderr)
    return [item for _, item in sorted(zip(keys, items, strict=True), key=lambda pair: pair[0])]


def _print_lines(printer: TablePrinter, table: JsonObject) -> None:
    for line in printer.lines(table):
        print(line)
    sys.stdout.flush()


def _objects(
    session: Session, target: Target, query: dict[str, Any], everywhere: bool, limit: int | None = None
) -> list[JsonObject]:
    if target.name is not None:
        return [session.run(session.get(target.kind, target.name, project=target.project))]
    return session.run(
        session.resources.list(
            target.kind,
            project=target.project,
            all_projects=everywhere,
            labels=query["labelSelector"],
            fields=query["fieldSelector"],
            limit=limit,
        )
    )
