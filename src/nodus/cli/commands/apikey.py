"""``nodus create apikey``."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from nodus.cli.generators import created, manifest
from nodus.cli.options import did, dry_run_option, output_option, print_results
from nodus.cli.session import Session, connected, object_label
from nodus.client.resources import JsonObject
from nodus.core.errors import AlreadyExists
from nodus.core.validity import expiry_of


@click.command("apikey")
@click.argument("name")
@click.option("--scopes", multiple=True, metavar="SCOPES", help="Such as jobs:write,volumes:read; yours when unset.")
@click.option("--projects", multiple=True, metavar="NAMES", help="Projects it sees, with commas; all when unset.")
@click.option("--expires", metavar="WHEN", help="Lifetime such as 720h or 90d, or a date; never when unset.")
@click.option("--member", metavar="NAME", help="Member it belongs to; you when unset.")
@click.option("--service-account", metavar="NAME", help="ServiceAccount of the project it belongs to, instead.")
@click.option("--description", metavar="TEXT", help="For people.")
@output_option("json", "yaml", "name")
@dry_run_option("Only say what would be created; `client` sends nothing.")
@connected()
def command(
    session: Session,
    name: str,
    scopes: tuple[str, ...],
    projects: tuple[str, ...],
    expires: str | None,
    member: str | None,
    service_account: str | None,
    description: str | None,
    output: str | None,
    dry_run: str,
) -> None:
    """Create an API key. The key itself is printed once, on standard output; nobody can read it again.

    \b
    Example:
      nodus create apikey ci --scopes jobs:write,volumes:read --projects default --expires 720h
    """
    spec: JsonObject = {}
    given = {
        "scopes": split(scopes), "projects": split(projects), "expires": _checked(expires), "member": member,
        "description": description,
    }  # fmt: skip
    spec.update({key: value for key, value in given.items() if value})
    if service_account:
        spec |= {"serviceAccountName": service_account, "project": session.project}
    obj, outcome = created(session, manifest("APIKey", name, spec), dry_run)
    if outcome == "unchanged":
        raise AlreadyExists(
            f"the key {name!r} is there already, and was shown when it was made",
            fix=f"Use another name, or make it anew after `nodus delete apikey/{name}`.",
        )
    if output is not None:
        print_results([obj], output, dry_run)
        return
    print(f"{object_label(obj)} {did('created', dry_run)}", file=sys.stderr)
    token = (obj.get("status") or {}).get("token")
    if token:
        print("Keep the key; it is shown this once.", file=sys.stderr)
        print(token)


def split(values: tuple[str, ...]) -> list[str]:
    """Return the parts of values that may be given with commas or several times."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _checked(expires: str | None) -> str | None:
    """The lifetime or end as given; the server counts from when it makes the key."""
    if expires is None:
        return None
    try:
        expiry_of(expires, datetime.now(UTC))
    except ValueError as error:
        raise click.UsageError(f"--expires: {error}.") from error
    return expires
