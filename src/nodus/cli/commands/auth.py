"""``nodus auth``."""

from __future__ import annotations

import json

import click

from nodus.cli.groups import Group
from nodus.cli.session import Session, connected, given_options
from nodus.client.config import ConfigError, resolve


@click.group(name="auth", cls=Group)
def command() -> None:
    """Print credentials and permissions.

    \b
    Examples:
      nodus auth token
      nodus auth can-i create trainingjobs
    """


@command.command()
@click.option("--context", metavar="NAME", help="Context of the configuration file. [env: NODUS_CONTEXT]")
@click.pass_context
def token(ctx: click.Context, context: str | None) -> None:
    """Print the key of a context as an ExecCredential, for tools that read a kubeconfig.

    \b
    Example:
      nodus auth token --context nodus
    """
    connection = resolve(context=given_options(ctx, context, None).context)
    if not connection.api_key:
        raise ConfigError("there is no key to print", fix="Run `nodus login --with-token`, or set NODUS_API_KEY.")
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": connection.api_key},
    }
    print(json.dumps(credential))


@command.command("can-i")
@click.argument("verb")
@click.argument("resource")
@connected()
def can_i(session: Session, verb: str, resource: str) -> int:
    """Tell whether the key may do something; exits with 1 when it may not.

    \b
    Example:
      nodus auth can-i create trainingjobs
    """
    kind = session.run(session.resources.kind(resource))
    scopes = set(session.run(session.api.call("GET", "/auth/whoami")).get("scopes") or [])
    reads = verb in ("get", "list", "watch")
    enough = {"*", f"{kind.plural}:write", f"{kind.plural}:*"} | ({f"{kind.plural}:read"} if reads else set())
    allowed = bool(scopes & enough)
    print("yes" if allowed else "no")
    return 0 if allowed else 1
