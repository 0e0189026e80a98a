"""``nodus admin``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from nodus.cli.commands import admin_grant, admin_ledger
from nodus.cli.groups import Group
from nodus.cli.options import DATA_DIR
from nodus.cli.session import Session, connected


@click.group(name="admin", cls=Group)
def command() -> None:
    """Look after a server: bring people in, grant credits, back it up, change its master key, check its ledger.

    \b
    Examples:
      nodus admin login-link --member ada
      nodus admin grant --amount 25
      nodus admin backup /mnt/backups/nodus
      nodus admin sweep
      nodus admin rotate-keys
      nodus admin ledger verify
    """


command.add_command(admin_ledger.command)
command.add_command(admin_grant.command)


@command.command("login-link")
@click.option("--member", metavar="NAME", help="Whom it is for; you when left out.")
@click.option(
    "--duration", metavar="DURATION", default="15m", show_default=True, help="How long it works; at most 168h."
)
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print everything the server says.")
@connected()
def login_link(session: Session, member: str | None, duration: str, output: str | None) -> None:
    """Print a sign-in code, which shows on the login page who somebody is. It works once.

    Give it to a new member, who runs `nodus login` and pastes it instead of an API key.

    \b
    Example:
      nodus create member ada --role Developer
      nodus admin login-link --member ada --duration 24h
    """
    body = {"duration": duration} | ({"member": member} if member else {})
    made = session.run(session.api.call("POST", "/auth/login-codes", body=body))
    if output is not None:
        print(json.dumps(made, indent=2))
        return
    print(f"For {made['member']}, once, until {made['expirationTime']}. Run this and paste the code:", file=sys.stderr)
    print(f"  nodus login --api-url {session.connection.url}", file=sys.stderr)
    print(made["code"])


@command.command("rotate-keys")
@DATA_DIR
@click.option("--drop-old", is_flag=True, help="Forget the master keys of before; API keys not used since end.")
@click.option("--yes", is_flag=True, help="Don't ask before API keys end.")
def rotate_keys(data_dir: Path | None, drop_old: bool, yes: bool) -> None:
    """Give the server a new master key. The server must be stopped; runs go on.

    Secrets are encrypted anew at once; an API key is hashed anew when it is next used. Until --drop-old the master
    keys of before stay in keys.json, so that API keys not used since go on working.

    \b
    Examples:
      nodus admin rotate-keys                       # between `nodus down` and `nodus up`
      nodus admin rotate-keys --drop-old            # a month later
    """
    from nodus.server.rotation import drop_old_keys, rotate

    where = _data_dir(data_dir)
    if not drop_old:
        done = rotate(where)
        print(f"Master key {done.version} is in use; {done.secrets} versions of secrets are encrypted with it.")
        return

    def confirm(names: list[str]) -> bool:
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        return yes or click.confirm(f"These API keys were not used since and end: {shown}. Go on?", err=True)

    ended = drop_old_keys(where, confirm)
    print(f"The master keys of before are gone{f'; {ended} API keys ended with them' if ended else ''}.")


def _path(text: str) -> Path:
    if "\0" in text:
        raise ValueError("no path has a NUL in it")
    return Path(text)


@command.command()
@click.argument("directory", type=_path)
@DATA_DIR
@click.option("--without-state", is_flag=True, help="Leave out checkpoints, workspaces of sandboxes and logs.")
def backup(directory: Path, data_dir: Path | None, without_state: bool) -> None:
    """Copy a server's database, blobs, keys and settings into DIRECTORY, while it runs.

    Run on the server's machine, with its NODUS_SERVER_DATABASE_URL if it has one. The same DIRECTORY again copies new
    blobs only, and replaces the backup there once all of it is written. It holds the master keys: keep it as safe as
    the server.

    \b
    Example:
      nodus admin backup /mnt/backups/nodus
    """
    from nodus.cli.progress import Waiting
    from nodus.core.sizes import size_text
    from nodus.server.backup import make

    with Waiting("copying"):
        made = make(_data_dir(data_dir), directory, state=not without_state)
    found = made.manifest
    state = "" if without_state else f", {size_text(made.state_bytes)}B of checkpoints, workspaces and logs"
    print(
        f"Backup of {found.made} in {directory}: {found.blobs} blobs of {size_text(found.blob_bytes)}B "
        f"({made.new_blobs} new){state}."
    )
    _tell_damaged(made.damaged, "the server itself")


@command.command()
@click.argument("directory", type=_path)
@DATA_DIR
def restore(directory: Path, data_dir: Path | None) -> None:
    """Put the backup in DIRECTORY back into a data directory that is new or empty.

    API keys, Secrets and members are those of the backup. Runs that were under way then go on from their last
    checkpoint. With NODUS_SERVER_DATABASE_URL, or a nodus.toml that is there already, it goes into an empty PostgreSQL
    database, wherever it came from.

    \b
    Example:
      nodus admin restore /mnt/backups/nodus --data-dir /srv/nodus
      nodus up --data-dir /srv/nodus --detach
    """
    from nodus.cli.progress import Waiting
    from nodus.server.backup import restore as put_back

    where = _data_dir(data_dir)
    with Waiting("restoring"):
        done = put_back(directory, where)
    print(f"Restored the backup of {done.manifest.made} into {where}; start it with `nodus up --data-dir {where}`.")
    _tell_damaged(done.damaged, "the backup")


@command.command()
@DATA_DIR
@click.option(
    "--older-than", metavar="DURATION", default=None, help="Blobs not used for so long; at least 1h. [default: 168h]"
)
def sweep(data_dir: Path | None, older_than: str | None) -> None:
    """Give disk space back now: old revisions of volumes, and blobs and builds that nothing names any more.

    The server does so every hour by itself, by its settings retain_revisions and retain_blobs_days, and may go on
    meanwhile. What an object names stays, however old: delete runs and volumes that are not needed first.

    \b
    Example:
      nodus admin sweep --older-than 24h
    """
    from nodus.cli.progress import Waiting
    from nodus.core.durations import parse_duration
    from nodus.core.sizes import size_text
    from nodus.server.retention import sweep_data_dir

    try:
        keep_s = None if older_than is None else parse_duration(older_than)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--older-than") from error
    if keep_s is not None and keep_s < 3600:
        raise click.BadParameter(f"{older_than!r} is less than an hour", param_hint="--older-than")
    with Waiting("looking for what nothing names"):
        done = sweep_data_dir(_data_dir(data_dir), keep_s)
    what = [f"{done.revisions} revisions", f"{done.files} blobs", *([f"{done.builds} builds"] if done.builds else [])]
    print(f"Removed {', '.join(what[:-1])} and {what[-1]} of {size_text(done.bytes)}B.")


def _data_dir(given: Path | None) -> Path:
    from nodus.server.lifecycle import UpOptions

    return given.expanduser().absolute() if given is not None else UpOptions().data_dir


def _tell_damaged(digests: list[str], whose: str) -> None:
    if not digests:
        return
    shown = ", ".join(digests[:5]) + (f" and {len(digests) - 5} more" if len(digests) > 5 else "")
    print(f"warning: {whose} lacks or has damaged {len(digests)} blobs: {shown}", file=sys.stderr)
    raise click.exceptions.Exit(1)
