"""``nodus version``."""

from __future__ import annotations

import json

import click

from nodus._version import __version__
from nodus.cli.options import output_option
from nodus.cli.session import Options, Session, connection_options
from nodus.core.errors import NodusError


@click.command()
@output_option("json", help_text="Print it as JSON.")
@connection_options
def command(ctx: click.Context, given: Options, output: str | None) -> None:
    """Print the version of this client and of the server.

    \b
    Example:
      nodus version
    """
    found = {"client": __version__, "server": _server(given)}
    if output == "json":
        print(json.dumps(found))
        return
    print(f"client  {found['client']}")
    print(f"server  {found['server'] or 'not reached'}")


def _server(given: Options) -> str | None:
    try:
        session = Session(given)
        return session.run(session.api.answer("GET", "/readyz", timeout_s=5.0)).headers.get("x-nodus-release")
    except NodusError:
        return None  # no server, or none that is configured: the client has a version all the same
