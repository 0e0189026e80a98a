"""``nodus create sshkey``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodus.cli.generators import create_one, manifest
from nodus.cli.options import dry_run_option, output_option
from nodus.cli.session import Session, connected

_LIMIT_BYTES = 16 * 1024


@click.command("sshkey")
@click.argument("name")
@click.option("--from-file", "file", metavar="FILE", required=True, help="OpenSSH public key, or - for standard input.")
@click.option("--display-name", metavar="TEXT", help="For people.")
@output_option("json", "yaml", "name")
@dry_run_option("Only say what would be created; `client` sends nothing.")
@connected()
def command(session: Session, name: str, file: str, display_name: str | None, output: str | None, dry_run: str) -> None:
    """Add a public SSH key of yours.

    \b
    Example:
      nodus create sshkey laptop --from-file ./id_ed25519.pub
    """
    spec = {"publicKey": _read(file)} | ({"displayName": display_name} if display_name else {})
    create_one(session, manifest("SSHKey", name, spec), dry_run, output)


def _read(file: str) -> str:
    from nodus.core.validity import ssh_fingerprint

    try:
        raw = sys.stdin.buffer.read(_LIMIT_BYTES + 1) if file == "-" else Path(file).read_bytes()[: _LIMIT_BYTES + 1]
        text = raw.decode()
        ssh_fingerprint(text)  # before anything is sent: a private key must not leave this machine
    except ValueError as error:
        raise click.UsageError(f"--from-file {file}: no public SSH key: {error}.") from error
    return text.strip()
