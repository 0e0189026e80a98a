"""``nodus billing``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from nodus.cli.colour import visible
from nodus.cli.formats import print_object
from nodus.cli.groups import Group
from nodus.cli.options import output_option
from nodus.cli.session import Options, Session, connected, connection_options
from nodus.cli.tables import TablePrinter
from nodus.cli.wallet import dollars, transactions, usage
from nodus.client.kinds import find_kind
from nodus.client.resources import JsonObject
from nodus.core.errors import Unsupported

_NO_PROVIDER = ("top-up", "redeem", "auto-recharge", "portal", "receipts", "deal")
_LABEL_WIDTH = 14


class Billing(Group):
    """The commands about money. Those that buy credits say how credits are added here."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command.

        Raises:
            Unsupported: it would need somebody who takes payments.
        """
        if args and args[0] in _NO_PROVIDER:
            raise Unsupported(
                f"there is no payment provider, so there is no `nodus billing {args[0]}`",
                fix="An Owner adds credits: `nodus admin grant --amount 25`.",
            )
        return super().resolve_command(ctx, args)


@click.group(name="billing", cls=Billing, invoke_without_command=True)
@output_option("json", "yaml")
@connection_options
def command(ctx: click.Context, given: Options, output: str | None) -> None:
    """Show what can be spent, what is set aside, and what this month has cost.

    \b
    Examples:
      nodus billing
      nodus billing usage --group-by project --since 30d
      nodus admin grant --amount 25
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = given
        return
    session = Session(given)
    account, budgets = find_kind("BillingAccount"), find_kind("Budget")
    assert account is not None and budgets is not None
    found = session.run(session.get(account, "default"))
    if output is not None:
        print_object(found, output)
        return
    for line in summary(found, session.run(session.resources.list(budgets))):
        print(visible(line))


@click.command("prices")
@output_option("json", "yaml")
@connected()
def prices(session: Session, output: str | None) -> None:
    """Show what things cost here; estimates and receipts name the version.

    \b
    Examples:
      nodus billing prices
      nodus billing prices -o json
    """
    account = find_kind("BillingAccount")
    assert account is not None
    book = session.run(session.api.call("GET", account.path(None, "default", "prices")))
    if output is not None:
        print_object(book, output)
        return
    click.echo(f"Price book {book['version']}\n")
    columns = [{"name": name, "type": "string", "priority": 0} for name in ("Item", "Price", "Per")]
    rows = [{"cells": [row["item"], f"${row['priceUSD']}", row["per"]]} for row in book["prices"]]
    for line in TablePrinter().lines({"columnDefinitions": columns, "rows": rows}):
        click.echo(line)


command.add_command(prices)
command.add_command(usage)
command.add_command(transactions)


def summary(account: JsonObject, budgets: Sequence[JsonObject]) -> list[str]:
    """Return the lines about an account and its fullest Budget."""
    status = account.get("status") or {}
    month = status.get("monthToDate") or {}
    covered = month.get("coveredUSD")
    rows = [
        ("Available", status.get("availableUSD"), f"granted {_amount(status.get('grantedUSD'))}"),
        ("Held", status.get("pendingUSD"), "set aside for what runs now"),
        ("This month", month.get("spentUSD"), _fullest(budgets)),
    ]
    if covered and covered.strip("0.") != "":
        rows.append(("Covered", covered, "borne by the server this month, charged to nobody"))
    shown = [(name, dollars(str(amount)), about) for name, amount, about in rows if amount is not None]
    width = max((len(amount) for _, amount, _ in shown), default=0)
    return [f"{name:<{_LABEL_WIDTH}}{amount:>{width}}   {about}".rstrip() for name, amount, about in shown]


def _amount(amount: object) -> str:
    return "-" if amount is None else dollars(str(amount))


def _fullest(budgets: Sequence[JsonObject]) -> str:
    if not budgets:
        return ""
    fullest = max(budgets, key=lambda budget: int((budget.get("status") or {}).get("percentUsed") or 0))
    percent = (fullest.get("status") or {}).get("percentUsed") or 0
    limit = (fullest.get("spec") or {}).get("limitUSD")
    return f"budget {fullest['metadata']['name']} {percent}% of {_amount(limit)}"
