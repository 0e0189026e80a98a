"""``nodus delete``."""

from __future__ import annotations

import sys

import click

from nodus.cli.conditions import GONE
from nodus.cli.options import did, dry_run_option, files_option, objects_argument, recursive_option
from nodus.cli.render import error_lines
from nodus.cli.session import Session, connected
from nodus.cli.targets import Target, parse_targets, selected, targets_of_files
from nodus.cli.waiting import wait_for_all
from nodus.core.durations import parse_duration
from nodus.core.errors import NotFound

CASCADES = {"background": "Background", "foreground": "Foreground", "orphan": "Orphan"}


@click.command()
@objects_argument(required=False)
@files_option("Delete what these manifests name.")
@recursive_option
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
@click.option("--timeout", default="10m", show_default=True, metavar="DURATION", help="How long --wait waits.")
@click.option("--ignore-not-found", is_flag=True, help="What is not there is no error.")
@dry_run_option("Only say what would be deleted; `client` sends nothing.")
@connected()
def command(
    session: Session,
    what: tuple[str, ...],
    files: tuple[str, ...],
    recursive: bool,
    selector: str | None,
    everything: bool,
    cascade: str,
    wait: bool,
    timeout: str,
    ignore_not_found: bool,
    dry_run: str,
) -> None:
    """Delete objects and what they own.

    \b
    Examples:
      nodus delete tj/my-grpo
      nodus delete tj -l team=search --wait
      nodus delete -f grpo.yaml --ignore-not-found
    """
    try:
        timeout_s = parse_duration(timeout)
    except ValueError as error:
        raise click.UsageError(f"--timeout: {error}.") from error
    if files and what:
        raise click.UsageError("name objects or manifests, not both.")
    targets = (
        targets_of_files(session, files, recursive=recursive)
        if files
        else selected(session, parse_targets(session, what), selector, everything=everything)
    )
    if not targets:
        print("No resources found.", file=sys.stderr)
    gone, missing = [], None
    for target in targets:
        try:
            if not _delete(session, target, cascade, ignore_not_found, dry_run):
                continue
        except NotFound as error:  # the others are deleted all the same
            if missing is not None:
                print(*error_lines(missing), sep="\n", file=sys.stderr)
            missing = error
            continue
        gone.append(target)
        if not wait or dry_run != "none":
            print(f"{target.kind.singular}/{target.name} {did('deleted', dry_run)}")
    if wait and gone and dry_run == "none":
        for label in wait_for_all(session, gone, GONE, timeout_s):
            print(f"{label} deleted")
    if missing is not None:
        raise missing


def _delete(session: Session, target: Target, cascade: str, ignore_not_found: bool, dry_run: str) -> bool:
    """Ask for the deletion and return whether there was something to delete."""
    if dry_run == "client":
        return True
    path = target.kind.path(target.project or session.project, target.name)
    query = {"dryRun": "All" if dry_run == "server" else None}
    try:
        session.run(session.api.call("DELETE", path, query=query, body={"propagationPolicy": CASCADES[cascade]}))
    except NotFound:
        if not ignore_not_found:
            raise
        return False
    return True
