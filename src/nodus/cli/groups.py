"""Groups of commands: a mistyped name is answered with the closest one."""

from __future__ import annotations

from collections.abc import Iterable

import click

EPILOG = "-p PROJECT, --context, --org and -v: see `nodus --help`."


class Group(click.Group):
    """A group such as ``nodus volume``."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name, or None."""
        return with_epilog(super().get_command(ctx, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names.

        Raises:
            click.UsageError: For an unknown one, with the closest name.
        """
        if args and not args[0].startswith("-") and not ctx.resilient_parsing:
            known = self.list_commands(ctx)
            if args[0] not in known and self.get_command(ctx, args[0]) is None:
                raise unknown_command(ctx, args[0], known)
        return super().resolve_command(ctx, args)


def with_epilog(command: click.Command | None) -> click.Command | None:
    """Return the command; its help points to the flags that every command takes."""
    if command is not None and any("--verbose" in parameter.opts for parameter in command.params):
        command.epilog = command.epilog or EPILOG
    return command


def unknown_command(ctx: click.Context, name: str, known: Iterable[str]) -> click.UsageError:
    """Return the refusal of a command that isn't there."""
    from nodus.client.suggest import did_you_mean

    hint = did_you_mean(name, known) or f" `{ctx.command_path} --help` lists the commands."
    return click.UsageError(f"unknown command {name!r}.{hint}", ctx)
