"""Usage and transactions as tables, CSV and objects; ``get usage`` and ``billing usage`` are one command."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

from nodus.cli.formats import as_list, print_object
from nodus.cli.options import output_option
from nodus.cli.session import Session, connected
from nodus.cli.tables import TablePrinter
from nodus.client.kinds import KindInfo, find_kind
from nodus.client.resources import JsonObject
from nodus.core.selectors import field_text
from nodus.core.validity import moment_of

_ROWS_AT_ONCE = 500
_TYPES = ("Grant", "Capture", "Hold", "Release", "Cover")
_GROUPS = "project, kind, object, meter, day, segment, offering, rank, member, label:KEY"


class Column(NamedTuple):
    """A column of lines of the books."""

    name: str
    path: str
    wide: bool = False


USAGE = (
    Column("START", "periodStartTime"),
    Column("OBJECT", "object"),
    Column("METER", "meter"),
    Column("SEGMENT", "segment"),
    Column("QUANTITY", "quantity"),
    Column("AMOUNT", "amountUSD"),
    Column("UNIT", "unit", wide=True),
    Column("OFFERING", "offering", wide=True),
    Column("COVERED", "coveredUSD", wide=True),
    Column("TRANSACTION", "transaction", wide=True),
)
TRANSACTIONS = (
    Column("TIME", "time"),
    Column("TYPE", "type"),
    Column("AMOUNT", "amountUSD"),
    Column("BALANCE", "balanceAfterUSD"),
    Column("REFERENCE", "reference"),
    Column("CAUSE", "cause", wide=True),
    Column("DESCRIPTION", "description", wide=True),
)


def _check_time(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return a border of a range as given; the server counts back from when it is asked."""
    if value is not None:
        try:
            moment_of(value, datetime.now(UTC))
        except ValueError as error:
            raise click.UsageError(f"--{param.name}: {error}.", ctx) from error
    return value


def _options(function: Any) -> Any:
    for option in (
        click.option("--no-headers", is_flag=True, help="Leave out the header line."),
        click.option("--field-selector", "selector", metavar="FIELDS", help="Only lines with these fields: a=b,c!=d."),
        click.option("--until", metavar="TIME", callback=_check_time, help="End of the range; now when unset."),
        click.option(
            "--since", metavar="TIME", callback=_check_time, help="Begin of the range: 30d back, a date or a time."
        ),
    ):
        function = option(function)
    return output_option("wide", "csv", "json", "yaml", help_text="Output format; a table when unset.")(function)


@click.command("usage")
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--group-by", "groups", multiple=True, metavar="KEY,...", help=f"Sum by these: {_GROUPS}.")
@click.option("--object", "about", metavar="KIND/NAME", help="Only what is on this object's bill.")
@_options
@connected()
def usage(
    session: Session,
    name: str | None,
    groups: tuple[str, ...],
    about: str | None,
    since: str | None,
    until: str | None,
    selector: str | None,
    output: str | None,
    no_headers: bool,
) -> None:
    """Show what was used and what it cost, line by line, or summed.

    \b
    Examples:
      nodus get usage --object tj/my-grpo
      nodus billing usage --group-by project,label:team --since 30d
      nodus get usage --group-by day,meter --since 7d -o csv > usage.csv
    """
    kind = _kind("UsageRecord")
    fields = [part for part in (selector, None if about is None else _about(about)) if part]
    query = {"since": since, "until": until, "fieldSelector": ",".join(fields) or None}
    keys = [key.strip() for text in groups for key in text.split(",") if key.strip()]
    if name is not None:
        _show(session, kind, name, USAGE, output, no_headers, given=bool(keys) or any(query.values()))
    elif keys:
        found = session.run(session.api.call("GET", kind.path(None), query={**query, "groupBy": ",".join(keys)}))
        _print_sums(found, keys, output, headers=not no_headers)
    else:
        _print_lines(session, kind, query, USAGE, output, headers=not no_headers)


@click.command("transactions")
@click.argument("name", required=False, metavar="[NAME]")
@click.option(
    "--type",
    "type_",
    type=click.Choice(_TYPES, case_sensitive=False),
    metavar="TYPE",
    help="Only Grant, Capture, Hold, Release or Cover.",
)
@_options
@connected()
def transactions(
    session: Session,
    name: str | None,
    type_: str | None,
    since: str | None,
    until: str | None,
    selector: str | None,
    output: str | None,
    no_headers: bool,
) -> None:
    """Show what was granted and spent, with what was left after each line. Holds show with --type Hold.

    \b
    Examples:
      nodus get transactions --since 7d
      nodus billing transactions --type Capture -o csv
    """
    kind = _kind("Transaction")
    fields = [part for part in (selector, None if type_ is None else f"type={type_}") if part]
    query = {"since": since, "until": until, "fieldSelector": ",".join(fields) or None}
    if name is not None:
        _show(session, kind, name, TRANSACTIONS, output, no_headers, given=any(query.values()))
    else:
        _print_lines(session, kind, query, TRANSACTIONS, output, headers=not no_headers)


