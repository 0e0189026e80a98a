"""``nodus apply``."""

from __future__ import annotations

import click

from nodus.cli.manifests import read_manifests
from nodus.cli.options import (
    did,
    dry_run_option,
    files_option,
    output_option,
    print_results,
    print_warnings,
    recursive_option,
)
from nodus.cli.session import Session, connected, object_label
from nodus.client.apply import with_name
from nodus.client.resources import JsonObject


@click.command()
@files_option()
@recursive_option
@dry_run_option("Only say what would be done; the server checks and prices it, `client` sends nothing.")
@output_option("json", "yaml", "name", "estimate", help_text="Print the objects instead of a line for each.")
@click.option("--prune", is_flag=True, help="Delete objects of the applied kinds that match -l and are in no manifest.")
@click.option("-l", "--selector", metavar="LABELS", help="With --prune: the labels to match.")
@connected()
def command(
    session: Session,
    files: tuple[str, ...],
    recursive: bool,
    dry_run: str,
    output: str | None,
    prune: bool,
    selector: str | None,
) -> None:
    """Create objects from manifests, or change them to what the manifests say.

    \b
    Examples:
      nodus apply -f grpo.yaml
      nodus apply -f grpo.yaml --dry-run -o yaml    # cost, resources and the compiled job; stores nothing
      nodus apply -f manifests/ -R --prune -l app=search
    """
    if prune != bool(selector):
        raise click.UsageError(
            "--prune needs -l LABELS, so that it can't delete everything." if prune else "-l goes with --prune."
        )
    documents = [_named(document) for document in read_manifests(files, recursive=recursive)]
    results: list[JsonObject] = []
    try:
        for document in documents:
            results.append(_apply(session, document, dry_run, quiet=output is not None))
    finally:  # what was done before an error is shown as well
        if output is not None and results:
            print_results(results, output, dry_run)
    if prune:
        _prune(session, documents, str(selector), dry_run, quiet=output is not None)


def _named(document: JsonObject) -> JsonObject:
    named = with_name(document)
    if not (named.get("metadata") or {}).get("name"):
        raise click.UsageError(f"a {document['kind']} has no metadata.name; `nodus create -f` takes nameless ones.")
    return named


def _apply(session: Session, document: JsonObject, dry_run: str, *, quiet: bool) -> JsonObject:
    if dry_run == "client":
        obj, outcome = document, "created"
    else:
        obj, outcome = session.run(session.resources.apply(document, dry_run=dry_run == "server"))
    if not quiet:
        print(f"{object_label(obj)} {did(outcome, dry_run)}")
        print_warnings(obj)
    return obj


def _prune(session: Session, documents: list[JsonObject], selector: str, dry_run: str, *, quiet: bool) -> None:
    kept = {(str(doc["kind"]), _home(session, doc), str(doc["metadata"]["name"])) for doc in documents}
    for kind_name, home in dict.fromkeys((kind, home) for kind, home, _ in kept):
        kind = session.run(session.resources.kind(kind_name))
        for obj in session.run(session.resources.list(kind, project=home, labels=selector)):
            name = str(obj["metadata"]["name"])
            if (kind_name, home, name) in kept or (obj["metadata"].get("ownerReferences")):
                continue  # what another object owns goes and comes with that
            if dry_run == "none":
                session.run(session.resources.delete(kind, name, project=home, missing_ok=True))
            click.echo(f"{kind.singular}/{name} {did('pruned', dry_run)}", err=quiet)


def _home(session: Session, document: JsonObject) -> str:
    return str(document["metadata"].get("namespace") or session.project)
