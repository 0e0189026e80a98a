"""``nodus logout``."""

from __future__ import annotations

import os
import sys

import click

from nodus.cli.session import Options, connection_options
from nodus.client.blocking import run_blocking
from nodus.client.config import config_path, read_credentials
from nodus.client.contexts import ContextInfo, find_context, remove_context
from nodus.core.errors import NodusError


@click.command()
@connection_options
def command(ctx: click.Context, given: Options) -> None:
    """Log out: revokes the key that the login made and takes its context away.

    A key that came from elsewhere (--with-token, NODUS_API_KEY, the server's own) is not revoked, only forgotten.

    \b
    Example:
      nodus logout
    """
    path = config_path()
    context = find_context(path, _wanted(given))
    revoked = _revoke(context) if context.key_name is not None else False
    remove_context(path, context.name)
    print(f"Logged out of context {context.name!r}{'; its key is revoked' if revoked else ''}.")


def _wanted(given: Options) -> str | None:
    """Name of the context that commands use with these options and this environment; None for the current one."""
    from nodus.client.config import context_of

    named = given.context or os.environ.get("NODUS_CONTEXT")
    if named:
        return named
    path = config_path()
    return context_of(path, given.org, must=True) or context_of(path, os.environ.get("NODUS_ORG"), must=False)


def _revoke(context: ContextInfo) -> bool:
    """End the key with itself; that it can't be reached keeps nobody from logging out."""
    from nodus.client.config import resolve
    from nodus.client.http import PROMPT, Api

    key = read_credentials(config_path()).get(context.name)
    if key is None:
        return False
    connection = resolve(context=context.name, api_key=key, url=context.server)
    try:
        run_blocking(Api(connection, retry=PROMPT).call("DELETE", f"/apis/nodus.dev/v1/apikeys/{context.key_name}"))
    except NodusError as error:
        print(f"warning: the key {context.key_name} could not be revoked: {error.message}", file=sys.stderr)
        return False
    return True
