"""``nodus up``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nodus.client.config import config_path, local_context, save_context

if TYPE_CHECKING:
    from nodus.server.lifecycle import Started, UpOptions


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Database, files and runs. [env: NODUS_DATA_DIR; default: ~/.nodus/data]",
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on. [env: NODUS_SERVER_HOST; default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port; 0 takes a free one. [env: NODUS_SERVER_PORT; default: 8080]",
)
@click.option("-d", "--detach", is_flag=True, help="Return as soon as the server is ready, and leave it running.")
@click.option(
    "--tls-cert", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="PEM certificate chain."
)
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="PEM private key.")
@click.option("--behind-proxy", is_flag=True, default=None, help="A proxy in front terminates TLS.")
@click.option("--public-url", metavar="URL", help="What clients call the server, where it isn't the listening address.")
@click.option("--roles", metavar="ROLES", help="Parts to run: api,controllers,gateway. [default: all]")
@click.option(
    "--allow-unsafe-sandbox",
    is_flag=True,
    default=None,
    help="Run untrusted code without isolation where there is none.",
)
@click.option("--new-key", is_flag=True, help="Make a new admin key, such as when the old one is lost.")
def command(new_key: bool, roles: str | None, data_dir: Path | None, **given: Any) -> None:
    """Start the server. Its first start makes an admin key and saves it in ~/.nodus for the other commands.

    \b
    Examples:
      nodus up --detach
      nodus up --port 9000 --data-dir /var/lib/nodus
    """
    from nodus.server.lifecycle import UpOptions, up

    given["roles"] = tuple(roles.split(",")) if roles else None
    if data_dir is not None:
        given["data_dir"] = data_dir.expanduser().absolute()
    for name in ("tls_cert", "tls_key"):  # a detached server works in another directory
        if given[name] is not None:
            given[name] = given[name].expanduser().absolute()
    options = UpOptions(**given)
    options = _with_key(options, new_key)
    up(options, on_ready=lambda started: _ready(started, options))


def _with_key(options: UpOptions, new_key: bool) -> UpOptions:
    from dataclasses import replace

    known = local_context(config_path(), options.data_dir)
    # A data directory made anew has forgotten the keys of the old one. Every server leaves its keys.json there, and
    # takes its server.json away when it stops.
    fresh = not (options.data_dir / "keys.json").exists()
    return replace(options, issue_key=new_key or known.api_key is None or fresh)


def _ready(started: Started, options: UpOptions) -> None:
    path = config_path()
    known = local_context(path, started.data_dir, started.org)
    key = started.api_key or known.api_key
    if key is not None and (started.api_key is not None or known.url != started.url):
        save_context(path, name=known.name, url=started.url, org=started.org, api_key=key, data_dir=started.data_dir)
    context = "" if known.is_current else f" --context {known.name}"
    print(f"Nodus is ready at {started.url} (pid {started.pid}, {started.seconds:.1f} s)")
    print(f"  data   {started.data_dir}")
    print(
        f"  key    context {known.name!r} in {path}{'' if known.is_current else '; another context is the current one'}"
    )
    if options.detach:
        where = "" if started.data_dir == type(options)().data_dir else f" --data-dir {started.data_dir}"
        print(f"  next   nodus{context} get environments -n nodus")
        print(f"  stop   nodus down{where}", flush=True)
    else:
        print("  stop   Ctrl+C", flush=True)
