"""``nodus whoami``."""

from __future__ import annotations

import click

from nodus.cli.colour import visible
from nodus.cli.formats import check_format, print_object
from nodus.cli.session import Session, connected


@click.command()
@click.option("-o", "--output", metavar="json|yaml", help="Print everything the server says.")
@connected()
def command(session: Session, output: str | None) -> None:
    """Show whose key is in use, and where.

    \b
    Example:
      nodus whoami
    """
    check_format(output, ("json", "yaml"))
    found = session.run(session.api.call("GET", "/auth/whoami"))
    if output is not None:
        print_object(found, output)
        return
    rows = {
        "Server": session.connection.url,
        "Context": session.connection.context,
        "Project": session.project,
        "Key": found.get("name"),
        "User": " ".join(str(part) for part in (found.get("user"), found.get("email")) if part),
        "Organization": found.get("orgName") or found.get("org"),
        "Role": found.get("role"),
        "Scopes": ", ".join(found.get("scopes") or []),
        "Projects": ", ".join(found.get("projects") or []),
        "Expires": found.get("expirationTime"),
        "Available": f"${found['availableUSD']}" if found.get("availableUSD") is not None else None,
    }
    for label, value in rows.items():
        if value:
            print(visible(f"{label + ':':<14}{value}"))
