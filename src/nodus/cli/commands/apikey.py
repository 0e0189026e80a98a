"""``nodus create apikey``."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import click

from nodus.cli.generators import created, manifest
from nodus.cli.options import did, dry_run_option, output_option, print_results
from nodus.cli.session import Session, connected, object_label
from nodus.client.resources import JsonObject
from nodus.core.durations import parse_duration


@click.command("apikey")
@click.argument("name")
@click.option("--scopes", multiple=True, metavar="SCOPES", help="Such as jobs:write,volumes:read; `*` when unset.")
@click.option("--projects", multiple=True, metavar="NAMES", help="Projects it sees, with commas; all when unset.")
@click.option("--expires", metavar="DURATION", help="Refused after this long, such as 720h; never when unset.")
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
    for key, value in (("scopes", _split(scopes)), ("projects", _split(projects)), ("description", description)):
        if value:
            spec[key] = value
    if expires is not None:
        spec["expires"] = _time_after(expires)
    obj = created(session, manifest("APIKey", name, spec), dry_run)
    if output is not None:
        print_results([obj], output, dry_run)
        return
    print(f"{object_label(obj)} {did('created', dry_run)}", file=sys.stderr)
    token = (obj.get("status") or {}).get("token")
    if token:
        print("Keep the key; it is shown this once.", file=sys.stderr)
        print(token)


def _split(values: tuple[str, ...]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _time_after(duration: str) -> str:
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise click.UsageError(f"--expires: {error}.") from error
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
