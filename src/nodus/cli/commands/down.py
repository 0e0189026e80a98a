"""``nodus down``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Of the server to stop. [env: NODUS_DATA_DIR; default: ~/.nodus/data]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait this long for its end.",
)
def command(data_dir: Path | None, timeout_s: float) -> None:
    """Stop the server; runs go on and are picked up by the next `nodus up`.

    \b
    Example:
      nodus down
    """
    from nodus.server.lifecycle import DownOptions, down

    where: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir.expanduser().absolute()}
    options = DownOptions(timeout_s=timeout_s, **where)
    stopped = down(options)
    print("Nodus is stopped." if stopped else f"No server runs on {options.data_dir}.")
