"""``nodus explain``."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import click

from nodus.cli.session import Session, connected
from nodus.client.kinds import KindInfo, resolve_kind
from nodus.core.errors import NotFound


@click.command()
@click.argument("what", metavar="KIND[.FIELD...]")
@click.option("--recursive", is_flag=True, help="Name the fields of fields too.")
@click.option("-o", "--output", type=click.Choice(["plaintext"]), default="plaintext", hidden=True)
@connected()
def command(session: Session, what: str, recursive: bool, output: str) -> None:
    """Show what a kind or one of its fields means.

    \b
    Examples:
      nodus explain tj
      nodus explain trainingjob.spec.parameters
      nodus explain job.spec --recursive
    """
    from nodus.cli.schema_text import Explainer

    word, *fields = what.split(".")
    if not word or "" in fields:
        raise click.UsageError(f"{what!r} is not KIND or KIND.FIELD.FIELD.")
    kind = session.run(resolve_kind(session.api, word))
    explainer = Explainer(session.run(_document(session, kind)))
    for line in explainer.lines(kind.kind, kind.api_version, fields, recursive=recursive):
        print(line)


async def _document(session: Session, kind: KindInfo) -> Any:
    """The OpenAPI document of the kind's group version.

    Raises:
        NotFound: The server has none.
    """
    index = await session.api.call("GET", "/openapi/v3")
    entry = (index.get("paths") or {}).get(f"apis/{kind.api_version}")
    if entry is None:
        raise NotFound(f"the server has no OpenAPI document for {kind.api_version}")
    where = urlsplit(str(entry["serverRelativeURL"]))
    return await session.api.call("GET", where.path, query=dict(parse_qsl(where.query)))
