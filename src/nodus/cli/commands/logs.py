"""``nodus logs``."""

from __future__ import annotations

import sys

import click

from nodus.cli.session import Session, connected
from nodus.cli.targets import parse_target
from nodus.client.transport import TransportError
from nodus.core.durations import parse_duration
from nodus.core.errors import NodusError


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="KIND/NAME")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="LINES", help="Begin with the last lines only.")
@click.option("--since", metavar="DURATION", help="Only what is newer than this, such as 10m.")
@click.option("--timestamps", is_flag=True, help="Begin every line with its time.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="An earlier attempt; the newest when unset.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="One node of a gang.")
@click.option("--index", type=click.IntRange(min=0), metavar="N", help="One completion index of a Job.")
@connected()
def command(
    session: Session,
    what: tuple[str, ...],
    follow: bool,
    tail: int | None,
    since: str | None,
    timestamps: bool,
    attempt: int | None,
    rank: int | None,
    index: int | None,
) -> None:
    """Print the log of a run.

    \b
    Examples:
      nodus logs tj/my-grpo -f
      nodus logs job/my-grpo --tail 20 --timestamps
    """
    target = parse_target(session, what)
    seconds = None
    if since is not None:
        try:
            seconds = max(1, round(parse_duration(since)))
        except ValueError as error:
            raise click.UsageError(f"--since: {error}.") from error
    session.run(session.get(target.kind, str(target.name), project=target.project))
    query: dict[str, object] = {
        "follow": True if follow else None,
        "tailLines": tail,
        "sinceSeconds": seconds,
        "attempt": attempt,
        "timestamps": True if timestamps else None,
        "rank": rank,
        "index": index,
    }
    path = target.kind.path(target.project or session.project, target.name, "log")
    session.run(_copy(session, path, query, follow=follow))


async def _copy(session: Session, path: str, query: dict[str, object], *, follow: bool) -> None:
    exchange = await session.api.stream(
        "GET", path, query=query, headers={"Accept": "*/*"}, timeout_s=None if follow else 60.0
    )
    output = sys.stdout.buffer
    try:
        async for chunk in exchange.chunks():
            output.write(chunk)
            output.flush()
    except TransportError as error:
        raise NodusError("the log broke off; the server may be restarting", fix="Run the command again.") from error
    finally:
        await exchange.close()
