"""``nodus patch``."""

from __future__ import annotations

import json
from typing import Any

import click

from nodus.cli.connection import CONTEXT_OPTION, ORG_OPTION, VERBOSE_OPTION, given_options
from nodus.cli.formats import check_format, print_object
from nodus.cli.options import objects_argument
from nodus.cli.session import Session
from nodus.cli.targets import parse_target


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
@click.option("--dry-run", is_flag=True, help="Only say what would come of it.")
@click.option("-o", "--output", metavar="json|yaml|name", help="Print the object.")
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
    dry_run: bool,
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
    check_format(output, ("json", "yaml", "name"))
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
    session.run(session.get(target.kind, name, project=target.project))
    changed = session.run(
        session.resources.patch(target.kind, name, _decode(patch, form), project=target.project, dry_run=dry_run)
    )
    if output is not None:
        print_object(changed, output)
    else:
        print(f"{target.kind.singular}/{name} patched{' (server dry run)' if dry_run else ''}")


def _decode(patch: str, form: str) -> Any:
    try:
        decoded = json.loads(patch)
    except ValueError as error:
        raise click.UsageError(f"--patch is not valid JSON: {error}.") from error
    if form == "json" and not isinstance(decoded, list):
        raise click.UsageError("--type json takes a list of operations.")
    if form == "merge" and not isinstance(decoded, dict):
        raise click.UsageError("--type merge takes an object; for a list of operations use --type json.")
    return decoded
