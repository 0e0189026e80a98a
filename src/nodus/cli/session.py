"""What every command that speaks with the server shares: its connection options and its client."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from nodus._version import __version__
from nodus.cli.connection import Options, connection_options, given_options
from nodus.cli.progress import bars, clear
from nodus.client.blocking import run_blocking
from nodus.client.config import Connection, resolve
from nodus.client.http import PATIENT, PROMPT, Api
from nodus.client.kinds import KindInfo
from nodus.client.resources import JsonObject, Resources
from nodus.core.errors import NotFound

if TYPE_CHECKING:
    from nodus.client.client import Client

__all__ = ["Options", "Session", "TABLE", "connected", "connection_options", "given_options", "object_label"]

P = ParamSpec("P")
T = TypeVar("T")
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


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


def _log(line: str) -> None:
    clear()
    print(line, file=sys.stderr)


def object_label(obj: JsonObject) -> str:
    """Return ``singular/name``, as success lines print it; the name is the server's."""
    return f"{str(obj.get('kind') or '').lower()}/{(obj.get('metadata') or {}).get('name', '')}"
