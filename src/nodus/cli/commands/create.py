"""``nodus create``."""

from __future__ import annotations

import click

from nodus.cli.formats import as_list, check_format, print_object
from nodus.cli.manifests import read_manifests
from nodus.cli.session import Session, connected, object_label
from nodus.client.http import new_key
from nodus.client.resources import JsonObject


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Manifest, directory, or - for standard input.",
)
@click.option("-R", "--recursive", is_flag=True, help="Also read the directories below.")
@click.option(
    "--dry-run",
    "dry_run",
    is_flag=False,
    flag_value="server",
    default="none",
    metavar="[server|client|none]",
    help="Only say what would be created.",
)
@click.option("--idempotency-key", metavar="KEY", help="The same key with the same manifest creates once.")
@click.option("-o", "--output", metavar="json|yaml|name", help="Print the objects instead of a line for each.")
@connected()
def command(
    session: Session,
    files: tuple[str, ...],
    recursive: bool,
    dry_run: str,
    idempotency_key: str | None,
    output: str | None,
) -> None:
    """Create objects from manifests. Unlike `apply` it takes manifests without a name (metadata.generateName).

    \b
    Examples:
      nodus create -f grpo.yaml
      nodus create -f grpo.yaml -o name             # prints the name the server gave it
    """
    check_format(output, ("json", "yaml", "name"))
    if dry_run not in ("server", "client", "none"):
        raise click.UsageError(f"--dry-run={dry_run}: use server, client or none.")
    documents = read_manifests(files, recursive=recursive)
    if idempotency_key and len(documents) > 1:
        raise click.UsageError("--idempotency-key needs a manifest with one object.")
    results: list[JsonObject] = []
    for document in documents:
        obj = _create(session, document, dry_run, idempotency_key)
        results.append(obj)
        if output is None:
            kind = session.run(session.resources.kind(str(document["kind"])))
            print(f"{object_label(kind, obj)} created{'' if dry_run == 'none' else f' ({dry_run} dry run)'}")
    if output is not None:
        print_object(results[0] if len(results) == 1 else as_list(results), output)


def _create(session: Session, document: JsonObject, dry_run: str, idempotency_key: str | None) -> JsonObject:
    if dry_run == "client":
        return document
    if dry_run == "server":
        return session.run(session.resources.plan(document)).object
    key = idempotency_key or new_key("create").replace("sdk:", "nodus-", 1)
    return session.run(session.resources.create(document, idempotency_key=key))
