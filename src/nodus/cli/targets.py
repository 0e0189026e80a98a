"""Arguments that name objects: ``KIND/NAME``, ``KIND NAME...``, ``KIND``, ``KIND,KIND``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click

from nodus.cli.session import Session
from nodus.client.kinds import GROUP, KindInfo, find_kind, resolve_kind


class Target(NamedTuple):
    """What an argument names."""

    kind: KindInfo
    name: str | None
    """None for the whole collection."""
    project: str | None = None
    """The catalog for names that begin with ``nodus/``."""


def parse_targets(session: Session, words: Sequence[str]) -> list[Target]:
    """Return what the words name.

    Raises:
        click.UsageError: When the words mix forms or a name is empty.
        NotFound: For a kind that the server doesn't have.
    """
    if not words:
        raise click.UsageError("name what is meant, such as tj/my-run or tj my-run.")
    if "/" in words[0]:
        return [_slashed(session, word) for word in words]
    kinds = [_kind(session, word) for word in words[0].split(",") if word]
    if len(words) == 1:
        return [Target(kind, None) for kind in kinds]
    if len(kinds) != 1:
        raise click.UsageError("names can follow one kind only; write KIND/NAME for each.")
    mixed = [word for word in words[1:] if "/" in word and not word.startswith("nodus/")]
    if mixed:
        raise click.UsageError(f"{mixed[0]!r} names a kind again; write KIND/NAME for each, or KIND NAME NAME.")
    return [_named(kinds[0], word) for word in words[1:]]


def parse_target(session: Session, words: Sequence[str]) -> Target:
    """Return the one object that the words name.

    Raises:
        click.UsageError: When they name none, or several.
    """
    found = parse_targets(session, words)
    if len(found) != 1 or found[0].name is None:
        raise click.UsageError("name one object, such as tj/my-run or tj my-run.")
    return found[0]


def selected(
    session: Session, targets: Sequence[Target], selector: str | None, *, everything: bool = False
) -> list[Target]:
    """Return named objects: those named, and of a kind alone those with the labels, or all.

    Args:
        session: The server.
        targets: From `parse_targets`.
        selector: ``-l``.
        everything: ``--all``.

    Raises:
        click.UsageError: For a kind alone without either, and for a name beside them.
    """
    named = [target for target in targets if target.name is not None]
    if named and (selector or everything):
        raise click.UsageError(f"{named[0].name!r} is a name; selectors go with a kind alone.")
    for target in targets:
        if target.name is not None:
            continue
        if not selector and not everything:
            raise click.UsageError(
                f"name the {target.kind.plural}, such as {target.kind.singular}/NAME, or select them."
            )
        listed = session.run(session.resources.list(target.kind, project=target.project, labels=selector))
        named += [target._replace(name=str(item["metadata"]["name"])) for item in listed]
    return named


def named(session: Session, words: Sequence[str]) -> list[Target]:
    """Return the objects that the words name, each by its name.

    Raises:
        click.UsageError: When a kind stands alone.
    """
    return selected(session, parse_targets(session, words), None)


def targets_of_files(session: Session, files: Sequence[str], *, recursive: bool = False) -> list[Target]:
    """Return the objects that manifests name.

    Raises:
        click.UsageError: When a manifest can't be read or names nothing.
    """
    from nodus.cli.manifests import read_manifests
    from nodus.client.apply import with_name

    found = []
    for document in read_manifests(files, recursive=recursive):
        metadata = with_name(document).get("metadata") or {}
        if not metadata.get("name"):
            raise click.UsageError(f"a {document['kind']} has no metadata.name, so it names no object.")
        target = parse_target(session, [str(document["kind"]), str(metadata["name"])])
        found.append(target._replace(project=metadata.get("namespace") or target.project))
    return found


def _slashed(session: Session, word: str) -> Target:
    kind, _, name = word.partition("/")
    if not kind or not name:
        raise click.UsageError(f"{word!r} is not KIND/NAME.")
    return _named(_kind(session, kind), name)


def _named(kind: KindInfo, name: str) -> Target:
    catalog = name.startswith("nodus/")
    plain = name.removeprefix("nodus/")
    if "/" in plain or not plain:
        raise click.UsageError(f"{name!r} is no name of a {kind.singular}: a name has no slash.")
    return Target(kind, plain, "nodus" if catalog else None)


def _kind(session: Session, word: str) -> KindInfo:
    word = word.removesuffix(f".{GROUP}")  # as `-o name` prints it
    known = find_kind(word)
    return known if known is not None else session.run(resolve_kind(session.api, word))
