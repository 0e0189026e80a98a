"""Secrets: values that runs may use and nobody can read back."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodus.client.blocking import blocking_class
from nodus.client.client import Client, default_client
from nodus.client.dotenv import parse
from nodus.client.handles import Handle
from nodus.core.errors import AlreadyExists, NodusError


class Secret(Handle):
    """Values that runs may use and nobody can read back.

    Example::

        nodus.Secret.create("hub", {"HF_TOKEN": token})
        nodus.Job.create(command=["python", "train.py"], secrets=["hub"])
    """

    kind = "Secret"

    @blocking_class
    async def create(
        cls: type[Secret],
        name: str,
        data: Mapping[str, str],
        type: str = "Opaque",
        *,
        project: str | None = None,
        client: Client | None = None,
    ) -> Secret:
        """Store values under a name; when the Secret exists, they become its next version.

        Keys that the Secret has and ``data`` lacks keep their values.

        Args:
            name: The Secret's name.
            data: Keys, which become environment variables or files, with their values.
            type: ``Opaque``, or ``Registry`` with the keys server, username and password.
            project: Another project than the client's own.
            client: Another server than the configured one.

        Raises:
            Invalid: When a key is no key, or one that the type needs is missing.
        """
        client = client or default_client()
        spec = {"type": type, "stringData": dict(data)}
        document = {"apiVersion": "nodus.dev/v1", "kind": "Secret", "metadata": {"name": name}, "spec": spec}
        try:
            return Secret(await client.resources.create(document, project=project), client)
        except AlreadyExists:
            patch = {"spec": {"stringData": dict(data)}}
            return Secret(await client.resources.patch("Secret", name, patch, project=project), client)

    @blocking_class
    async def from_dict(
        cls: type[Secret],
        data: Mapping[str, str],
        *,
        project: str | None = None,
        client: Client | None = None,
    ) -> Secret:
        """Store values under a name made from them, ``sdk-...``; the same values come to the same Secret.

        Args:
            data: Keys with their values.
            project: Another project than the client's own.
            client: Another server than the configured one.
        """
        client = client or default_client()
        return await cls.create.aio(_name_of(data, client), data, project=project, client=client)

    @blocking_class
    async def from_dotenv(
        cls: type[Secret],
        path: str | os.PathLike[str] = ".env",
        *,
        project: str | None = None,
        client: Client | None = None,
    ) -> Secret:
        """Store the values of a file of ``KEY=VALUE`` lines; see `from_dict`.

        Raises:
            NodusError: When the file is missing, holds no values, or a line is malformed; no value is quoted.
        """
        try:
            data = dict(parse(Path(path).read_text(encoding="utf-8")))  # noqa: ASYNC240 - a small file
        except OSError as error:
            raise NodusError(f"{path} can't be read: {error.strerror}", fix="Check the path.") from error
        except ValueError as error:
            where = "it is not UTF-8 text" if isinstance(error, UnicodeError) else f"{error} is not KEY=VALUE"
            raise NodusError(f"{path}: {where}", fix="Correct the line.") from None
        if not data:
            raise NodusError(f"{path} holds no values", fix="Write KEY=VALUE lines.")
        return await cls.from_dict.aio(data, project=project, client=client)

    @property
    def keys(self) -> list[str]:
        """Names of the newest version's keys."""
        return list(self.status.get("keys") or [])

    @property
    def version(self) -> int:
        """Number of the newest version; runs may name an earlier one."""
        return int(self.status.get("version") or 0)


def _name_of(data: Mapping[str, str], client: Client) -> str:
    """A name that tells nothing of the values to who does not hold the key."""
    key = (client.connection.api_key or "").encode() or os.urandom(32)
    content: Any = json.dumps(sorted(data.items())).encode()
    return f"sdk-{hmac.new(key, content, hashlib.sha256).hexdigest()[:16]}"
