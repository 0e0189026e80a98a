"""``nodus volume``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from nodus.cli.colour import visible
from nodus.cli.groups import Group
from nodus.cli.options import output_option
from nodus.cli.session import Session, connected
from nodus.cli.tables import plain_table
from nodus.client.http import RetryPolicy
from nodus.core.errors import NotFound

if TYPE_CHECKING:
    from nodus.client.volumes import Volume

RIDE_OUT = RetryPolicy(budget_s=300.0, first_contact_s=0.0, internal_error_s=0.0, only_when_told=True)
"""A transfer outlives a restart of the server; what the server refuses is said at once."""


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from nodus.cli.completing import complete_names

    return list(complete_names("Volume")(ctx, param, incomplete))


SKIPPED_SHOWN = 10
"""Warnings about single files; the rest are counted."""
NAME = click.argument("name", shell_complete=_names)
REVISION = click.option(
    "--revision", type=click.IntRange(min=1), metavar="N", help="An earlier revision; the newest when unset."
)


@click.group(name="volume", cls=Group)
def command() -> None:
    """Put files into volumes and get them back.

    Every change is a new revision; runs that were admitted before keep theirs.

    \b
    Examples:
      nodus volume put support-chats ./chats.jsonl --create
      nodus volume ls support-chats
      nodus volume get support-chats chats.jsonl ./chats.jsonl
    """


@command.command()
@NAME
@click.argument("local", type=click.Path())
@click.argument("remote", default="/", required=False)
@click.option("--extract", is_flag=True, help="Unpack LOCAL, a .zip, .tar, .tar.gz or .tgz archive, into REMOTE.")
@click.option("--create", "create", is_flag=True, help="Make the volume where there is none.")
@click.option("--follow-symlinks", is_flag=True, help="Take what symbolic links lead to, also outside of LOCAL.")
@connected()
def put(
    session: Session, name: str, local: str, remote: str, extract: bool, create: bool, follow_symlinks: bool
) -> None:
    """Upload a file, or everything below a directory, as a new revision.

    Files that are there stay, unless they are written anew. A file lands at REMOTE, or inside it when REMOTE is a
    directory or ends in a slash; a directory's contents merge into REMOTE. Called again after it was interrupted, it
    sends only what is missing.

    A link to a file inside the directory becomes a copy. Other links, sockets, pipes and devices are left out, with a
    warning that names them.

    \b
    Examples:
      nodus volume put support-chats ./chats.jsonl
      nodus volume put corpus ./texts /raw --create
      nodus volume put corpus ./archive.tar.gz /raw --extract
    """
    from nodus.client.volumefiles import unpacked

    if extract and follow_symlinks:
        raise click.UsageError("--follow-symlinks goes with a directory; an archive is taken as it was packed.")
    volume = _volume(session, name, create=create)
    skipped: list[str] = []
    if extract:
        with unpacked(local) as directory:
            revision = volume.put_directory(directory, remote, skipped=skipped.append)
    else:
        revision = volume.put(local, remote, follow_symlinks=follow_symlinks, skipped=skipped.append)
    _tell_skipped(skipped)
    print(f"volume/{name} revision {revision}")


@command.command()
@NAME
@click.argument("remote")
@click.argument("local", default=".", required=False)
@REVISION
@click.option("--force", is_flag=True, help="Overwrite files of this machine.")
@connected()
def get(session: Session, name: str, remote: str, local: str, revision: int | None, force: bool) -> None:
    """Download a file, or everything below a directory, each file checked by its sha256.

    LOCAL is the current directory when left out; - writes a file to standard output.

    \b
    Examples:
      nodus volume get support-chats / ./chats
      nodus volume get support-chats chats.jsonl ./ --revision 3
      nodus volume get support-chats chats.jsonl - | head
    """
    volume = _volume(session, name)
    if local == "-":
        for chunk in volume.stream(remote, revision):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    for written in volume.get(remote, local, revision, overwrite=force):
        print(written)


@command.command()
@NAME
@click.argument("path", default="", required=False)
@REVISION
@click.option("-R", "--recursive", is_flag=True, help="Every file below, instead of one directory.")
@output_option("json", "yaml", help_text="Print size, sha256 and mode too.")
@connected()
def ls(session: Session, name: str, path: str, revision: int | None, recursive: bool, output: str | None) -> None:
    """List a directory of a volume.

    \b
    Examples:
      nodus volume ls support-chats
      nodus volume ls corpus /raw --revision 2 -R
    """
    volume = _volume(session, name)
    if output is not None:
        from nodus.cli.formats import print_object

        items: list[Any] = [dict(item) for item in volume.list(path, revision)]
        print_object({"items": items}, output)
        return
    found = volume.list(path, revision) if recursive else volume.listdir(path, revision)
    if recursive and path.strip("/") and not found:
        raise NotFound(f"volume {name!r} has nothing at {path!r}")
    rows = [(f"{item.name}/" if item.get("type") == "directory" else item.name, item.size) for item in found]
    for line in plain_table(("NAME", "SIZE"), rows):
        print(line)


@command.command()
@NAME
@click.argument("path")
@connected()
def rm(session: Session, name: str, path: str) -> None:
    """Remove a file, or everything below a directory, as a new revision.

    \b
    Example:
      nodus volume rm corpus /raw/stale.txt
    """
    if not path.strip("/"):
        raise click.UsageError(f"that is all of it; `nodus volume clear {name}` commits an empty revision.")
    revision = _volume(session, name).remove_file(path)
    print(f"volume/{name} revision {revision}")


@command.command()
@NAME
@connected()
def clear(session: Session, name: str) -> None:
    """Commit an empty revision; the volume and its history stay.

    \b
    Example:
      nodus volume clear scratch
    """
    revision = _volume(session, name).clear()
    print(f"volume/{name} revision {revision}")


@command.command()
@NAME
@output_option("json", "yaml", help_text="Print the digests too.")
@connected()
def revisions(session: Session, name: str, output: str | None) -> None:
    """List the revisions of a volume, newest first.

    \b
    Example:
      nodus volume revisions corpus
    """
    found = _volume(session, name).revisions()
    if output is not None:
        from nodus.cli.formats import print_object

        print_object({"items": [dict(item) for item in found]}, output)
        return
    rows = [(item.revision, item.files, item.bytes, item.committed_time) for item in found]
    for line in plain_table(("REVISION", "FILES", "SIZE", "COMMITTED"), rows):
        print(line)


@command.command()
@NAME
@click.argument("revision", type=click.IntRange(min=1))
@connected()
def restore(session: Session, name: str, revision: int) -> None:
    """Commit an earlier revision again, as the newest one.

    \b
    Example:
      nodus volume restore corpus 2
    """
    newest = _volume(session, name).restore(revision)
    print(f"volume/{name} revision {newest}")


def _tell_skipped(skipped: list[str]) -> None:
    for what in skipped[:SKIPPED_SHOWN]:
        print(f"warning: left out {visible(what)}", file=sys.stderr)
    if len(skipped) > SKIPPED_SHOWN:
        print(f"warning: left out {len(skipped) - SKIPPED_SHOWN} more, {len(skipped)} together", file=sys.stderr)


def _volume(session: Session, name: str, *, create: bool = False) -> Volume:
    from nodus.client.volumes import Volume

    session.api.retry = RIDE_OUT
    try:
        return Volume.from_name(name, create_if_missing=create, client=session.client())
    except NotFound as error:
        raise NotFound(error.message, fix=_missing(name), request_id=error.request_id) from error


def _missing(name: str) -> str:
    return f"`nodus volume put {name} PATH --create` makes it; `nodus get volumes` lists those there are."
