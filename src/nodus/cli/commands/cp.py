"""``nodus cp``."""

from __future__ import annotations

from pathlib import Path

import click

from nodus.cli.colour import visible
from nodus.cli.copying import download, remote, upload
from nodus.cli.session import Session, connected
from nodus.cli.targets import Target
from nodus.client.outputs import Outputs, safe_name
from nodus.core.errors import NotFound


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("--index", type=click.IntRange(min=0), metavar="N", help="One completion index of a Job.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="One node of a gang.")
@connected()
def command(session: Session, source: str, target: str, index: int | None, rank: int | None) -> None:
    """Copy a run's outputs to this machine, each file checked by its sha256, or files to and from a sandbox.

    Of a run, a path that ends in a slash copies everything below it, keeping the directories; of a Job with completions
    each index's files go into a directory of its number. Of a sandbox, directories are copied whole.

    \b
    Examples:
      nodus cp tj/my-grpo:outputs/results.json ./results.json
      nodus cp tj/my-grpo:outputs/adapter/ ./adapter
      nodus cp ./data sb/dev:/workspace/data
      nodus cp sb/dev:/workspace/results ./results
    """
    there = remote(session, target)
    if there is not None:
        upload(session, source, *there)
        return
    here = remote(session, source)
    if here is None:
        raise click.UsageError("one side is a run or a sandbox: KIND/NAME:PATH.")
    found, path = here
    if found.kind.kind == "Sandbox":
        download(session, found, path, target)
        return
    if path != "outputs" and not path.startswith("outputs/"):
        raise click.UsageError(f"{path!r}: a run's files are under outputs/.")
    where = f"{found.kind.singular}/{found.name}"
    prefix = path.removeprefix("outputs").removeprefix("/")
    outputs = _outputs(session, found)
    if prefix and not prefix.endswith("/"):
        destination = Path(target)
        if destination.is_dir() or target.endswith("/"):
            destination = destination / safe_name(prefix).name
        query: dict[str, object] = {"index": index, "rank": rank}
        print(visible(str(session.run(outputs.fetch(prefix, destination, query)))))
        return
    found_files = session.run(outputs.entries(prefix, index))
    if not found_files:
        raise NotFound(
            f"{where} has no outputs{f' under {prefix}' if prefix else ''} yet", fix="Wait for the run to succeed."
        )
    for name, of in found_files:
        # Where several indexes left files of the same names, each index has a directory of its own.
        home = Path(target) if of is None or index is not None else Path(target, str(of))
        written = session.run(outputs.fetch(name, home / safe_name(name.removeprefix(prefix)), {"index": of}))
        print(visible(str(written)))


def _outputs(session: Session, target: Target) -> Outputs:
    path = target.kind.path(target.project or session.project, target.name, "outputs")
    return Outputs(session.api, path, f"{target.kind.singular}/{target.name}")
