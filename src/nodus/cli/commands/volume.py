"""``nodus volume``."""

from __future__ import annotations

import click

from nodus.cli.groups import Group
from nodus.cli.session import Session, connected
from nodus.cli.tables import plain_table
from nodus.core.errors import NotFound


@click.group(name="volume", cls=Group)
def command() -> None:
    """Put files into volumes and get them back.

    \b
    Examples:
      nodus volume put support-chats ./chats.jsonl
      nodus volume ls support-chats
      nodus volume get support-chats chats.jsonl ./chats.jsonl
    """


@command.command()
@click.argument("name")
@click.argument("source", type=click.Path())
@click.argument("target", default="/", required=False)
@click.option("--create", "create", is_flag=True, help="Make the volume where there is none.")
@connected()
def put(session: Session, name: str, source: str, target: str, create: bool) -> None:
    """Upload a file, or everything below a directory, as a new revision.

    \b
    Examples:
      nodus volume put support-chats ./chats.jsonl
      nodus volume put corpus ./texts /raw --create
    """
    from nodus.client.volumes import Volume

    volume = Volume.from_name(name, create_if_missing=create, client=session.client())
    try:
        revision = volume.put(source, target)
    except NotFound as error:
        raise NotFound(error.message, fix="--create makes it.", request_id=error.request_id) from error
    print(f"volume/{name} revision {revision}")


@command.command()
@click.argument("name")
@click.argument("path")
@click.argument("target")
@click.option("--revision", type=click.IntRange(min=1), metavar="N", help="An earlier revision; the newest when unset.")
@connected()
def get(session: Session, name: str, path: str, target: str, revision: int | None) -> None:
    """Download a file, or everything below a directory, each file checked by its sha256.

    \b
    Example:
      nodus volume get support-chats / ./chats
    """
    from nodus.client.volumes import Volume

    volume = Volume.from_name(name, client=session.client())
    for written in volume.get(path, target, revision):
        print(written)


@command.command()
@click.argument("name")
@click.argument("path", default="", required=False)
@click.option("--revision", type=click.IntRange(min=1), metavar="N", help="An earlier revision; the newest when unset.")
@connected()
def ls(session: Session, name: str, path: str, revision: int | None) -> None:
    """List the files of a volume.

    \b
    Example:
      nodus volume ls support-chats
    """
    from nodus.client.volumes import Volume

    volume = Volume.from_name(name, client=session.client())
    files = volume.list(path, revision)
    for line in plain_table(("NAME", "SIZE"), [(item.path, item.size) for item in files]):
        print(line)
