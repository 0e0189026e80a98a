"""``nodus login``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodus.cli.colour import visible
from nodus.client.blocking import run_blocking
from nodus.client.config import DEFAULT_URL, Connection, config_path, resolve, save_context
from nodus.client.contexts import free_name
from nodus.client.http import PROMPT, Api
from nodus.client.login import Granted
from nodus.core.ids import slug


@click.command()
@click.option("--device", is_flag=True, help="Approve on another device, with a code.")
@click.option("--with-token", is_flag=True, help="Read a key from standard input.")
@click.option("--api-url", metavar="URL", help=f"The server's address. [env: NODUS_API_URL; default: {DEFAULT_URL}]")
@click.option("--console-url", metavar="URL", help="Where the approval page is, when the server doesn't say.")
@click.option("--no-browser", is_flag=True, help="Print the page's address instead of opening it.")
@click.option(
    "--certificate-authority",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="PEM file to trust for a server with a certificate of its own.",
)
def command(
    device: bool,
    with_token: bool,
    api_url: str | None,
    console_url: str | None,
    no_browser: bool,
    certificate_authority: Path | None,
) -> None:
    """Log in to a server: opens its page in the browser, where you approve a key for this machine.

    The key works for 90 days, or until `nodus logout`. It is saved in ~/.nodus under a context named after the
    organization, which becomes the current one.

    \b
    Examples:
      nodus login --api-url https://nodus.example.com
      nodus login --device                          # on a machine without a browser
      echo "$KEY" | nodus login --with-token        # for CI
    """
    if device and with_token:
        raise click.UsageError("--device and --with-token are different ways to log in; give one.")
    key = _read_key() if with_token else None
    url = (api_url or resolve(api_key=key or "unused").url).rstrip("/")
    authority = str(certificate_authority.absolute()) if certificate_authority is not None else None
    connection = Connection(url=url, api_key=key, project="default", certificate_authority=authority)
    api = Api(connection, retry=PROMPT)
    if key is not None:
        _save([_of_key(api, key)], url, authority, named=False)
    elif device:
        from nodus.client.login import with_device

        _save(run_blocking(with_device(api, _show_code)), url, authority, named=True)
    else:
        _save(_in_browser(api, console_url, no_browser), url, authority, named=True)


def _read_key() -> str:
    key = sys.stdin.read().strip()
    if not key:
        raise click.UsageError("there is no key on standard input.")
    return key


def _of_key(api: Api, key: str) -> Granted:
    found = run_blocking(api.call("GET", "/auth/whoami"))
    org = str(found.get("orgName") or found.get("org") or "nodus")
    projects = found.get("projects") or ["default"]
    project = "default" if "default" in projects else str(projects[0])
    return Granted(key, str(found.get("name") or ""), slug(org), org, project)


def _in_browser(api: Api, console_url: str | None, no_browser: bool) -> list[Granted]:
    from nodus.client.login import console_of, may_open_browser, with_browser

    console = (console_url or run_blocking(console_of(api))).rstrip("/")

    def show(address: str) -> None:
        if no_browser or not may_open_browser():
            print(f"Open this page in a browser on this machine:\n  {visible(address)}", file=sys.stderr)
            print("Is there none? `nodus login --device` takes one elsewhere.", file=sys.stderr)
            return
        import webbrowser

        print(f"Opening {visible(address)}", file=sys.stderr)
        webbrowser.open(address)

    return run_blocking(with_browser(api, console, show))


def _show_code(page: str, code: str, address: str) -> None:
    print(visible(f"Open {page} on any device and enter the code {code}\nor open {address}"), file=sys.stderr)


def _save(granted: list[Granted], url: str, authority: str | None, *, named: bool) -> None:
    """Save one context for each key.

    Args:
        granted: The keys.
        url: The server.
        authority: PEM file to trust.
        named: Whether this login made the keys, so that logging out ends them.
    """
    path = config_path()
    for number, entry in enumerate(granted):
        org = slug(entry.org_name)
        name = free_name(path, org, url)
        save_context(
            path, name=name, url=url, org=org, api_key=entry.key, project=entry.project, make_current=number == 0,
            key_name=entry.name if named else None, certificate_authority=authority,
        )  # fmt: skip
        current = f"; context {name!r} is now the current one" if number == 0 else f" as context {name!r}"
        print(visible(f"Logged in to {entry.org_name} at {url}{current}."))
