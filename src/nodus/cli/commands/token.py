"""``nodus create token``."""

from __future__ import annotations

import sys

import click

from nodus.cli.commands.apikey import split
from nodus.cli.session import Session, connected
from nodus.client.http import new_key
from nodus.client.resources import JsonObject


@click.command("token")
@click.argument("account", metavar="sa/NAME")
@click.option(
    "--duration", metavar="DURATION", help="How long it works, such as 720h; 90 days when unset, 8760h at most."
)
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="Such as jobs:write; repeatable.")
@click.option("--attempt", metavar="NAME", help="Attempt that it ends with.")
@connected()
def command(session: Session, account: str, duration: str | None, scopes: tuple[str, ...], attempt: str | None) -> None:
    """Create a key of a ServiceAccount. It is printed once, on standard output; nobody can read it again.

    \b
    Example:
      nodus create token sa/nightly --duration 720h --scope jobs:write
    """
    word, slash, name = account.partition("/")
    if not slash:
        name = word
    elif word.lower() not in ("sa", "serviceaccount", "serviceaccounts"):
        raise click.UsageError(f"{account!r} is no ServiceAccount; write it like sa/nightly.")
    body: JsonObject = {}
    for key, value in (("duration", duration), ("scopes", split(scopes)), ("attempt", attempt)):
        if value:
            body[key] = value
    kind = session.run(session.resources.kind("ServiceAccount"))
    path = kind.path(session.project, name, "tokens")
    idempotency_key = new_key("token").replace("sdk:", "nodus-", 1)
    made = session.run(session.api.call("POST", path, body=body, idempotency_key=idempotency_key))
    named = (made.get("metadata") or {}).get("name", "")
    print(f"apikey/{named} created; it ends {made.get('expirationTime')}. It is shown this once.", file=sys.stderr)
    print(made["token"])
