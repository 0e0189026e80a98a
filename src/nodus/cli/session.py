"""What every command that speaks with the server shares: its connection options and its client."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from nodus._version import __version__
from nodus.cli.progress import bars, clear
from nodus.client.blocking import run_blocking
from nodus.client.config import Connection, resolve
from nodus.client.http import PATIENT, PROMPT, Api
from nodus.client.kinds import KindInfo
from nodus.client.resources import JsonObject, Resources
from nodus.core.errors import NotFound

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from nodus.client.client import Client

P = ParamSpec("P")
T = TypeVar("T")
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


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


class Session:
    """The server that a command speaks with.

    Args:
        options: Context and project.
        patient: Ride out a restart of the server, for commands that follow something.
    """

    def __init__(self, options: Options, *, patient: bool = False) -> None:
        self.connection: Connection = resolve(context=options.context, project=options.project, org=options.org)
        self.api = Api(
            self.connection,
            retry=PATIENT if patient else PROMPT,
            agent=f"nodus/{__version__}",
            meter=bars(),
            log=_log if options.verbose else None,
        )
        self.resources = Resources(self.api)
        self.project = self.connection.project

    def client(self) -> Client:
        """Return the Python client of the same server, which logs and shows progress as this session does."""
        from nodus.client.client import Client

        client = Client(connection=self.connection)
        client.api, client.resources = self.api, self.resources
        return client

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run one coroutine of the client's logic to its end."""
        return run_blocking(coroutine)

    async def get(self, kind: KindInfo, name: str, *, project: str | None = None, accept: str | None = None) -> Any:
        """Return an object, or its Table; a missing project is reported as such.

        Raises:
            NotFound: For the object, or for the project where that is what is missing.
        """
        home = project or self.project
        headers = {"Accept": accept} if accept else None
        try:
            return await self.api.call("GET", kind.path(home, name), headers=headers)
        except NotFound:
            if kind.namespaced and home != "default":
                await self.api.call("GET", f"/api/v1/namespaces/{home}")
            raise


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


def connected(*, patient: bool = False) -> Callable[[Callable[Concatenate[Session, P], T]], Callable[..., T]]:
    """Decorate a command's function: adds --context, --org, -p and -v, and passes a Session as its first argument.

    Args:
        patient: Ride out a restart of the server.
    """

    def decorate(function: Callable[Concatenate[Session, P], T]) -> Callable[..., T]:
        @connection_options
        @wraps(function)
        def command(ctx: click.Context, given: Options, *args: Any, **kwargs: Any) -> T:
            return function(Session(given, patient=patient), *args, **kwargs)

        return command

    return decorate


def given_options(
    ctx: click.Context, context: str | None, project: str | None, org: str | None = None, verbose: bool = False
) -> Options:
    """Return a command's own connection options over those before its name."""
    return Options(context, project, org, verbose).over(ctx.find_object(Options) or Options())


def _log(line: str) -> None:
    clear()
    print(line, file=sys.stderr)


def object_label(obj: JsonObject) -> str:
    """Return ``singular/name``, as success lines print it; the name is the server's."""
    return f"{str(obj.get('kind') or '').lower()}/{(obj.get('metadata') or {}).get('name', '')}"
