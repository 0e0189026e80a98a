"""``nodus admin ledger``."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click

from nodus.cli.groups import Group
from nodus.cli.options import DATA_DIR
from nodus.cli.tables import plain_table


@click.group(name="ledger", cls=Group)
def command() -> None:
    """Look after the ledger of what was granted, held and spent.

    \b
    Example:
      nodus admin ledger verify
    """


@command.command("verify")
@DATA_DIR
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print every difference as JSON.")
def verify(data_dir: Path | None, output: str | None) -> None:
    """Reckon every limit, hold and account anew and say what differs. Whether the server runs or not, nothing changes.

    Exits with 1 where anything differs.

    \b
    Examples:
      nodus admin ledger verify
      nodus admin ledger verify --data-dir /srv/nodus -o json
    """
    from nodus.core.clock import SystemClock
    from nodus.server.settings import Settings, SettingsError
    from nodus.server.store.reading import reading
    from nodus.server.store.reconcile import MOST
    from nodus.server.store.reconcile import verify as reckon

    try:
        settings = Settings.load({"data_dir": data_dir})
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    with reading(settings.store_url, SystemClock()) as conn:
        found = reckon(conn)
    if output is not None:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2, ensure_ascii=False))
    elif not found:
        print("The books balance: every limit, hold and account is what its transfers say.")
    else:
        rows = [(one.what, one.field, one.recorded, one.reckoned) for one in found]
        print("\n".join(plain_table(("WHAT", "FIELD", "RECORDED", "RECKONED"), rows)))
        more = " or more" if len(found) == MOST else ""
        print(f"{len(found)}{more} differences; please report them with this table.", file=sys.stderr)
    if found:
        raise SystemExit(1)
