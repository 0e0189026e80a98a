"""``nodus auth``."""

from __future__ import annotations

import json

import click

from nodus.cli.groups import Group
from nodus.cli.session import Session, connected, given_options
from nodus.client.config import ConfigError, resolve
from nodus.core.roles import Access, allows


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
        raise ConfigError("there is no key to print", fix="Run `nodus login`, or set NODUS_API_KEY.")
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
    """Tell whether the key may do something in the project; exits with 1 when it may not.

    \b
    Examples:
      nodus auth can-i create trainingjobs
      nodus auth can-i exec sandboxes -p research
    """
    if verb not in _ACCESS:
        raise click.UsageError(f"unknown verb {verb!r}; use one of {', '.join(_ACCESS)}.")
    who = session.run(session.api.call("GET", "/auth/whoami"))
    plural, access, namespaced = _wanted(session, verb, resource)
    allowed = allows(who.get("scopes") or [], plural, access)
    if allowed and namespaced:
        catalog = session.project == _CATALOG
        allowed = access == "read" if catalog else session.project in (who.get("projects") or [])
    print("yes" if allowed else "no")
    return 0 if allowed else 1


_CATALOG = "nodus"
_ACCESS: dict[str, Access] = {
    **dict.fromkeys(("get", "list", "watch"), "read"),
    **dict.fromkeys(("create", "update", "patch", "delete", "exec"), "write"),
    "invoke": "invoke",
}


def _wanted(session: Session, verb: str, resource: str) -> tuple[str, Access, bool]:
    """The scope that an action needs, and whether a project matters to it."""
    if verb == "exec":  # a command is started below its Sandbox
        return "sandboxes", "write", True
    if verb == "invoke":
        return resource, "invoke", False
    kind = session.run(session.resources.kind(resource))
    return kind.plural, _ACCESS[verb], kind.namespaced
