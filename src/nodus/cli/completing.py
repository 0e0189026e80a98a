"""Completes kinds and names of objects by asking the server, quickly or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from nodus.client.kinds import BUILT_IN, KindInfo, find_kind

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

TIMEOUT_S = 1.0
MAX_NAMES = 200


def complete_objects(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete ``KIND``, ``KIND/NAME`` and ``KIND NAME``."""
    from click.shell_completion import CompletionItem

    before = [str(word) for word in ctx.params.get(str(param.name)) or ()]
    kind_word, slash, start = incomplete.partition("/")
    if slash:
        kind, prefix = find_kind(kind_word), f"{kind_word}/"
    elif before and "/" not in before[0]:
        kind, prefix, start = find_kind(before[0]), "", incomplete
    else:
        return [CompletionItem(name) for name in _kind_names() if name.startswith(incomplete.lower())]
    if kind is None:
        return []
    return [CompletionItem(prefix + name) for name in _names(ctx, kind) if name.startswith(start)]


def complete_names(
    kind_name: str,
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a completion of the names of one kind, for arguments such as a volume's."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        kind = find_kind(kind_name)
        found = _names(ctx, kind) if kind is not None else ()
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]

    return complete


def complete_projects(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the value of ``-p``."""
    from click.shell_completion import CompletionItem

    kind = find_kind("Project")
    assert kind is not None
    return [CompletionItem(name) for name in _names(ctx, kind) if name.startswith(incomplete)]


def complete_contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the value of ``--context``."""
    from click.shell_completion import CompletionItem

    from nodus.client.config import config_path, load_config
    from nodus.core.errors import NodusError

    try:
        found = [str(item.get("name")) for item in load_config(config_path()).get("contexts") or []]
    except (NodusError, AttributeError):
        return []  # a broken file is a matter for the command, not for the Tab key
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def _kind_names() -> Iterable[str]:
    for info in BUILT_IN:
        yield info.plural
        yield from info.short_names


def _names(ctx: click.Context, kind: KindInfo) -> list[str]:
    """Return the names of a kind's objects; none where the server is away, slow or refuses."""
    from nodus.cli.session import Options, Session
    from nodus.core.errors import NodusError

    given = Options()
    words: click.Context | None = ctx
    while words is not None:  # before the command's name too: nothing has been run that would have noted those
        named = words.params
        given = given.over(Options(named.get("context"), named.get("project"), named.get("org")))
        words = words.parent
    try:
        session = Session(given)
        path = kind.path(session.project)
        listed = session.run(session.api.call("GET", path, query={"limit": MAX_NAMES}, timeout_s=TIMEOUT_S))
    except NodusError:
        return []
    return [str(item["metadata"]["name"]) for item in listed.get("items") or []]
