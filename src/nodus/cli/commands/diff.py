"""``nodus diff``."""

from __future__ import annotations

import click

from nodus.cli.difference import difference
from nodus.cli.manifests import read_manifests
from nodus.cli.options import files_option, recursive_option
from nodus.cli.session import Session, connected
from nodus.client.apply import with_name
from nodus.core.errors import NodusError, NotFound


@click.command()
@files_option()
@recursive_option
@connected()
def command(session: Session, files: tuple[str, ...], recursive: bool) -> int:
    """Show what `apply` would change, from the server's dry run; exits with 1 when there is something.

    \b
    Example:
      nodus diff -f grpo.yaml
    """
    differs = False
    for document in map(with_name, read_manifests(files, recursive=recursive)):
        kind = session.run(session.resources.kind(str(document["kind"])))
        metadata = document.get("metadata") or {}
        name = metadata.get("name")
        if not name:
            raise NodusError(f"a {document['kind']} has no metadata.name, so there is nothing to compare with")
        try:
            live = session.run(session.resources.get(kind, str(name), project=metadata.get("namespace")))
        except NotFound:
            live = None
        merged, outcome = session.run(session.resources.apply(document, dry_run=True))
        if outcome == "unchanged":
            continue
        for line in difference(f"{kind.singular}/{name}", live, merged):
            print(line)
            differs = True
        if kind.kind == "Secret":
            click.echo(f"secret/{name}: values can't be compared; `apply` makes a new version of them.", err=True)
            differs = True
    return 1 if differs else 0
