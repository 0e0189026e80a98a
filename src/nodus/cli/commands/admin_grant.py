"""``nodus admin grant``."""

from __future__ import annotations

import click

from nodus.cli.options import output_option
from nodus.cli.session import Session, connected
from nodus.cli.wallet import dollars
from nodus.client.http import new_key


@click.command("grant")
@click.option("--amount", metavar="USD", required=True, help="Credits to add, in dollars.")
@click.option("--note", metavar="TEXT", default="", help="For people; it stands in the list of transactions.")
@click.option("--idempotency-key", "key", metavar="KEY", help="The same key again adds nothing.")
@output_option("json", "yaml")
@connected()
def command(session: Session, amount: str, note: str, key: str | None, output: str | None) -> None:
    """Add credits to the organization. An Owner may.

    \b
    Examples:
      nodus admin grant --amount 25 --note "workshop in May"
      nodus admin grant --amount 100 --idempotency-key 2026-05     # once, however often it runs
    """
    body = {"amountUSD": amount, "note": note, "reference": key or new_key("grant")}
    path = "/apis/nodus.dev/v1/billingaccounts/default/grants"
    made = session.run(session.api.call("POST", path, body=body))
    if output is not None:
        from nodus.cli.formats import print_object

        print_object(made, output)
        return
    granted, available = made["grant"], dollars(str(made["status"]["availableUSD"]))
    done = f"granted {dollars(granted['amountUSD'])}" if granted["added"] else f"granted before under {key!r}"
    print(f"{done}; {available} can be spent")
