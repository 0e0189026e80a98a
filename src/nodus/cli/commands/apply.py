"""``nodus apply``."""

from __future__ import annotations

import click

from nodus.cli.formats import as_list, check_format, print_object
from nodus.cli.manifests import read_manifests
from nodus.cli.session import Session, connected, object_label
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
    help="Only say what would be done; the server checks and prices it, `client` sends nothing.",
)
@click.option("-o", "--output", metavar="json|yaml|name|estimate", help="Print the objects instead of a line for each.")
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
      nodus apply -f manifests/ -R
    """
    check_format(output, ("json", "yaml", "name", "estimate"))
    if dry_run not in ("server", "client", "none"):
        raise click.UsageError(f"--dry-run={dry_run}: use server, client or none.")
    if prune and not selector:
        raise click.UsageError("--prune needs -l LABELS, so that it can't delete everything.")
    documents = read_manifests(files, recursive=recursive)
    for document in documents:
        if not (document.get("metadata") or {}).get("name"):
            raise click.UsageError(f"a {document['kind']} has no metadata.name; `nodus create -f` takes nameless ones.")
    results: list[JsonObject] = []
    for document in documents:
        obj = _apply(session, document, dry_run, quiet=output is not None)
        results.append(obj)
    if prune:
        _prune(session, documents, str(selector), dry_run)
    if output == "estimate":
        from nodus.cli.estimates import estimate_line

        for obj in results:
            print(estimate_line(obj, dry_run=dry_run != "none"))
    elif output is not None:
        print_object(results[0] if len(results) == 1 else as_list(results), output)


def _apply(session: Session, document: JsonObject, dry_run: str, *, quiet: bool) -> JsonObject:
    kind = session.run(session.resources.kind(str(document["kind"])))
    if dry_run == "client":
        obj, outcome = document, "created"
    else:
        obj, outcome = session.run(session.resources.apply(document, dry_run=dry_run == "server"))
    if not quiet:
        suffix = "" if dry_run == "none" else f" ({dry_run} dry run)"
        print(f"{object_label(kind, obj)} {outcome}{suffix}")
        _print_warnings(obj)
    return obj


def _print_warnings(obj: JsonObject) -> None:
    estimate = (obj.get("status") or {}).get("estimate") or {}
    for key, word in (("blockingReasons", "blocked"), ("warnings", "warning")):
        for item in estimate.get(key) or []:
            fix = f" ({item['fix']})" if item.get("fix") else ""
            click.echo(f"{word}: {item.get('message') or item.get('code')}{fix}", err=True)


def _prune(session: Session, documents: list[JsonObject], selector: str, dry_run: str) -> None:
    kept = {(str(doc["kind"]), str(doc["metadata"]["name"])) for doc in documents}
    for kind_name in dict.fromkeys(str(doc["kind"]) for doc in documents):
        kind = session.run(session.resources.kind(kind_name))
        for obj in session.run(session.resources.list(kind, labels=selector)):
            name = str(obj["metadata"]["name"])
            if (kind.kind, name) in kept:
                continue
            if dry_run == "none":
                session.run(session.resources.delete(kind, name, missing_ok=True))
            print(f"{kind.singular}/{name} pruned{'' if dry_run == 'none' else f' ({dry_run} dry run)'}")