def _kind(name: str) -> KindInfo:
    found = find_kind(name)
    assert found is not None, name
    return found


def _about(text: str) -> str:
    word, slash, name = text.partition("/")
    kind = find_kind(word)
    if not slash or not name or kind is None:
        raise click.UsageError(f"--object takes KIND/NAME, such as job/train, not {text!r}.")
    return f"object.kind={kind.kind},object.name={name}"


def _show(
    session: Session, kind: KindInfo, name: str, columns: Sequence[Column], output: str | None, no_headers: bool,
    *, given: bool,
) -> None:  # fmt: skip
    if given:
        raise click.UsageError(f"{name!r} is the name of one line; ranges and selectors go with all of them.")
    found = session.run(session.get(kind, name))
    if output in ("json", "yaml"):
        print_object(found, str(output))
    else:
        _Printer(columns, output, not no_headers).print([found])


def _print_lines(
    session: Session, kind: KindInfo, query: JsonObject, columns: Sequence[Column], output: str | None, *, headers: bool
) -> None:
    if output in ("json", "yaml"):
        print_object(as_list([item for page in _pages(session, kind, query) for item in page]), str(output))
        return
    printer, any_ = _Printer(columns, output, headers), False
    for page in _pages(session, kind, query):
        any_ = any_ or bool(page)
        if page or output == "csv":
            printer.print(page)
    if not any_:
        click.echo(f"No {'usage' if columns is USAGE else 'transactions'} in this range.", err=True)


def _pages(session: Session, kind: KindInfo, query: JsonObject) -> Iterator[list[JsonObject]]:
    token = None
    while True:
        asked = {**query, "limit": _ROWS_AT_ONCE, "continue": token}
        page = session.run(session.api.call("GET", kind.path(None), query=asked))
        yield list(page.get("items") or [])
        token = (page.get("metadata") or {}).get("continue")
        if not token:
            return


class _Printer:
    """Prints lines of the books as a table or as CSV, the header once."""

    def __init__(self, columns: Sequence[Column], output: str | None, headers: bool) -> None:
        self._csv = output == "csv"
        self._columns = [column for column in columns if self._csv or output == "wide" or not column.wide]
        self._headers = headers
        self._table = TablePrinter(headers=headers)

    def print(self, items: Sequence[JsonObject]) -> None:
        """Print some lines."""
        rows = [[self._cell(item, column) for column in self._columns] for item in items]
        _print([column.name for column in self._columns], rows, self._table, csv_=self._csv, headers=self._headers)
        self._headers = False

    def _cell(self, item: JsonObject, column: Column) -> str:
        if column.path in ("object", "reference"):
            found = item.get(column.path) or {}
            return f"{str(found.get('kind', '')).lower()}/{found['name']}" if found.get("name") else ""
        text = field_text(item, column.path) or ""
        return text if self._csv or not column.path.endswith("USD") else dollars(text)


def dollars(amount: str) -> str:
    """Return an amount with its sign before the dollar: ``-$0.50``; empty for none."""
    return "" if not amount else f"-${amount[1:]}" if amount.startswith("-") else f"${amount}"


def _print(names: list[str], rows: list[list[str]], table: TablePrinter, *, csv_: bool, headers: bool) -> None:
    if csv_:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([names, *rows] if headers else rows)
        return
    definitions = [{"name": name} for name in names]
    for line in table.lines({"columnDefinitions": definitions, "rows": [{"cells": row} for row in rows]}):
        print(line)


def _print_sums(found: JsonObject, keys: Sequence[str], output: str | None, *, headers: bool) -> None:
    if output in ("json", "yaml"):
        print_object(found, str(output))
        return
    rows = list(found.get("rows") or [])
    if not rows and output != "csv":
        click.echo("No usage in this range.", err=True)
        return
    quantities = output in ("csv", "wide") or "meter" in keys
    names = [key.removeprefix("label:").rpartition("/")[2].upper() for key in keys]
    lines = []
    for row in rows:
        amount = str(row.get("amountUSD", ""))
        group = [_value(key, str((row.get("group") or {}).get(key, ""))) for key in keys]
        quantity = [str(row.get("quantity", ""))] if quantities else []
        lines.append([*group, *quantity, amount if output == "csv" else dollars(amount)])
    names += [*(["QUANTITY"] if quantities else []), "AMOUNT"]
    _print(names, lines, TablePrinter(headers=headers), csv_=output == "csv", headers=headers)


def _value(key: str, value: str) -> str:
    return value.removeprefix("usr_") if key == "member" else value
