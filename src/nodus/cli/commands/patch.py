"""``nodus patch``."""

from __future__ import annotations

import json
from typing import Any

import click

from nodus.cli.connection import CONTEXT_OPTION, ORG_OPTION, VERBOSE_OPTION, given_options
from nodus.cli.options import did, dry_run_option, objects_argument, output_option, print_results
from nodus.cli.session import Session
from nodus.cli.targets import parse_target
from nodus.core.errors import NodusError
from nodus.core.patches import json_patch, merge_patch


@click.command()
@objects_argument("KIND/NAME")
@click.option("--patch", "patch", metavar="JSON", help="The change, as JSON.")
@click.option(
    "-p",
    "-n",
    "--project",
    "--namespace",
    "projects",
    multiple=True,
    metavar="NAME|JSON",
    help="Project; a value that begins with { or [ is the patch. [env: NODUS_PROJECT]",
)
@click.option(
    "--type",
    "form",
    type=click.Choice(["merge", "json"]),
    default="merge",
    show_default=True,
    help="merge: an object with the fields to change; json: a list of operations.",
)
@dry_run_option("Only say what would come of it; `client` sends nothing.")
@output_option("json", "yaml", "name")
@CONTEXT_OPTION
@ORG_OPTION
@VERBOSE_OPTION
@click.pass_context
def command(
    ctx: click.Context,
    what: tuple[str, ...],
    patch: str | None,
    projects: tuple[str, ...],
    form: str,
    dry_run: str,
    output: str | None,
    context: str | None,
    org: str | None,
    verbose: bool,
) -> None:
    """Change fields of an object.

    \b
    Examples:
      nodus patch tj/my-grpo --type merge -p '{"spec":{"maxCostUSD":"40"}}'
      nodus patch tj/my-grpo --patch '{"spec":{"state":"Suspended"}}'
      nodus patch tj/my-grpo --type json --patch '[{"op":"replace","path":"/spec/state","value":"Running"}]'
    """
    project = None
    for value in projects:
        if value.lstrip()[:1] in ("{", "["):
            patch = value
        else:
            project = value
    if not patch:
        raise click.UsageError("--patch is required: the change, as JSON.")
    session = Session(given_options(ctx, context, project, org, verbose))
    target = parse_target(session, what)
    name = str(target.name)
    change = _decode(patch, form)
    found = session.run(session.get(target.kind, name, project=target.project))
    if dry_run == "client":
        changed = json_patch(found, change) if form == "json" else merge_patch(found, change)
    else:
        changed = session.run(
            session.resources.patch(target.kind, name, change, project=target.project, dry_run=dry_run == "server")
        )
    if output is not None:
        print_results([changed], output, dry_run)
    else:
        print(f"{target.kind.singular}/{name} {did('patched', dry_run)}")


def _decode(patch: str, form: str) -> Any:
    try:
        decoded = json.loads(patch)
    except ValueError as error:
        raise NodusError(f"--patch is not valid JSON: {error}") from error
    if form == "json" and not isinstance(decoded, list):
        raise NodusError("--type json takes a list of operations")
    if form == "merge" and not isinstance(decoded, dict):
        raise NodusError("--type merge takes an object; for a list of operations use --type json")
    return decoded
