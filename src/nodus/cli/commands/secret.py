"""``nodus secret create``, which is also ``nodus create secret``."""

from __future__ import annotations

import click

from nodus.cli.generators import create_one, manifest
from nodus.cli.groups import Group
from nodus.cli.options import dry_run_option, output_option
from nodus.cli.secretvalues import collect
from nodus.cli.session import Session, connected
from nodus.client.resources import JsonObject


@click.group("secret", cls=Group)
def command() -> None:
    """Create secrets from literals and files.

    \b
    Example:
      nodus secret create hf-token --from-file HF_TOKEN=./token
    """


@command.command()
@click.argument("name")
@click.option("--from-file", "files", multiple=True, metavar="[KEY=]PATH", help="A value from a file, or from - .")
@click.option("--from-env-file", "env_files", multiple=True, metavar="PATH", help="Values from KEY=VALUE lines.")
@click.option(
    "--from-literal",
    "literals",
    multiple=True,
    metavar="KEY=VALUE",
    help="A value as it is; it stays in the shell's history, and everybody on this machine may see it meanwhile.",
)
@click.option("--type", "form", type=click.Choice(["Opaque", "Registry"]), help="What it is for.")
@dry_run_option("Only say what would be created; `client` sends nothing.")
@output_option("json", "yaml", "name", help_text="Print the object, without its values.")
@connected()
def create(
    session: Session,
    name: str,
    files: tuple[str, ...],
    env_files: tuple[str, ...],
    literals: tuple[str, ...],
    form: str | None,
    dry_run: str,
    output: str | None,
) -> None:
    """Create a secret. Its values are sent to the server once, and are printed nowhere.

    \b
    Examples:
      nodus create secret hf-token --from-file HF_TOKEN=./token
      pass show wandb | nodus secret create wandb --from-file WANDB_API_KEY=-
      nodus create secret app --from-env-file .env
    """
    spec: JsonObject = {"stringData": collect(literals, files, env_files)}
    if form is not None:
        spec["type"] = form
    create_one(session, manifest("Secret", name, spec), dry_run, output)
