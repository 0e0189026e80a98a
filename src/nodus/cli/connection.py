"""Options that say which server is meant. Apart from `nodus.cli.session`, so that a help page loads no HTTP client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """Connection options as given, before the command's name or after it."""

    context: str | None = None
    project: str | None = None
    org: str | None = None
    verbose: bool = False
    """Log each request on standard error."""

    def over(self, other: Options) -> Options:
        """Return these options, with the other's where these are unset."""
        return Options(
            self.context or other.context,
            self.project or other.project,
            self.org or other.org,
            self.verbose or other.verbose,
        )


class ConnectionOption(click.Option):
    """An option that every command takes, so that only the help of ``nodus`` itself describes it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option's line; nothing below ``nodus``."""
        return super().get_help_record(ctx) if ctx.parent is None else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete contexts and projects."""
        from nodus.cli import completing

        known = {"context": completing.complete_contexts, "project": completing.complete_projects}
        complete = known.get(str(self.name))
        return complete(ctx, self, incomplete) if complete else super().shell_complete(ctx, incomplete)


CONTEXT_OPTION = click.option(
    "--context",
    cls=ConnectionOption,
    metavar="NAME",
    help="Context of the configuration file. [env: NODUS_CONTEXT]",
)
ORG_OPTION = click.option(
    "--org", cls=ConnectionOption, metavar="NAME", help="Organization; takes its context. [env: NODUS_ORG]"
)
PROJECT_OPTION = click.option(
    "-p",
    "--project",
    "-n",
    "--namespace",
    "project",
    cls=ConnectionOption,
    metavar="NAME",
    help="Project. [env: NODUS_PROJECT]",
)
VERBOSE_OPTION = click.option(
    "-v", "--verbose", cls=ConnectionOption, is_flag=True, help="Log each request, without credentials."
)


def connection_options(function: Callable[Concatenate[click.Context, Options, P], T]) -> Callable[..., T]:
    """Decorate a function that takes a click context and the `Options`: adds --context, --org, -p and -v.

    What stands before the command's name counts as well.
    """

    @CONTEXT_OPTION
    @ORG_OPTION
    @PROJECT_OPTION
    @VERBOSE_OPTION
    @click.pass_context
    @wraps(function)
    def command(
        ctx: click.Context,
        context: str | None,
        org: str | None,
        project: str | None,
        verbose: bool,
        *args: Any,
        **kwargs: Any,
    ) -> T:
        return function(ctx, given_options(ctx, context, project, org, verbose), *args, **kwargs)

    return command


def given_options(
    ctx: click.Context, context: str | None, project: str | None, org: str | None = None, verbose: bool = False
) -> Options:
    """Return a command's own connection options over those before its name."""
    return Options(context, project, org, verbose).over(ctx.find_object(Options) or Options())
