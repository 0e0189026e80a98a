"""Options that several commands share, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from nodus.client.resources import JsonObject

Decorator = Callable[[Any], Any]
DRY_RUNS = ("none", "server", "client")
DATA_DIR: Decorator = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The server's data directory. [env: NODUS_DATA_DIR; default: ~/.nodus/data]",
)


def files_option(help_text: str = "Manifest, directory, or - for standard input.") -> Decorator:
    """Return ``-f``, which may be given several times, as ``files``."""
    return click.option("-f", "--filename", "files", multiple=True, metavar="FILE", help=help_text)


recursive_option: Decorator = click.option("-R", "--recursive", is_flag=True, help="Also read the directories below.")


def objects_argument(metavar: str = "KIND/NAME...", *, required: bool = True, name: str = "what") -> Decorator:
    """Return the argument that names objects, which a shell completes by asking the server."""
    return click.argument(name, nargs=-1, required=required, metavar=metavar, shell_complete=_complete_objects)


def _complete_objects(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from nodus.cli.completing import complete_objects

    return list(complete_objects(ctx, param, incomplete))


def dry_run_option(help_text: str) -> Decorator:
    """Return ``--dry-run[=server|client|none]`` as ``dry_run``; without a value it means the server."""
    return click.option(
        "--dry-run",
        "dry_run",
        is_flag=False,
        flag_value="server",
        default="none",
        type=click.Choice(DRY_RUNS),
        metavar="[server|client|none]",
        help=help_text,
    )


def output_option(*formats: str, help_text: str = "Print the object instead of a line.") -> Decorator:
    """Return ``-o`` with these formats, as ``output``; another one is refused when the arguments are read."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        from nodus.cli.formats import check_format

        return check_format(value, formats)

    metavar = "|".join(f"{name}=..." if name in TEMPLATES else name for name in formats)
    return click.option("-o", "--output", metavar=metavar, help=help_text, callback=check)


TEMPLATES = ("jsonpath", "jsonpath-file", "custom-columns", "go-template")


def did(outcome: str, dry_run: str = "none") -> str:
    """Return what a success line says, such as ``created (server dry run)``."""
    return outcome if dry_run == "none" else f"{outcome} ({dry_run} dry run)"


def print_results(results: Sequence[JsonObject], output: str, dry_run: str) -> None:
    """Print what a command made in the format that was asked for: an object, a List of several, or estimates."""
    if output == "estimate":
        from nodus.cli.estimates import estimate_line

        for obj in results:
            print(estimate_line(obj, dry_run=dry_run != "none"))
        return
    from nodus.cli.formats import as_list, print_object

    shown = [_without_values(obj) for obj in results]
    print_object(shown[0] if len(shown) == 1 else as_list(shown), output)


def _without_values(obj: JsonObject) -> JsonObject:
    """Return a Secret as it may be printed: a client's dry run still has the values of the manifest."""
    spec = obj.get("spec")
    if obj.get("kind") != "Secret" or not isinstance(spec, dict) or not isinstance(spec.get("stringData"), dict):
        return obj
    return obj | {"spec": spec | {"stringData": dict.fromkeys(spec["stringData"], "(hidden)")}}


def print_warnings(obj: JsonObject) -> None:
    """Say on standard error what blocks an object, and what to know of it, by its estimate."""
    estimate = (obj.get("status") or {}).get("estimate") or {}
    for key, word in (("blockingReasons", "blocked"), ("warnings", "warning")):
        for item in estimate.get(key) or []:
            fix = f" ({item['fix']})" if item.get("fix") else ""
            click.echo(f"{word}: {item.get('message') or item.get('code')}{fix}", err=True)
