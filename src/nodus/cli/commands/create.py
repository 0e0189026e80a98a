"""``nodus create``: from manifests, or from flags."""

from __future__ import annotations

from importlib import import_module

import click

from nodus.cli.generators import GENERATORS, created, generator_command
from nodus.cli.groups import Group, with_epilog
from nodus.cli.manifests import read_manifests
from nodus.cli.options import did, dry_run_option, files_option, output_option, print_results, recursive_option
from nodus.cli.session import Options, Session, connection_options, object_label
from nodus.client.resources import JsonObject

_BY_NAME = {generator.name: generator for generator in GENERATORS}
# Kinds with a module of their own, as MODULE:NAME.
_OWN = {
    "secret": "secret:create",
    "apikey": "apikey:command",
    "budget": "budget:command",
    "token": "token:command",
    "sshkey": "sshkey:command",
}


class Generators(Group):
    """The kinds that flags can make, each built when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the kinds' names."""
        return sorted([*_BY_NAME, *_OWN])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a kind's command; case does not matter, and the plural is understood."""
        lower = cmd_name.lower()
        for name in (lower, lower.removesuffix("s"), lower.removesuffix("es")):
            if name in _OWN:
                module, _, attribute = _OWN[name].partition(":")
                command: click.Command = getattr(import_module(f"nodus.cli.commands.{module}"), attribute)
                return with_epilog(command)
            if name in _BY_NAME:
                return with_epilog(generator_command(_BY_NAME[name]))
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the kind; one without flags of its own is told to come as a manifest."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from nodus.client.suggest import did_you_mean

            known = [
                name for name in self.list_commands(ctx) if not (self.get_command(ctx, name) or ctx.command).hidden
            ]
            hint = did_you_mean(args[0], known) or f" There are {', '.join(known)}."
            raise click.UsageError(f"{args[0]!r} can't be made from flags; write a manifest and use -f.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(name="create", cls=Generators, invoke_without_command=True, subcommand_metavar="[KIND NAME [FLAGS]]")
@files_option()
@recursive_option
@dry_run_option("Only say what would be created; `client` sends nothing.")
@click.option("--idempotency-key", metavar="KEY", help="The same key with the same manifest creates once.")
@output_option("json", "yaml", "name", "estimate", help_text="Print the objects instead of a line for each.")
@connection_options
def command(
    ctx: click.Context,
    given: Options,
    files: tuple[str, ...],
    recursive: bool,
    dry_run: str,
    idempotency_key: str | None,
    output: str | None,
) -> None:
    """Create objects from manifests or, for some kinds, from flags.

    Unlike `apply` it takes manifests without a name (metadata.generateName).

    \b
    Examples:
      nodus create -f grpo.yaml -o name             # prints the name the server gave it
      nodus create volume support-chats --size 1Gi
    """
    ctx.obj = given
    if ctx.invoked_subcommand is None:
        _from_files(Session(given), read_manifests(files, recursive=recursive), dry_run, idempotency_key, output)
    elif files or recursive or idempotency_key or output or dry_run != "none":
        raise click.UsageError("flags of `create` stand after KIND NAME; -f takes no KIND NAME at all.")


def _from_files(
    session: Session, documents: list[JsonObject], dry_run: str, idempotency_key: str | None, output: str | None
) -> None:
    if idempotency_key and len(documents) > 1:
        raise click.UsageError("--idempotency-key needs a manifest with one object.")
    results: list[JsonObject] = []
    try:
        for document in documents:
            obj, outcome = created(session, document, dry_run, idempotency_key)
            results.append(obj)
            if output is None:
                print(f"{object_label(obj)} {did(outcome, dry_run)}")
    finally:  # what was done before an error is shown as well
        if output is not None and results:
            print_results(results, output, dry_run)
