"""``nodus label`` and ``nodus annotate``."""

from __future__ import annotations

import click

from nodus.cli.options import did, dry_run_option, objects_argument, output_option, print_results
from nodus.cli.session import Session, connected
from nodus.cli.targets import Target, named
from nodus.core.patches import merge_patch

_ARGUMENTS = objects_argument("KIND/NAME... KEY=VALUE... [KEY-...]", name="words")
_DRY_RUN = dry_run_option("Only say what would come of it; `client` sends nothing.")
_OUTPUT = output_option("json", "yaml", "name")


@click.command()
@_ARGUMENTS
@_DRY_RUN
@_OUTPUT
@connected()
def label(session: Session, words: tuple[str, ...], dry_run: str, output: str | None) -> None:
    """Set labels, by which objects are selected; KEY- takes one away.

    \b
    Example:
      nodus label tj/my-grpo team=search draft-
    """
    _write(session, words, "labels", "labeled", dry_run, output)


@click.command()
@_ARGUMENTS
@_DRY_RUN
@_OUTPUT
@connected()
def annotate(session: Session, words: tuple[str, ...], dry_run: str, output: str | None) -> None:
    """Set annotations, notes that nothing selects by; KEY- takes one away.

    \b
    Example:
      nodus annotate tj/my-grpo ticket=RL-7
    """
    _write(session, words, "annotations", "annotated", dry_run, output)


def _write(session: Session, words: tuple[str, ...], field: str, done: str, dry_run: str, output: str | None) -> None:
    targets, changes = _split(session, words)
    results = []
    for target in targets:
        name = str(target.name)
        obj = session.run(session.get(target.kind, name, project=target.project))
        patch = {"metadata": {field: changes}}
        if dry_run == "client":
            obj = merge_patch(obj, patch)
        else:
            obj = session.run(
                session.resources.patch(target.kind, name, patch, project=target.project, dry_run=dry_run == "server")
            )
        results.append(obj)
        if output is None:
            print(f"{target.kind.singular}/{name} {did(done, dry_run)}")
    if output is not None:
        print_results(results, output, dry_run)


def _split(session: Session, words: tuple[str, ...]) -> tuple[list[Target], dict[str, str | None]]:
    """Return the objects and the changes; names come first, and a change has ``=`` or ends in ``-``."""
    first = next((number for number, word in enumerate(words) if number and _is_change(word)), len(words))
    changes: dict[str, str | None] = {}
    for word in words[first:]:
        key, equals, value = word.partition("=")
        if not _is_change(word):
            raise click.UsageError(f"{word!r} is neither KEY=VALUE nor KEY-.")
        changes[key if equals else word[:-1]] = value if equals else None
    if not changes:
        raise click.UsageError("say what to change: KEY=VALUE sets, KEY- takes away.")
    targets = named(session, words[:first])
    return targets, changes


def _is_change(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(key) if equals else len(word) > 1 and word.endswith("-")
