"""The client of one server, and the one that calls use when they are given none."""

from __future__ import annotations

from typing import Any

from nodus.client.blocking import blocking
from nodus.client.config import Connection, resolve
from nodus.client.http import PATIENT, Api, RetryPolicy
from nodus.client.record import Record, as_record
from nodus.client.resources import Resources


class Client:
    """A connection to a Nodus server.

    Everything left out comes from the environment (``NODUS_API_URL``, ``NODUS_API_KEY``, ``NODUS_PROJECT``,
    ``NODUS_CONTEXT``), else from the current context of ``~/.nodus/config``.

    Args:
        api_url: The server's origin.
        api_key: A key of it.
        project: Where objects are made and looked up.
        context: A context of the configuration file other than the current one.
        connection: Address, key and project already resolved; the other arguments are then ignored.
        retry: How long to go on trying when the server is away.

    Raises:
        ConfigError: When the configuration can't be read or the context does not exist.
    """

    def __init__(
        self,
        *,
        api_url: str | None = None,
        api_key: str | None = None,
        project: str | None = None,
        context: str | None = None,
        connection: Connection | None = None,
        retry: RetryPolicy = PATIENT,
    ) -> None:
        self.connection = connection or resolve(url=api_url, api_key=api_key, project=project, context=context)
        self.api = Api(self.connection, retry=retry)
        self.resources = Resources(self.api)
        self.project = self.connection.project

    @blocking
    async def whoami(self) -> Record:
        """Return who the key belongs to and what it may do."""
        return Record(as_record(await self.api.call("GET", "/auth/whoami")))

    @blocking
    async def server_info(self) -> Record:
        """Return what the server says of itself: its release, its default model, its device."""
        return Record(as_record(await self.api.call("GET", "/.well-known/nodus-configuration")))

    @blocking
    async def ready(self) -> str:
        """Return the server's readiness report.

        Raises:
            Unavailable: When it is up and not ready.
            ConnectionFailed: When it is not up.
        """
        return str(await self.api.call("GET", "/readyz"))

    def close(self) -> None:
        """Close idle connections."""
        self.api.transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


_shared: dict[Connection, Client] = {}


def default_client() -> Client:
    """Return the client for the present environment and configuration; the same one while they stay the same."""
    connection = resolve()
    if connection not in _shared:
        _shared[connection] = Client(connection=connection)
    return _shared[connection]
