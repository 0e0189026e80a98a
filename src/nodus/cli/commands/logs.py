"""``nodus logs``."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import click

from nodus.cli.options import objects_argument
from nodus.cli.progress import clear
from nodus.cli.session import Session, connected
from nodus.cli.targets import Target, parse_target
from nodus.client import runlog
from nodus.core.durations import parse_duration

FOLLOWED = ("Job", "TrainingJob")


@click.command()
@objects_argument("KIND/NAME")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="LINES", help="Begin with the last lines only.")
@click.option("--since", metavar="DURATION", help="Only what is newer than this, such as 10m.")
@click.option("--timestamps", is_flag=True, help="Begin every line with its time.")
@click.option("--attempt", metavar="N", help="An earlier attempt, by number or name; the newest when unset.")
@click.option("--index", type=click.IntRange(min=0), metavar="N", help="One completion index of a Job.")
@click.option("--all-indexes", is_flag=True, help="Every index, with [index] before each line.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="One node of a gang.")
@click.option("--process", metavar="NAME", help="One process of a sandbox.")
@connected(patient=True)
def command(session: Session, /, what: tuple[str, ...], follow: bool, since: str | None, **flags: Any) -> None:
    """Print the log of a run.

    With -f it goes on over further attempts and restarts of the server until the run ends.

    \b
    Examples:
      nodus logs tj/my-grpo -f
      nodus logs job/my-job --tail 20 --timestamps
      nodus logs job/my-sweep --index 3
    """
    target = parse_target(session, what)
    if flags["all_indexes"] and flags["index"] is not None:
        raise click.UsageError("--all-indexes and --index exclude each other.")
    query: dict[str, Any] = {
        "follow": True if follow else None,
        "tailLines": flags["tail"],
        "sinceSeconds": None if since is None else _seconds(since),
        "timestamps": True if flags["timestamps"] else None,
        **{name: flags[name] for name in ("attempt", "index", "rank", "process")},
    }
    obj = session.run(session.get(target.kind, str(target.name), project=target.project))
    indexed = (obj.get("spec") or {}).get("completions") is not None
    if flags["all_indexes"] and not indexed and target.kind.kind not in FOLLOWED:
        raise click.UsageError(f"a {target.kind.kind} has no indexes.")
    session.run(_copy(_log(session, target, query), mark="[0] " if flags["all_indexes"] and not indexed else ""))


def _seconds(since: str) -> int:
    try:
        return max(1, round(parse_duration(since)))
    except ValueError as error:
        raise click.UsageError(f"--since: {error}.") from error


def _log(session: Session, target: Target, query: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    project = target.project or session.project
    given = {name for name, value in query.items() if value is not None}
    if given == {"follow"} and target.kind.kind in FOLLOWED:
        # A TrainingJob's Job has its name, and is there a moment later.
        return runlog.follow(session.resources, project, str(target.name), owner=target.kind.kind)
    return runlog.read(session.resources, target.kind.path(project, target.name, "log"), query)


async def _copy(chunks: AsyncGenerator[bytes, None], *, mark: str) -> None:
    output = sys.stdout.buffer
    if mark:
        async for line in runlog.lines(chunks):
            sys.stdout.write(mark + line)
        return
    async with aclosing(chunks):
        async for chunk in chunks:
            clear()
            output.write(chunk)
            output.flush()
