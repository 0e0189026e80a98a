"""``nodus login``."""

from __future__ import annotations

import re
import sys

import click

from nodus.client.blocking import run_blocking
from nodus.client.config import DEFAULT_URL, Connection, config_path, resolve, save_context
from nodus.client.http import PROMPT, Api


@click.command()
@click.option("--with-token", is_flag=True, help="Read the key from standard input.")
@click.option("--api-url", metavar="URL", help=f"The server's address. [env: NODUS_API_URL; default: {DEFAULT_URL}]")
def command(with_token: bool, api_url: str | None) -> None:
    """Save a key of a server in ~/.nodus, under a context named after its organization.

    \b
    Example:
      echo "$KEY" | nodus login --with-token --api-url https://nodus.example.com
    """
    if not with_token:
        raise click.UsageError("use --with-token and give the key on standard input; other ways to log in come later.")
    key = sys.stdin.read().strip()
    if not key:
        raise click.UsageError("there is no key on standard input.")
    url = (api_url or resolve(api_key=key).url).rstrip("/")
    api = Api(Connection(url=url, api_key=key, project="default"), retry=PROMPT)
    found = run_blocking(api.call("GET", "/auth/whoami"))
    org = slug(str(found.get("orgName") or found.get("org") or "nodus"))
    save_context(config_path(), name=org, url=url, org=org, api_key=key, make_current=True)
    print(f"Logged in to {found.get('orgName') or org} at {url}; context {org!r} is now the current one.")


def slug(text: str) -> str:
    """Return a text as a context's name: lower case, dashes for what is no letter or digit."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "nodus"
