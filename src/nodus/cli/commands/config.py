"""``nodus config``."""

from __future__ import annotations

import click

from nodus.cli.groups import Group
from nodus.cli.session import given_options
from nodus.client.config import config_path
from nodus.client.contexts import ContextInfo, change_context, contexts, find_context, remove_context, use_context


@click.group(name="config", cls=Group)
def command() -> None:
    """Show and change the contexts in ~/.nodus/config: which server, key and project commands use.

    \b
    Examples:
      nodus config get-contexts
      nodus config use-context acme
      nodus config set-context --project research
    """


@command.command("get-contexts")
@click.option("-o", "--output", type=click.Choice(["name"]), help="Print the names alone.")
def get_contexts(output: str | None) -> None:
    """List the contexts; a star marks the current one.

    \b
    Example:
      nodus config get-contexts
    """
    found = contexts(config_path())
    if output == "name":
        for context in found:
            print(context.name)
        return
    rows = [("CURRENT", "NAME", "ORG", "PROJECT", "SERVER"), *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(context: ContextInfo) -> tuple[str, str, str, str, str]:
    return "*" if context.current else "", context.name, context.org or "", context.project, context.server or ""


@command.command("current-context")
def current_context() -> None:
    """Print the current context's name.

    \b
    Example:
      nodus config current-context
    """
    print(find_context(config_path()).name)


@command.command("use-context")
@click.argument("name")
def use(name: str) -> None:
    """Make a context the current one.

    \b
    Example:
      nodus config use-context acme
    """
    use_context(config_path(), name)
    print(f'Switched to context "{name}".')


@command.command("set-context")
@click.argument("name", required=False)
@click.option("-p", "--project", metavar="NAME", help="Project that commands use.")
@click.option("--server", metavar="URL", help="The server's address.")
@click.pass_context
def set_context(ctx: click.Context, name: str | None, project: str | None, server: str | None) -> None:
    """Change the project or the server of a context, the current one when no name is given.

    \b
    Example:
      nodus config set-context --project research
    """
    if project is None and server is None:
        raise click.UsageError("give --project, --server, or both.")
    if server is not None and not server.startswith(("http://", "https://")):
        raise click.UsageError(f"--server {server!r} is no address; write it like https://nodus.example.com.")
    name = name or given_options(ctx, None, None).context
    changed = change_context(config_path(), name, project=project, server=server)
    print(f'Context "{changed}" modified.')


@command.command("delete-context")
@click.argument("name")
def delete_context(name: str) -> None:
    """Take a context away with the key that is saved for it; the key itself stays valid (`nodus logout` revokes it).

    \b
    Example:
      nodus config delete-context old
    """
    remove_context(config_path(), name)
    print(f'Context "{name}" deleted.')


@command.command()
def view() -> None:
    """Print the configuration file as YAML; keys stand elsewhere and are never shown.

    \b
    Example:
      nodus config view
    """
    import yaml

    from nodus.client.config import load_config

    content = load_config(config_path())
    for item in content.get("users") or []:
        user = item.get("user") or {}
        for name in ("token", "password", "client-key-data"):
            if name in user:
                user[name] = "REDACTED"
    print(yaml.safe_dump(content, sort_keys=True, default_flow_style=False), end="")
