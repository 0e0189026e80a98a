"""``nodus delete``."""

from __future__ import annotations

from functools import partial

import click

from nodus.cli.session import Session, connected
from nodus.cli.targets import Target, parse_targets
from nodus.core.errors import NotFound

CASCADES = {"background": "Background", "foreground": "Foreground", "orphan": "Orphan"}


@click.command()
@click.argument("what", nargs=-1, metavar="KIND/NAME...")
@click.option("-f", "--filename", "files", multiple=True, metavar="FILE", help="Delete what these manifests name.")
@click.option("-l", "--selector", metavar="LABELS", help="Delete the objects of a kind with these labels.")
@click.option("--all", "everything", is_flag=True, help="Delete every object of the kind in the project.")
@click.option(
    "--cascade",
    type=click.Choice(list(CASCADES)),
    default="background",
    show_default=True,
    help="What happens to what it owns; orphan leaves it.",
)
@click.option("--wait", "wait", is_flag=True, help="Return once it is gone.")
@click.option("--ignore-not-found", is_flag=True, help="What is not there is no error.")
@connected()
def command(
    session: Session,
    what: tuple[str, ...],
    files: tuple[str, ...],
    selector: str | None,
    everything: bool,
    cascade: str,
    wait: bool,
    ignore_not_found: bool,
) -> None:
    """Delete objects and what they own.

    \b
    Examples:
      nodus delete tj/my-grpo
      nodus delete tj -l team=search --wait
      nodus delete -f grpo.yaml --ignore-not-found
    """
    targets = _targets(session, what, files, selector, everything)
    for target in targets:
        name = str(target.name)
        try:
            session.run(
                session.resources.delete(target.kind, name, project=target.project, propagation=CASCADES[cascade])
            )
        except NotFound:
            if ignore_not_found:
                continue
            raise
        if wait:
            _wait_gone(session, target)
        print(f"{target.kind.singular}/{name} deleted")


def _targets(
    session: Session, what: tuple[str, ...], files: tuple[str, ...], selector: str | None, everything: bool
) -> list[Target]:
    if files:
        from nodus.cli.manifests import read_manifests

        return [
            target._replace(project=(document.get("metadata") or {}).get("namespace"))
            for document in read_manifests(files)
            for target in parse_targets(
                session, [str(document["kind"]), str((document.get("metadata") or {}).get("name"))]
            )
        ]
    found = parse_targets(session, what)
    whole = [target for target in found if target.name is None]
    if whole and not selector and not everything:
        raise click.UsageError(f"name the {whole[0].kind.plural}, or select them with -l LABELS or --all.")
    named = [target for target in found if target.name is not None]
    if named and (selector or everything):
        raise click.UsageError(f"{named[0].name!r} is a name; -l and --all go with a kind alone.")
    for target in whole:
        listed = session.run(session.resources.list(target.kind, project=target.project, labels=selector))
        named += [target._replace(name=str(item["metadata"]["name"])) for item in listed]
    return named


def _wait_gone(session: Session, target: Target) -> None:
    holds = partial(bool, 0)
    try:
        session.run(
            session.resources.wait_for(
                target.kind,
                str(target.name),
                lambda obj: holds(),
                project=target.project,
                timeout_s=1800,
                what="its deletion",
            )
        )
    except NotFound:
        return
