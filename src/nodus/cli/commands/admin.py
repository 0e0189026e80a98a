"""``nodus admin``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from nodus.cli.commands import admin_ledger
from nodus.cli.groups import Group
from nodus.cli.options import DATA_DIR
from nodus.cli.session import Session, connected


@click.group(name="admin", cls=Group)
def command() -> None:
    """Look after a server: bring people in, change its master key, check its ledger.

    \b
    Examples:
      nodus admin login-link --member ada
      nodus admin rotate-keys
      nodus admin ledger verify
    """


command.add_command(admin_ledger.command)


@command.command("login-link")
@click.option("--member", metavar="NAME", help="Whom it is for; you when left out.")
@click.option(
    "--duration", metavar="DURATION", default="15m", show_default=True, help="How long it works; at most 168h."
)
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print everything the server says.")
@connected()
def login_link(session: Session, member: str | None, duration: str, output: str | None) -> None:
    """Print a sign-in code, which shows on the login page who somebody is. It works once.

    Give it to a new member, who runs `nodus login` and pastes it instead of an API key.

    \b
    Example:
      nodus create member ada --role Developer
      nodus admin login-link --member ada --duration 24h
    """
    body = {"duration": duration} | ({"member": member} if member else {})
    made = session.run(session.api.call("POST", "/auth/login-codes", body=body))
    if output is not None:
        print(json.dumps(made, indent=2))
        return
    print(f"For {made['member']}, once, until {made['expirationTime']}. Run this and paste the code:", file=sys.stderr)
    print(f"  nodus login --api-url {session.connection.url}", file=sys.stderr)
    print(made["code"])


@command.command("rotate-keys")
@DATA_DIR
@click.option("--drop-old", is_flag=True, help="Forget the master keys of before; API keys not used since end.")
@click.option("--yes", is_flag=True, help="Don't ask before API keys end.")
def rotate_keys(data_dir: Path | None, drop_old: bool, yes: bool) -> None:
    """Give the server a new master key. The server must be stopped; runs go on.

    Secrets are encrypted anew at once; an API key is hashed anew when it is next used. Until --drop-old the master
    keys of before stay in keys.json, so that API keys not used since go on working.

    \b
    Examples:
      nodus admin rotate-keys                       # between `nodus down` and `nodus up`
      nodus admin rotate-keys --drop-old            # a month later
    """
    from nodus.server.lifecycle import UpOptions
    from nodus.server.rotation import drop_old_keys, rotate

    where = data_dir.expanduser().absolute() if data_dir is not None else UpOptions().data_dir
    if not drop_old:
        done = rotate(where)
        print(f"Master key {done.version} is in use; {done.secrets} versions of secrets are encrypted with it.")
        return

    def confirm(names: list[str]) -> bool:
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        return yes or click.confirm(f"These API keys were not used since and end: {shown}. Go on?", err=True)

    ended = drop_old_keys(where, confirm)
    print(f"The master keys of before are gone{f'; {ended} API keys ended with them' if ended else ''}.")
