"""``nodus status``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from nodus.cli.formats import check_format


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Of the server to look for. [env: NODUS_DATA_DIR; default: ~/.nodus/data]",
)
@click.option("-o", "--output", metavar="json", help="Print it as JSON.")
def command(data_dir: Path | None, output: str | None) -> int:
    """Tell whether the server runs and is ready; exits with 1 when it isn't.

    \b
    Example:
      nodus status
    """
    check_format(output, ("json",))
    from nodus.server.lifecycle import StatusOptions, status

    where: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir.expanduser().absolute()}
    found = status(StatusOptions(**where))
    if output == "json":
        print(
            json.dumps(
                {
                    "running": found.running,
                    "ready": found.ready,
                    "url": found.url,
                    "pid": found.pid,
                    "startedAt": found.started_at,
                    "dataDir": str(found.data_dir),
                    "detail": found.detail,
                }
            )
        )
    elif not found.running:
        print(f"Nodus is not running on {found.data_dir}; start it with `nodus up --detach`.")
    else:
        state = "ready" if found.ready else "not ready"
        print(f"Nodus is {state}{f' at {found.url}' if found.url else ''} (pid {found.pid}, since {found.started_at})")
        print(f"  data   {found.data_dir}")
        for line in found.detail.splitlines()[0 if not found.ready else 1 :]:
            print(f"  {line}")
    return 0 if found.ready else 1
