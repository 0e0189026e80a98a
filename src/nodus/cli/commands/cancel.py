"""``nodus cancel``."""

from __future__ import annotations

import click

from nodus.cli.session import Session, connected
from nodus.cli.targets import parse_targets


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="KIND/NAME...")
@connected()
def command(session: Session, what: tuple[str, ...]) -> None:
    """Cancel a run. What it has scored and saved so far is kept.

    \b
    Example:
      nodus cancel tj/my-grpo
    """
    targets = parse_targets(session, what)
    if any(target.name is None for target in targets):
        raise click.UsageError("name the runs, such as tj/my-run.")
    for target in targets:
        name = str(target.name)
        session.run(session.get(target.kind, name, project=target.project))
        session.run(
            session.resources.patch(target.kind, name, {"spec": {"state": "Cancelled"}}, project=target.project)
        )
        print(f"{target.kind.singular}/{name} canceled")
