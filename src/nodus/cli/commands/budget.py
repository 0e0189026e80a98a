"""``nodus create budget``."""

from __future__ import annotations

import click

from nodus.cli.generators import create_one, manifest
from nodus.cli.options import dry_run_option, output_option
from nodus.cli.session import Session, connected
from nodus.client.resources import JsonObject
from nodus.core.errors import NotFound
from nodus.core.labels import label_problem


@click.command("budget")
@click.argument("name")
@click.option("--limit", metavar="USD", required=True, help="Most that may be spent in a period, in dollars.")
@click.option(
    "--period",
    type=click.Choice(["Monthly", "Total"], case_sensitive=False),
    metavar="Monthly|Total",
    help="Count anew each month, or for good; Monthly when unset.",
)
@click.option("--scope-project", metavar="NAME", help="Count only what this project spends.")
@click.option("--scope-member", metavar="MEMBER", help="Count only what a member spends: name or email.")
@click.option(
    "--scope-label", "labels", metavar="KEY=VALUE", multiple=True, help="Count only objects with it; repeatable."
)
@click.option(
    "--action",
    type=click.Choice(["Block", "Notify"], case_sensitive=False),
    metavar="Block|Notify",
    help="Refuse what the limit leaves no room for, or only tell; Block when unset.",
)
@click.option(
    "--threshold", "thresholds", type=click.IntRange(1, 1000), metavar="PERCENT", multiple=True,
    help="Percent of the limit that an event tells of; repeatable, 50, 80 and 100 when unset.",
)  # fmt: skip
@output_option("json", "yaml", "name")
@dry_run_option("Only say what would be created; `client` sends nothing.")
@connected()
def command(
    session: Session,
    name: str,
    limit: str,
    period: str | None,
    scope_project: str | None,
    scope_member: str | None,
    labels: tuple[str, ...],
    action: str | None,
    thresholds: tuple[int, ...],
    output: str | None,
    dry_run: str,
) -> None:
    """Create a limit on what a project, a member, objects with a label, or everybody may spend.

    \b
    Examples:
      nodus create budget research --limit 2000 --period Monthly --scope-project research
      nodus create budget ada-monthly --limit 300 --scope-member ada@example.com
      nodus create budget nlp --limit 50 --scope-label team=nlp --action Notify
    """
    scope: JsonObject = {
        "project": scope_project,
        "member": None if scope_member is None else _member(session, scope_member),
        "selector": {"matchLabels": dict(map(_label, labels))} if labels else None,
    }
    spec: JsonObject = {
        "limitUSD": limit,
        "period": period,
        "scope": {key: value for key, value in scope.items() if value is not None},
        "action": action,
        "thresholds": sorted(set(thresholds)),
    }
    create_one(session, manifest("Budget", name, {key: value for key, value in spec.items() if value}), dry_run, output)


def _member(session: Session, text: str) -> str:
    """Return the name of a member, who may be given by email.

    Raises:
        NotFound: nobody has the address.
    """
    if "@" not in text:
        return text
    found = session.run(session.resources.list("Member"))
    for one in found:
        if str((one.get("spec") or {}).get("email", "")).lower() == text.lower():
            return str(one["metadata"]["name"])
    raise NotFound(f"no member has the address {text!r}", fix="`nodus get members` lists them.")


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    problem = label_problem(key, value) if equals else f"{text!r} is not KEY=VALUE"
    if problem is not None:
        raise click.UsageError(f"--scope-label: {problem}.")
    return key, value
