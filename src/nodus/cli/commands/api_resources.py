"""``nodus api-resources``."""

from __future__ import annotations

import click

from nodus.cli.session import Session, connected
from nodus.cli.tables import plain_table
from nodus.client.kinds import discover


@click.command(name="api-resources")
@connected()
def command(session: Session) -> None:
    """List the kinds of objects the server has, with the names that commands take.

    \b
    Example:
      nodus api-resources
    """
    kinds = sorted(session.run(discover(session.api)), key=lambda info: info.plural)
    rows = [
        (info.plural, ",".join(info.short_names), info.api_version, str(info.namespaced).lower(), info.kind)
        for info in kinds
    ]
    for line in plain_table(("NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"), rows):
        print(line)
